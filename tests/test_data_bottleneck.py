"""Is data the bottleneck? The analysis on known times, the measurement with a clock that only stages advance, and one real run."""

import json

import numpy as np
import pytest
from PIL import Image

import weft
from weft import data
from weft.cli.profile_data import profile_data, profile_memory
from weft.data.loading_stages import loading_stages
from weft.insight import data_bottleneck, data_timing
from weft.insight.data_bottleneck import DataBottleneck, StageTime
from weft.insight.data_timing import stage_times, worker_counts


def found(
    workers: int = 1, read: float = 1.0, decode: float = 6.0, step: float = 2.0, cores: int = 8
) -> DataBottleneck:
    """A machine whose loader scales with its workers up to the cores."""
    one = read + decode
    counts = worker_counts(workers, cores)
    loader = {count: one / max(1, min(count, cores)) for count in counts}
    both = one + step if workers == 0 else max(step, loader[workers])
    stages = (
        StageTime("read", "loader", read),
        StageTime("decode", "loader", decode),
        StageTime("copy", "step", 0.1 * step),
        StageTime("augment", "step", 0.3 * step),
        StageTime("compute", "step", 0.6 * step),
    )
    return DataBottleneck(32, workers, cores, stages, loader, step, both, "cpu")


def test_decoding_limits_and_four_workers_fix_it():
    one = found()
    assert (one.limit, one.verdict) == ("decode", "data")
    assert one.waiting == pytest.approx(1 - 2 / 7)
    assert one.workers_needed == 4  # 7 / 4 < 2 < 7 / 3
    assert "workers=4 would keep up" in one.advice()
    assert "Store decoded images" in one.advice()


def test_numbers_of_workers_between_the_measured_ones():
    one = found(read=0.0, decode=6.0)
    assert set(one.loader) == {1, 2, 4, 8}
    assert one.loader_seconds(3) == pytest.approx(2.0)
    assert one.workers_needed == 3
    assert one.loader_seconds(100) == one.loader[8]


def test_the_step_limits():
    one = found(workers=4, step=20.0)
    assert (one.limit, one.verdict, one.waiting, one.workers_needed) == ("compute", "step", 0.0, 1)
    assert "Only a faster step helps" in one.advice()


def test_reading_limits_and_no_number_of_workers_helps():
    one = found(read=30.0, cores=2)
    assert (one.limit, one.workers_needed) == ("read", None)
    assert "Not even 2 workers" in one.advice()
    assert "Faster storage" in one.advice()


def test_without_workers_loading_and_computing_take_turns():
    one = found(workers=0)
    assert one.waiting == pytest.approx(7 / 9)
    assert (one.limit, one.workers_needed) == ("decode", 4)
    assert "take turns. workers=4" in one.advice()
    assert "Only a faster step helps" in found(workers=0, read=0.01, decode=0.02).advice()  # nothing to gain


def test_text_and_json_say_the_same():
    one = found()
    text, known = str(one), json.loads(one.to_json())
    assert text.startswith("Bottleneck: data loading (decode). The step waits for data 71% of the time.")
    assert "loader alone, workers=8" in text
    assert (known["limit"], known["workers_needed"], known["loader"]["1"]) == ("decode", 4, 7.0)
    assert [stage["name"] for stage in known["stages"]] == ["read", "decode", "copy", "augment", "compute"]


def test_loader_and_step_that_share_cores():
    shared = DataBottleneck(32, 1, 2, found().stages, {1: 1.0, 2: 1.0}, 2.0, 3.0)
    assert (shared.verdict, shared.limit) == ("cores", "decode")
    assert "3.00 s together, 1.00 s and 2.00 s alone): more workers do not help" in str(shared)
    nearly = DataBottleneck(32, 1, 2, found().stages, {1: 1.0, 2: 1.0}, 2.0, 2.2)
    assert nearly.verdict == "step"


# --- measuring with a clock that stands still unless a stage advances it --------------------------------------------------------------


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def takes(self, seconds: float, result=None):
        self.now += seconds
        return result


class SlowExamples:
    """A dataset of 32 examples; a batch takes 3 seconds. Those in `bad` cannot be read."""

    def __init__(self, clock: FakeClock, bad: tuple[int, ...] = (), count: int = 32) -> None:
        self.clock, self.bad, self.labels = clock, bad, np.zeros(count, np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def inputs(self, indices):
        if set(self.bad) & set(np.asarray(indices).tolist()):
            raise OSError("the disk has a scratch")
        return self.clock.takes(3.0, np.zeros((len(indices), 2), np.float32))


def measured(bad: tuple[int, ...] = (), step: float = 2.0) -> DataBottleneck:
    clock = FakeClock()
    dataset = SlowExamples(clock, bad)
    stages = [
        ("read", lambda indices: clock.takes(1.0, dataset.inputs(indices))),
        ("decode", lambda inputs: clock.takes(0.5, inputs)),
    ]
    return data_bottleneck(
        dataset, lambda x, y: clock.takes(step), batch=8, workers=0, stages=stages, cores=1, seconds=30.0, clock=clock
    )


def test_stages_loader_step_and_both_are_measured():
    one = measured()
    times = {stage.name: stage.seconds for stage in one.stages}
    assert times == {"read": 4.0, "decode": 0.5, "copy": 0.0, "augment": 0.0, "compute": 2.0}
    assert (one.loader[0], one.step, one.both) == (3.0, 2.0, 5.0)
    assert (one.limit, one.notes) == ("read", ())


def test_the_copy_to_a_device_is_a_stage(monkeypatch):
    """A step on the host's arrays takes 2 seconds, on tensors that are on the device 0.5."""

    class OtherDevice:
        def free_memory(self) -> int:
            return 1

    monkeypatch.setattr(data_timing, "device", OtherDevice)
    clock = FakeClock()
    one = data_bottleneck(
        SlowExamples(clock), lambda x, y: clock.takes(2.0 if isinstance(x, np.ndarray) else 0.5),
        batch=8, workers=0, cores=1, seconds=30.0, clock=clock,
    )  # fmt: skip
    times = {stage.name: stage.seconds for stage in one.stages}
    assert (times["copy"], times["compute"]) == (1.5, 0.5)
    assert max(one.stages[-3:], key=lambda stage: stage.seconds).name == "copy"


def test_unreadable_examples_are_noted_and_the_rest_is_measured():
    one = measured(bad=(5, 17))
    assert {stage.name: stage.seconds for stage in one.stages}["read"] == 4.0  # of the batches that can be read
    assert one.step == 2.0
    assert one.both > 5.0  # examples of two batches were read one by one
    (note,) = one.notes
    assert "5: OSError: the disk has a scratch" in note
    assert "17: OSError" in note


def test_a_dataset_of_which_nothing_can_be_read():
    with pytest.raises(weft.errors.RunError, match=r"none of the 32 examples .* can be read; example \d+: OSError"):
        measured(bad=tuple(range(32)))


def test_a_whole_batch_cannot_be_read():
    bad = tuple(data.Loader(SlowExamples(FakeClock()), 8).order(0)[8:16].tolist())
    one = measured(bad=bad)
    assert one.step == 2.0
    assert "and 3 more" in one.notes[0]


def test_a_mistake_in_a_stage_is_not_a_damaged_example():
    with pytest.raises(TypeError, match="unsupported operand"):
        data_timing.stage_times([("read", lambda indices: indices + None)], [np.arange(8)], FakeClock())


def test_an_empty_dataset():
    clock = FakeClock()
    with pytest.raises(weft.UserError, match="at least one example is required, got an empty one"):
        data_bottleneck(SlowExamples(clock, count=0), lambda x, y: None, batch=8, clock=clock)


def test_median_of_stages():
    clock = FakeClock()
    costs = iter([1.0, 9.0, 2.0])
    (one,) = stage_times([("read", lambda indices: clock.takes(next(costs)))], [np.arange(2)] * 3, clock)
    assert one == StageTime("read", "loader", 2.0)


# --- real data ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path):
    """Encoded images, a Subset of them."""
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(6):
            picture = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
            picture.save(tmp_path / "photos" / name / f"{i}.png")
    made = data.create(tmp_path / "photos", tmp_path / "packed", size=(12, 12), store="lmdb", validation=0.25)
    return data.Subset(made.train, np.arange(len(made.train))[::-1])


def test_stages_of_encoded_images_give_what_the_dataset_gives(photos):
    stages = loading_stages(photos)
    assert [name for name, _ in stages] == ["read", "decode"]
    value = np.array([2, 0])
    for _, run in stages:
        value = run(value)
    np.testing.assert_array_equal(value, photos.inputs([2, 0]))


def test_cold_reads_need_a_file(photos):
    def step(x, y):
        return None

    one = data_bottleneck(photos, step, batch=4, workers=0, cores=1, cold=True, seconds=0.001)
    assert [stage.name for stage in one.stages] == ["read", "decode", "copy", "augment", "compute"]
    with pytest.raises(weft.UserError, match="cold=True requires a dataset in a file"):
        data_bottleneck(data.Arrays(np.zeros((4, 2)), [0, 1, 0, 1]), step, batch=4, cold=True)


def test_profile_of_digits(capsys):
    words = ["data=digits", "model=logistic_regression", "batch=32", "workers=0", "seconds=0.001", "json=yes"]
    profile_data([*words, "augment=light"])
    known = json.loads(capsys.readouterr().out)
    times = {stage["name"]: stage["seconds"] for stage in known["stages"]}
    assert set(times) == {"read", "copy", "augment", "compute"}
    assert times["read"] > 0
    assert times["augment"] > 0
    assert (known["batch"], known["workers"], set(known["loader"]) >= {"0", "1"}) == (32, 0, True)
    assert known["limit"] in times


def test_profile_of_memory(capsys, tmp_path):
    profile_memory(["lenet5", "batch=8", "batches=8,16", f"svg={tmp_path / 'memory.svg'}"])
    text = capsys.readouterr().out
    assert "Other batch sizes, planned" in text
    assert "nothing to checkpoint" in text
    assert (tmp_path / "memory.svg").read_text().startswith("<svg")
    infer = ["lenet5_classic", "batch=8", "what=infer", "batches=8"]
    profile_memory([*infer, "measure=yes"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("planned")
    profile_memory([*infer, "json=yes"])
    known = json.loads(capsys.readouterr().out)
    assert known["at_peak"]["activations"] == 0
    assert known["batches"][0]["total"] == known["allocated"]
    with pytest.raises(weft.UserError, match="a network, a file or a run is required"):
        profile_memory([])
    with pytest.raises(weft.errors.RunError, match="cannot be written"):
        profile_memory([*infer, f"svg={tmp_path / 'no' / 'x.svg'}"])
