"""The benchmark of GPUs, tried without one: rows come out, failures are results, and a process that dies costs one row."""

import gc
import importlib
import json
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

import weft
from weft.compiler.gpu.program import gpu_program
from weft.compiler.ir.program import FRAME_RESERVED
from weft.options import CompileOptions

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that measures, as the script sees it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("gpu_measure")
    monkeypatch.setattr(module.Place, "device", "cpu")
    return module


def dry(path: Path, *words: str) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--dry", "--json", str(path), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "## Summary" in done.stdout
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_dry_run(tmp_path: Path) -> None:
    found = dry(tmp_path / "a.json", "--only", "training step: mlp", "x + 1 of one", "matrix", "--peers", "none")
    rows = {(r["group"], r["name"]): r for r in found["rows"]}
    assert [group for group, _ in rows] == ["training step", *["matrix product"] * 4, "memory and calls"]
    assert all(r["failures"] == {} for r in rows.values())
    step = rows["training step", "MLP 784-300-100-10, batch 128, float32"]
    assert step["host"]["weft"] > 0
    assert 0 < step["least"]["weft"] <= step["seconds"]["weft"]
    assert step["memory"]["weft"] > 4 * 2 * 266_610  # parameters and moments
    assert step["goal_seconds"] == 5e-5
    assert {"date", "commit", "versions", "gpu", "python"} <= found.keys()
    kept = dry(tmp_path / "a.json", "--only", "x + 1 of one", "--peers", "none", "--keep")
    assert [r["name"] for r in kept["rows"]] == [r["name"] for r in found["rows"]]
    assert dry_seconds(kept) != dry_seconds(found)


def dry_seconds(found: dict[str, Any]) -> float:
    return float(found["rows"][-1]["seconds"]["weft"])


def test_no_row_begins_when_the_time_is_over(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--dry", "--budget", "0", "--json", str(tmp_path / "a.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert "MLP" not in done.stdout


def test_a_process_that_dies_costs_one_row(measuring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the process that measures: it gives a row, dies in the second, and in the third unless JAX stays away."""
    gpu = importlib.import_module("gpu")
    code = """
import json, os, sys
at = sys.argv.index("--worker")
pipe, first, without = int(sys.argv[at + 1]), int(sys.argv[at + 2]), sys.argv[sys.argv.index("--without-jax") + 1 :]
with os.fdopen(pipe, "w") as told:
    for number in range(first, 4):
        print(json.dumps({"begin": number}), file=told, flush=True)
        if number == 1 or (number == 2 and "2" not in without):
            print("a bad address", file=sys.stderr, flush=True)
            os.abort()
        print(json.dumps({"row": {"group": "g", "name": f"row {number}"}}), file=told, flush=True)
"""
    monkeypatch.setattr(gpu, "__file__", "-c")
    monkeypatch.setattr(sys, "argv", ["gpu.py", code])
    contestants = [{}, {}, {"jax": None}, {}]
    rows = [measuring.Case("g", f"row {n}", some) for n, some in enumerate(contestants)]
    monkeypatch.setattr(gpu, "_plan", lambda options: rows)
    monkeypatch.setattr(gpu, "START", gpu.time.perf_counter())
    options = gpu.argparse.Namespace(budget=60.0, peers=[], skip_compile=False)
    found = list(gpu._rows(options))
    assert [r.name for r in found] == ["row 0", "row 1", "row 2", "row 3"]
    died = "the process ended with -6: a bad address"
    assert [r.failures for r in found] == [{}, {"all": died}, {"jax": died}, {}]


def test_what_a_machine_without_network_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS.parent / "scripts"))
    wheels = importlib.import_module("gpu_wheels")
    wanted = wheels.requirements(["cuda"], {"numpy", "nvidia-cublas"})
    names = {line.split(">")[0] for line in wanted}
    assert {"llvmlite", "triton", "cuda-bindings", "nvidia-cudnn-cu13"} <= names
    assert names.isdisjoint({"numpy", "nvidia-cublas", "pytest"})
    assert not [
        line for line in wheels.requirements(["test"], set()) if line.startswith("weft")
    ]  # another project's on the package index
    words = wheels.target_words("manylinux_2_28_x86_64", "3.12")
    assert words[:2] == ["--platform", "manylinux_2_28_x86_64"]
    assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "3.12"} <= set(words)
    assert wheels.normal("ML_Dtypes") == "ml-dtypes"


@pytest.mark.parametrize("with_library", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_every_call_computes_attention_in_place(measuring: Any, backward: bool, with_library: bool) -> None:
    """On GPUs nothing is computed once for all calls, and results are written where they stay."""
    rows = importlib.import_module("gpu_attention")
    sizes = rows.Sizes(2, 256, 2, 64, True)
    inputs = [[weft.asarray(a).astype("bfloat16").realize() for a in arrays] for arrays in rows._arrays(sizes)]
    assert len({a.numpy().tobytes() for arrays in inputs for a in arrays}) == 4 * sizes.count
    step, arguments, results = (rows._weft_backward if backward else rows._weft_forward)(sizes, inputs)
    step(*arguments)
    assert len({r.numpy().tobytes() for r in results}) == len(results) == sizes.count * (3 if backward else 1)
    traced = step._for(arguments, {}).traced
    judge = (lambda kernel, claim: True) if with_library else None
    program = gpu_program(traced.graph, traced.all_updates, CompileOptions("cuda"), traced.constants, judge)
    assert {call.kind for call in program.calls} == {"plan"}  # and no copies
    assert {call.phase.symbol == "library" for call in program.calls if call.phase is not None} == {with_library}
    assert not any(call.once for call in program.calls)
    outside = FRAME_RESERVED + len(traced.graph.inputs)
    written = {slot.base for call in program.calls for slot in call.writes if FRAME_RESERVED <= slot.base < outside}
    assert written == {FRAME_RESERVED + position for position in traced.all_updates.values()}
    assert len(written) == len(results)


def test_times_are_of_one_repeat(measuring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "rounds", lambda ready, row, effort: {"torch": [4.0, 16.0], "weft": [2.0, 4.0]})
    contestants = {"torch": contestant(measuring, 1.0), "weft": contestant(measuring, 1.0)}
    row = measuring.run(measuring.Case("group", "name", contestants, flops=3e9, repeats=4), measuring.DRY)
    assert (row.seconds, row.least) == ({"torch": 2.5, "weft": 0.75}, {"torch": 1.0, "weft": 0.5})
    assert row.gflops == 4.0
    assert row.ratio == 3.0  # the median of 2 and 4


def contestant(measuring: Any, value: float, call: Any = lambda: None) -> Any:
    return lambda: measuring.Contestant(call, lambda: None, lambda: [np.array([value, 1.0])])


def test_failures_are_results(measuring: Any) -> None:
    def broken() -> Any:
        raise ValueError("not today")

    calls = []

    def tired() -> None:
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("no more")

    case = measuring.Case(
        "group", "name",
        {
            "torch": contestant(measuring, 1.0), "jax": broken, "torch graph": contestant(measuring, 1.0, tired),
            "torch compiled": contestant(measuring, 2.0), "weft": contestant(measuring, 1.0 + 1e-9),
        },
    )  # fmt: skip
    row = measuring.run(case, measuring.DRY)
    assert row.failures["jax"] == "ValueError: not today"
    assert row.failures["torch graph"] == "RuntimeError: no more"
    assert row.failures["torch compiled"].startswith("differs from torch by")
    assert set(row.seconds) == {"torch", "torch compiled", "weft"}
    assert (row.best_weft, row.best_peer) == ("weft", "torch")  # one that is wrong does not count
    assert set(row.ratios) == {"torch"}
    table = importlib.import_module("gpu_table")
    assert "**jax: ValueError: not today**" in table.line(row)
    assert table.HEAD.splitlines()[0].count("|") == table.line(row).count("|")


def test_a_captured_graph_keeps_what_it_reads(measuring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch knows what a graph writes, and not what it reads: parameters that nobody else holds would be given back."""
    gpu_torch = importlib.import_module("gpu_torch")
    monkeypatch.setattr(gpu_torch, "need", lambda name: MagicMock())
    parameters = np.ones(3)
    read = weakref.ref(parameters)

    def work(parameters: np.ndarray = parameters) -> float:
        return float(parameters.sum())

    captured = gpu_torch.Captured(work)
    del work, parameters
    gc.collect()
    assert read() is not None
    assert captured() == 3.0
    captured.graph.replay.assert_called_once_with()


def test_the_layers_of_resnet_50(measuring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring.Place, "device", "cuda")
    cases = importlib.import_module("gpu_cases")
    layers = cases.layers()
    assert sum(layers.values()) == 53
    assert sum(layer.flops * n for layer, n in layers.items()) == pytest.approx(256 * 8.17e9, rel=0.01)
    network = next(n for n in cases.TRAINED if n.network is cases.resnet50)
    assert network.flops(training=False) == pytest.approx(256 * 8.18e9, rel=0.01)
    names = [(c.group, c.name) for c in cases.cases()]
    assert len(names) == len(set(names))
