"""Timelines: every thread and stream has a row, on one clock, in a file that keeps the rules of the trace event format."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import weft
from trace_tools import Events, checked, names
from weft import data, insight, nn, optim
from weft.cli import main
from weft.errors import RunError, UserError
from weft.knobs import knobs
from weft.timeline import RECORDING, CallLabel, CallSpan, TimelineRow, with_parents


@pytest.fixture(scope="module")
def model() -> nn.Module:
    found = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(None, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    found(weft.ones((64, 1, 16, 16)))
    return found


def training_step(model: nn.Module) -> Any:
    optimizer = optim.sgd(model.parameters(), 0.01)

    @weft.jit
    def step(x: weft.Tensor) -> weft.Tensor:
        loss = (model(x.astype("float32")) ** 2).mean()
        optimizer.minimize(loss)
        return loss

    return step


@pytest.fixture(scope="module")
def training(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Events:
    """The trace of some steps on two threads, with data from a loader."""
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    examples = data.Arrays(np.ones((192, 1, 16, 16), np.uint8), np.zeros(192, np.int64), ["a"], "ones")
    with knobs.set(threads=2):
        step = training_step(model)
        with insight.trace(path):
            for epoch in range(2):
                with insight.annotate("epoch", number=epoch):
                    for x, _ in data.Loader(examples, 64, workers=1):
                        step(x).item()
    return checked(path)


def test_a_training_has_rows_for_all_threads(training: Events) -> None:
    assert list(training) == ["main thread", "CPU worker 1", "data loader 0"]


def test_the_main_thread_compiles_waits_and_calls(training: Events) -> None:
    main = training["main thread"]
    assert names(main, "compile") == ["trace step", "compile step", "prepare the trace of step"]
    assert names(main, "call").count("step") == 6
    assert names(main, "wait") == 6 * ["wait for data"]
    assert names(main, "user") == ["epoch", "epoch"]
    assert [event["args"] for event in main if event["cat"] == "user"] == [{"number": 0}, {"number": 1}]


def test_every_thread_of_the_team_has_the_kernels_below_layers_and_phases(training: Events) -> None:
    for row in ("main thread", "CPU worker 1"):
        kernels = [
            event for event in training[row] if event["cat"] == "kernel" and event["args"]["layer"] == "layers.3"
        ]
        assert len(kernels) >= 6 * 2, row
        assert {event["args"]["phase"] for event in kernels} == {"forward", "backward"}
        assert {"layers.0", "layers.3", "layers.5", "optimizer"} <= set(names(training[row], "layer"))
        assert set(names(training[row], "phase")) == {"forward", "backward", "update"}
    counts = {row: sum("matmul" in name for name in names(training[row], "kernel")) for row in list(training)[:2]}
    assert len(set(counts.values())) == 1


def test_kernels_are_inside_of_the_call_that_runs_them(training: Events) -> None:
    calls = [(event["ts"], event["ts"] + event["dur"]) for event in training["main thread"] if event["cat"] == "call"]
    for row in ("main thread", "CPU worker 1"):
        for event in training[row]:
            if event["cat"] == "kernel":
                assert any(begin <= event["ts"] and event["ts"] + event["dur"] <= end + 1e-3 for begin, end in calls)


def test_the_loader_loads_each_batch(training: Events) -> None:
    loaded = training["data loader 0"]
    assert names(loaded, "data") == 6 * ["load a batch"]
    assert all(event["args"] == {"examples": 64} for event in loaded)


def test_a_recorded_program_computes_the_same(model: nn.Module, tmp_path: Path) -> None:
    x = weft.random.Generator(3).normal((8, 1, 16, 16))
    forward = weft.jit(lambda x: model(x))
    plain = forward(x).numpy()
    with insight.trace(tmp_path / "trace.json"):
        recorded = forward(x).numpy()
    assert np.array_equal(plain, recorded)
    assert np.array_equal(plain, forward(x).numpy())


def test_nothing_is_recorded_without_a_trace(tmp_path: Path) -> None:
    add = weft.jit(lambda x: x + 1)
    add(weft.ones(3))
    with insight.trace(tmp_path / "trace.json") as timeline:
        pass
    add(weft.ones(3))
    assert RECORDING.active is None
    assert timeline.slices() == []
    assert checked(tmp_path / "trace.json") == {}


def test_several_threads_of_python_have_rows(tmp_path: Path) -> None:
    add = weft.jit(lambda x: x + 1)
    with insight.trace(tmp_path / "trace.json"):
        threads = [
            threading.Thread(target=add, args=(weft.ones(3).realize(),), name=name) for name in ("left", "right")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = checked(tmp_path / "trace.json")
    assert all(names(found[name], "call") == ["<lambda>"] for name in ("left", "right"))


def test_persistent_values_and_control_flow(tmp_path: Path) -> None:
    """Calls that run once are on the timeline of the run in which they ran; a loop is one slice."""
    layer, x = nn.Linear(64, 64), weft.ones((64, 64))
    loop = weft.jit(lambda x: weft.fori_loop(0, 3, lambda i, x: weft.tanh(layer(x)), x))
    with insight.trace(tmp_path / "trace.json"):
        expected = loop(x).numpy()
        assert np.array_equal(loop(x).numpy(), expected)
    assert any("kernels)" in name for name in names(checked(tmp_path / "trace.json")["main thread"], "kernel"))


def test_recording_ends_at_the_limit_and_the_work_goes_on(tmp_path: Path) -> None:
    add = weft.jit(lambda x: x + 1)
    with insight.trace(tmp_path / "trace.json", limit=8) as timeline:
        values = [add(weft.ones(3)).tolist() for _ in range(10)]
        assert RECORDING.active is None
    assert values == 10 * [[2, 2, 2]]
    assert timeline.is_full
    assert "recording ended after 8 slices" in (tmp_path / "trace.json").read_text()
    checked(tmp_path / "trace.json")


def test_an_error_inside_leaves_the_trace_and_ends_recording(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="out of range"), insight.trace(tmp_path / "trace.json"):
        weft.jit(lambda x, i: x[i])(weft.ones(3), weft.asarray([5])).tolist()
    assert RECORDING.active is None
    assert names(checked(tmp_path / "trace.json")["main thread"], "compile")


@pytest.mark.parametrize(
    ("path", "settings", "message"),
    [
        ("gone/trace.json", {}, r"gone.trace\.json needs a folder that exists, got .*gone"),
        ("trace.json", {"limit": 0}, "limit is a number of slices from 1, got 0"),
    ],
)
def test_what_cannot_be_recorded(tmp_path: Path, path: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message), insight.trace(tmp_path / path, **settings):
        pass
    assert RECORDING.active is None


def test_one_trace_at_a_time(tmp_path: Path) -> None:
    with insight.trace(tmp_path / "a.json"):
        with pytest.raises(UserError, match="one trace is recorded at a time"), insight.trace(tmp_path / "b.json"):
            pass
        assert RECORDING.active is not None


def test_calls_of_one_layer_share_a_parent() -> None:
    def span(begin: int, layer: str, phase: str) -> CallSpan:
        return CallSpan(begin, begin + 1, CallLabel("k", layer, phase, {}))

    calls = [span(0, "a", "forward"), span(2, "a", "forward"), span(4, "b", "forward"), span(6, "b", "backward")]
    found = [(s.category, s.name, s.begin, s.end) for s in with_parents(TimelineRow("host", "row"), calls)]
    assert [one for one in found if one[0] != "kernel"] == [
        ("phase", "forward", 0, 5),
        ("layer", "a", 0, 3),
        ("layer", "b", 4, 5),
        ("phase", "backward", 6, 7),
        ("layer", "b", 6, 7),
    ]


def test_weft_train_writes_a_trace_that_is_no_setting_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []

    def train(settings: dict[str, Any], listener: Any) -> None:
        given.append(settings)
        weft.jit(lambda x: x + 1)(weft.ones(3))

    monkeypatch.setattr("weft.cli.training_parts.train", train)
    assert main(["train", "digits", f"trace={tmp_path / 'trace.json'}"]) == 0
    assert "trace" not in given[0]
    assert "<lambda>" in names(checked(tmp_path / "trace.json")["main thread"], "call")


def test_weft_profile_writes_calls_without_what_they_take_to_compile(tmp_path: Path) -> None:
    assert (
        main(["profile", "mlp", "size=8", "classes=3", "seconds=0", "batch=2", f"trace={tmp_path / 'trace.json'}"]) == 0
    )
    found = checked(tmp_path / "trace.json")["main thread"]
    assert names(found, "user") == [f"call {number} on cpu" for number in range(1, 6)]
    assert len(names(found, "call")) == 5
    assert not names(found, "compile")


def test_reading_and_decoding_images_are_slices_apart(tmp_path: Path) -> None:
    picture = Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3))
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(3):
            picture.save(tmp_path / "photos" / name / f"{number}.png")
    made = data.create(tmp_path / "photos", tmp_path / "packed", size=(8, 8), store="lmdb", validation=0.34, workers=0)
    loader = data.Loader(made.train, 2, shuffle=False, workers=0)
    plain = [x.numpy() for x, _ in loader]
    with insight.trace(tmp_path / "trace.json"):
        recorded = [x.numpy() for x, _ in loader]
    assert all(np.array_equal(a, b) for a, b in zip(plain, recorded, strict=True))
    found = checked(tmp_path / "trace.json")["main thread"]
    assert names(found, "data")[:3] == ["load a batch", "read", "decode"]
