"""weft compress: the result is a run like any other, the original stays as it is, resuming is exact, and targets are met or answered."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from weft import cli, data, nn
from weft.io import load
from weft.jobs import JobQueue, replay, submit_compression, train
from weft.jobs.compression import run as compression_run
from weft.jobs.compression.compress import compress, resume_compression
from weft.jobs.compression.point import PointWriter
from weft.jobs.compression.settings import COMPRESSION, method_of, target_of
from weft.jobs.compression.state import keep_point, read_state
from weft.jobs.compression.steps import SWEPT, VALUE_STEPS, StepContext, without_channels
from weft.jobs.events import Event
from weft.jobs.find import find_run
from weft.jobs.prediction.find import find_predictor
from weft.jobs.queue.kinds import work_of
from weft.jobs.queue.run_control import resume_run
from weft.jobs.recipes import with_recipe
from weft.jobs.schema import validated
from weft.report.agreement import comparable
from weft.report.predictions import read_predictions
from weft.train import RunFolder
from weft.train import folder as folder_module

QUICK = {"steps": 1, "epochs": 2, "share_epochs": 1, "rate": 3e-3}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run, `base`."""
    folder = tmp_path_factory.mktemp("runs")
    train(with_recipe("test", {"data": "digits", "model": "mlp", "epochs": 3, "runs": str(folder), "name": "base"}))
    return folder


def settings(runs: Path, **given: Any) -> dict[str, Any]:
    return validated("test", {"run": "base", "runs": str(runs), **QUICK, **given}, COMPRESSION)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def small(runs: Path) -> Path:
    before = contents(runs / "classify" / "base")
    found = compress(settings(runs, target="size=12x", name="small"))
    assert contents(runs / "classify" / "base") == before, "the original is never touched"
    return found


def test_a_size_is_reached_and_the_result_is_a_run(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = read_state(small)
    (point,) = state["points"]
    assert point["ratio"] >= 12
    assert point["bytes"] == (small / "packed.weft").stat().st_size
    assert state["original"]["error"] < point["error"] + 0.05 < 0.2
    assert not (small / "steps").exists()
    assert point["split"] == "validation", "the test split chooses nothing"
    assert "test" in json.loads((small / "summary.json").read_text()), "it only measures what was chosen"
    assert cli.main(["eval", str(small), "split=validation", "json=true"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert 1 - measured["accuracy"] == pytest.approx(point["error"])
    assert cli.main(["runs", "show", str(small)]) == 0
    assert {event.type for event in replay(small)} >= {"run", "log", "result"}


def test_the_packed_program_predicts_what_the_run_predicts(small: Path, tmp_path: Path) -> None:
    assert cli.main(["export", str(small), f"out={tmp_path / 'whole.weft'}"]) == 0
    packed, whole = weft.load(small / "packed.weft").eval(), weft.load(tmp_path / "whole.weft").eval()
    x = np.random.default_rng(0).integers(0, 256, (5, 1, 8, 8), np.uint8)
    np.testing.assert_array_equal(weft.jit(packed)(x).numpy(), weft.jit(whole)(x).numpy())
    assert list(find_predictor("test", str(small / "packed.weft")).classes) == [str(digit) for digit in range(10)]
    weight = load(small / "weights" / "best.safetensors")["layers.1.layers.1.weight"].numpy()
    assert 0.02 < np.count_nonzero(weight) / weight.size < 0.5
    assert len(np.unique(weight)) <= 32


def test_the_report_is_the_table_of_layers(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compress", str(small), "--report"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["layer", "weights", "kept"]
    assert any(line.startswith("total") for line in lines)
    assert cli.main(["compress", str(small), "--report", "json=true"]) == 0
    assert json.loads(capsys.readouterr().out)["point"]["number"] == 1
    assert cli.main(["compress", str(small.parent / "base"), "--report"]) == 2
    assert "a compressed run is required" in capsys.readouterr().err


class Killed(Exception):
    pass


class Killer:
    """A listener that ends the process, as it were, at the event of this type and number."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.left = kind, number

    def __call__(self, event: Event) -> None:
        self.left -= event.type == self.kind
        if self.left == 0 and event.type == self.kind:
            raise Killed


@pytest.mark.parametrize(("kind", "number"), [("epoch", 1), pytest.param("epoch", 3, marks=pytest.mark.slow)])
def test_a_killed_compression_ends_with_the_same_bits(runs: Path, small: Path, kind: str, number: int) -> None:
    name = f"killed-{kind}-{number}"
    with pytest.raises(Killed):
        compress(settings(runs, target="size=12x", name=name), Killer(kind, number))
    folder = small.parent / name
    assert not read_state(folder)["done"]
    resume_compression(folder)
    for file in ("packed.weft", "weights/best.safetensors"):
        assert (folder / file).read_bytes() == (small / file).read_bytes()
    epochs = [(small / "metrics.csv").read_text(), (folder / "metrics.csv").read_text()]
    assert len(epochs[0].splitlines()) == len(epochs[1].splitlines()) == 1 + 2 + 1


@pytest.mark.sweep(share=3.0)
@pytest.mark.parametrize("moment", [
    (compression_run.Compression, "_job"), (compression_run.shutil, "copyfile"), (folder_module, "environment"), (compression_run, "compression_page"),
    (compression_run.RunFolder, "close"), (compression_run.shutil, "rmtree"),
], ids=["data", "copy", "environment", "page", "close", "end"])  # fmt: skip
def test_a_compression_killed_as_it_begins_or_ends_resumes(
    moment: tuple[Any, str], runs: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = getattr(*moment)

    def killed(*given: Any, **more: Any) -> Any:
        if given and isinstance(given[0], RunFolder) and given[0].path.name != "interrupted":
            return plain(*given, **more)  # of a training on the way
        raise Killed

    shutil.rmtree(runs / "classify" / "interrupted", ignore_errors=True)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(*moment, killed)
        compress(settings(runs, target="size=12x", name="interrupted"))
    folder = find_run("interrupted", runs)
    resume_compression(folder)
    assert {path.name for path in folder.iterdir()} == {path.name for path in small.iterdir()} | {"env.json"}
    assert json.loads((folder / "summary.json").read_text())["ended"] == "all epochs are done"
    assert read_state(folder)["done"]
    for file in ("packed.weft", "weights/best.safetensors"):
        assert (folder / file).read_bytes() == (small / file).read_bytes()


def test_a_sweep_writes_a_pareto_page(runs: Path) -> None:
    folder = compress(settings(runs, density="0.4,0.1", epochs=1, method="prune,share,huffman", tolerance=100))
    state = read_state(folder)
    assert folder.name == "base-small-1"
    assert [point["density"] for point in state["points"]] == [0.4, 0.1]
    assert state["points"][0]["ratio"] < state["points"][1]["ratio"]
    assert state["chosen"] == 2, "the smallest of those that lose no more than the tolerance"
    page = (folder / "compression.html").read_text()
    assert page.count("<svg") == 2
    assert state["original"]["ratio"] < 1.0, "the original is packed without rounding"
    assert "<b>2</b>" in page, "the point that is kept is marked"
    for text in ("Compression of base", "Pareto front", "Share of bytes before and after", "layers.1.layers.2"):
        assert text in page
    for number in (1, 2):
        assert cli.main(["eval", str(folder / "points" / str(number))]) == 0, "every point is a run"
    with pytest.raises(weft.UserError, match="is compressed already"):
        compress(settings(runs, run=str(folder)))


def test_targets_that_cannot_be_reached_are_answered_with_the_nearest_point(runs: Path) -> None:
    before = sorted((runs / "classify").iterdir())
    with pytest.raises(
        weft.RunError,
        match=r"size=9000x cannot be reached with method=prune,share,rans bits=5: the nearest point found is [0-9.]+ times smaller",
    ):
        compress(settings(runs, target="size=9000x"))
    assert sorted((runs / "classify").iterdir()) == before
    with pytest.raises(
        weft.RunError,
        match=r"error=\+0% cannot be reached: the nearest point found has \+[0-9.]+ points of error and is [0-9.]+ times smaller",
    ):
        compress(settings(runs, target="error=+0%", name="hopeless", bits=1, epochs=1, rate=1e-9, share_rate=1e-9))


def test_a_point_that_loses_more_than_the_tolerance_is_kept_with_a_warning(runs: Path) -> None:
    events: list[Event] = []
    compress(settings(runs, method="prune", density="0.00001", epochs=1, name="empty"), events.append)
    (warning,) = [event["text"] for event in events if event.type == "log" and event["level"] == "warning"]
    assert re.match(
        r"the run that was kept has [0-9.]+ points more error than the original: no point loses at most tolerance=0.1, and this one has the least error",
        warning,
    )


def test_a_compression_is_a_job_of_the_queue(runs: Path) -> None:
    queue = JobQueue(runs)
    job = submit_compression(queue, {"run": "base", "density": 0.3, "name": "queued", **QUICK, "epochs": 1})
    assert job.kind == "compress"
    events: list[Event] = []
    work_of(job.kind)(job.settings, None, events.append)
    assert [event.type for event in events].count("epoch") == 2
    assert read_state(runs / "classify" / "queued")["done"]
    with pytest.raises(weft.UserError, match="a target or densities"):
        submit_compression(queue, {"run": "base", "density": 0.3, "target": "size=5x"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": "size=0.5x"}, "a target such as target=size=20x"),
        ({"target": "speed=fast"}, "a target such as target=size=20x"),
        (
            {"target": "speed=3x", "method": "prune,rans"},
            "is reached by removing channels: use method=channels,share,rans",
        ),
        (
            {"method": "prune,zip"},
            "a method of channels, low_rank, prune, share, int8, fixed:8, huffman, rans is required, got 'zip'",
        ),
        ({"method": "prune,huffman"}, "huffman needs share"),
        ({"method": "rans"}, "are required in this order, got rans"),
        ({"method": "share,prune"}, "are required in this order, got share,prune"),
        ({"method": "share,int8"}, "are required in this order"),
        ({"target": "size=infx"}, "is required, got 'size=infx'"),
        ({"target": "error=+inf%"}, "is required, got 'error=\\+inf%'"),
        ({"target": "device=nonsense"}, "cannot be 'nonsense': it must be one of cpu"),
        (
            {"target": "device=tpu", "method": "int8"},
            "latency can be measured is required, got tpu. Use cpu or cuda; for tpu use method=int8",
        ),
        ({"target": "speed=3x,device=null"}, "latency can be measured is required, got null"),
        ({"device": "null"}, "latency can be measured is required, got null"),
        ({"method": "fixed:3"}, "fixed:4 to fixed:16 is required, got fixed:3"),
        ({"method": "share,rans", "target": "size=3x"}, "is reached by pruning"),
        ({"run": "nothing"}, "is no folder of a run"),
    ],
)
def test_bad_settings_are_refused(runs: Path, given: dict[str, Any], message: str) -> None:
    before = set(runs.rglob("*"))
    with pytest.raises(weft.UserError, match=message):
        compress(settings(runs, **given))
    assert set(runs.rglob("*")) == before, "no run is left behind"


def test_a_run_whose_data_is_gone_leaves_nothing_behind(runs: Path) -> None:
    moved = runs / "classify" / "moved"
    shutil.copytree(runs / "classify" / "base", moved)
    lines = (moved / "args.yaml").read_text()
    (moved / "args.yaml").write_text(re.sub("^data: .*", "data: missing", lines, flags=re.MULTILINE))
    before = set(runs.rglob("*"))
    with pytest.raises(weft.UserError, match="'missing' is neither a file, nor a folder"):
        compress(settings(runs, run="moved", name="never"))
    assert set(runs.rglob("*")) == before
    own = runs / "classify" / "never" / "notes.txt"  # a folder that is no run of ours
    own.parent.mkdir()
    own.write_text("mine")
    with pytest.raises(weft.UserError, match="'missing' is neither a file, nor a folder"):
        compress(settings(runs, run="moved", name="never", exist_ok=True))
    assert own.read_text() == "mine"


def test_calibration_takes_examples_of_the_whole_training_set() -> None:
    train = data.Arrays(np.arange(1000, dtype=np.float32)[:, None], np.repeat(np.arange(10), 100))  # sorted by class
    job: Any = SimpleNamespace(train=train, prepare=nn.Identity)
    method = method_of({"method": "int8"})
    writer = PointWriter(Path("unused"), job, {}, method, True, None)
    assert sorted(set(writer.inputs(256).numpy()[:, 0] // 100)) == list(range(10))
    assert writer.inputs(2000).numpy()[:, 0].tolist() == list(range(1000))


def test_targets_are_written_as_commands_write_them() -> None:
    assert str(target_of("size=20x")) == "size=20x"
    assert str(target_of("error=+0.1%")) == str(target_of("error=0.1")) == "error=+0.1%"
    assert target_of(None) is None
    assert str(target_of("speed=3x, device=cuda")) == "speed=3x,device=cuda"
    assert str(target_of("device=cuda:1")) == "device=cuda:1"


def test_methods_that_change_layers_give_runs_like_any_other(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"method": "channels,low_rank,prune,int8,huffman", "density": 0.3, "energy": 0.8, "epochs": 1}
    folder = compress(settings(runs, name="rewritten", **given))
    state = read_state(folder)
    (point,) = state["points"]
    assert point["ratio"] > 3
    assert 0 < point["joules"] < 0.5 * state["original"]["joules"], "fewer operations, on bytes"
    call = weft.profile(weft.jit(weft.load(folder / "packed.weft").eval()), np.zeros((1, 1, 8, 8), np.uint8))
    assert point["joules"] == pytest.approx(call.total.joules), "of one example"
    assert "<th class=number>energy, modelled</th>" in (folder / "compression.html").read_text()
    assert [row["name"] for row in point["layers"]] == [row["name"] for row in state["original"]["layers"]]
    assert sum(row["before"] for row in point["layers"]) == sum(row["before"] for row in state["original"]["layers"])
    assert cli.main(["eval", str(folder), "split=validation", "json=true"]) == 0
    assert 1 - json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(point["error"])
    assert cli.main(["export", str(folder), f"out={tmp_path / 'whole.weft'}"]) == 0
    packed, whole = weft.load(folder / "packed.weft").eval(), weft.load(tmp_path / "whole.weft").eval()
    x = np.random.default_rng(0).integers(0, 256, (5, 1, 8, 8), np.uint8)
    np.testing.assert_array_equal(weft.jit(packed)(x).numpy(), weft.jit(whole)(x).numpy())
    network = weft.load(folder / "network.weft")
    integers = {name for name, tensor in network.named_tensors().items() if tensor.dtype == weft.int8}
    assert integers, "the weights are kept as integers"
    assert not any(tensor.ndim > 1 for name, tensor in network.named_tensors().items() if name not in integers)
    assert "int32" in network.graph_text("eval"), "the run computes with them: products of int8 are summed in int32"
    assert cli.main(["compress", str(folder), "--report"]) == 0
    said = capsys.readouterr().out
    assert "layers.1.layers.1" in said
    assert re.search(r"energy of one example, modelled: [\d.]+ [un]J, of the original [\d.]+ uJ", said)
    both = [read_predictions(runs / "classify" / name) for name in ("base", "rewritten")]
    assert comparable([one for one in both if one is not None]), "both were measured on the same examples"
    assert [one.split for one in both if one is not None] == ["test", "test"]


@pytest.mark.parametrize(
    ("step", "share", "trainings", "distinct"),
    [("channels", 0.5, 2, None), ("low_rank", 0.5, 1, None), ("prune", 0.1, 2, None), ("share", 3, 1, 8), ("int8", 8, 1, 255), ("fixed", 5, 1, 32)],
)  # fmt: skip
def test_each_step_changes_the_network_and_trains_it(
    step: str, share: float, trainings: int, distinct: int | None
) -> None:
    weft.seed(0)
    model = weft.nn.Sequential(weft.nn.Linear(20, 40, activation="relu"), weft.nn.Linear(40, 5))
    x = weft.random.normal((8, 20))
    before, told = model(x).numpy(), list[str]()
    context = StepContext({}, x, lambda: x, lambda network, name, what, has_values: told.append(name))
    if distinct is None:
        SWEPT[step](context, model, share, "1", 2)
    else:
        VALUE_STEPS[step](context, model, int(share), "1")
        values = model.layers[0].weight.numpy()
        assert len(np.unique(values[0] if step == "int8" else values)) <= distinct, "int8 has a scale for each output"
    assert len(told) == len(set(told)) == trainings
    assert told[0].startswith(f"{step}-1")
    if step == "channels":
        without_channels(context, model)
        assert model.layers[0].weight.shape == (20, 20)
    assert not np.array_equal(model(x).numpy(), before)


def test_a_speed_is_reached_by_removing_channels_and_resumes_exactly(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.jobs.compression.targets.WIDTHS", (0.5,))
    given = {"target": "speed=1x,device=cpu", "epochs": 1}
    with pytest.raises(Killed):
        compress(settings(runs, name="fast", **given), Killer("epoch", 1))
    folder = runs / "classify" / "fast"
    place = read_state(folder)["width_place"]
    resume_compression(folder)
    state = read_state(folder)
    (point, *_) = state["points"]
    assert (state["width_place"], point["device"]) == (place, "cpu")
    assert state["points"][state["chosen"] - 1]["speed"] >= 1
    kept = load(folder / "points" / "1" / "weights" / "best.safetensors")["layers.1.layers.1.weight"]
    assert (
        kept.shape[0]
        < load(runs / "classify" / "base" / "weights" / "best.safetensors")["layers.1.layers.1.weight"].shape[0]
    )
    with pytest.raises(
        weft.RunError, match=r"speed=9000x cannot be reached .* the nearest point found is [0-9.]+ times as fast, with"
    ):
        compress(settings(runs, target="speed=9000x"))


def test_a_point_is_kept_as_a_run_of_its_own(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compress", str(small), "keep=1", "name=kept"]) == 0
    kept = small.parent / "kept"
    assert (kept / "packed.weft").read_bytes() == (small / "packed.weft").read_bytes()
    assert (kept / "metrics.csv").read_text() == (small / "metrics.csv").read_text()
    assert read_state(kept)["chosen"] == 1
    assert (kept / "evaluation.json").exists()
    assert (kept / "env.json").read_text() == (small / "env.json").read_text()
    assert cli.main(["eval", str(kept)]) == 0
    assert cli.main(["compress", str(kept), "--report"]) == 0
    with pytest.raises(weft.UserError, match=r"a point of small is required \(1\), got 7"):
        keep_point(small, 7)
    with pytest.raises(weft.UserError, match="a new run is required"):
        keep_point(small, 1, "kept")
    assert keep_point(small, 1).name == "base-point1-1"


def test_a_stopped_compression_resumes_as_a_compression(small: Path, runs: Path) -> None:
    job = resume_run(JobQueue(runs), small)
    assert (job.kind, job.settings["target"]) == ("compress", "size=12x")
    with pytest.raises(weft.UserError, match="a training is required to add epochs to"):
        resume_run(JobQueue(runs), small, epochs=99)
