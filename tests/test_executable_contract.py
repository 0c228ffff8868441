"""What every device promises of a compiled program: the same checks on the CPU, the reference, the null device and a made-up GPU."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_gpu
import weft
from jit_tools import floats
from weft.errors import RunError
from weft.graph import Graph
from weft.knobs import knobs
from weft.runtime.device import Device, Executable
from weft.runtime.facts import GpuRoof

X = floats(6, 5)
KEEPS_VALUES = ("cpu", "reference", "cuda")
MEMBERS = sorted(name for name in {*vars(Executable), *Executable.__annotations__} if not name.startswith("_"))


@pytest.fixture(params=[*KEEPS_VALUES, "null"])
def device(request: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Device]:
    if request.param == "cuda":
        fake_gpu.install(monkeypatch)
    with knobs.set(device=request.param, threads=1, cache=str(tmp_path)):
        yield weft.device()


def norm(x: Any) -> Any:
    centred = x - x.mean(axis=1, keepdims=True)
    return (centred @ centred.mT).sum(axis=0)


def made(f: Any, *args: Any) -> tuple[Executable, list[Any], list[int]]:
    """The executable of a call, and the memory and addresses of its inputs."""
    compiled = weft.jit(f)._for(args, {})
    held, addresses = compiled.inputs(args)
    return compiled.executable, held, addresses


def test_it_has_every_member_of_the_protocol(device: Device) -> None:
    executable, _, _ = made(norm, X)
    assert {"call", "argument", "profile", "sources", "passes", "roof", "facts", "seconds"} <= {*MEMBERS}
    for name in MEMBERS:
        assert hasattr(executable, name), name
        assert callable(getattr(executable, name)) == callable(getattr(Executable, name, None)), name


def test_it_keeps_its_graph_and_its_options(device: Device) -> None:
    executable, _, _ = made(norm, X)
    assert executable.graph == weft.jit(norm).lower(X)
    assert executable.options.device == device.name
    assert executable.updates == {}


def test_a_call_gives_results_of_the_right_type(device: Device) -> None:
    executable, held, addresses = made(norm, X)
    [content] = executable.call(addresses)
    result = weft.jit(norm)(X)
    assert (result.shape, result.dtype, result.device) == ((6,), weft.float32, device)
    if device.name in KEEPS_VALUES:
        centred = X - X.mean(axis=1, keepdims=True)
        np.testing.assert_allclose(result.numpy(), (centred @ centred.T).sum(axis=0), rtol=1e-4, atol=1e-5)
        assert content is not None
    del held


def test_state_is_replaced_and_looking_inside_replaces_nothing(device: Device) -> None:
    w = weft.asarray(X[0])

    @weft.jit
    def step(x: Any) -> Any:
        w.assign(w + x.sum(axis=0))
        return w.sum()

    step(X)
    node, version = w._node, w._node.value.version
    step.explain(X)
    step.passes(X)
    step.sources(X)
    step.memory(X)
    assert (w._node, w._node.value.version) == (node, version)
    if device.name in KEEPS_VALUES:
        np.testing.assert_allclose(w.numpy(), X[0] + X.sum(axis=0), rtol=1e-5)
    step(X)
    assert w.device is device
    assert w._node.value.version > version


def test_its_memory_is_that_of_the_plan(device: Device) -> None:
    executable, _, _ = made(norm, X)
    options, constants = device.compile_options(), frozenset[int]()
    assert asdict(device.planned(executable.graph, {}, options, constants))["arena"] == executable.facts.arena
    assert executable.program.memory.arena == executable.facts.arena
    assert isinstance(executable.workspace_bytes, int)
    assert weft.jit(norm).memory(X).arguments == X.nbytes


def test_its_passes_and_sources_are_text(device: Device) -> None:
    executable, _, _ = made(norm, X)
    assert all(isinstance(graph, Graph) and "def graph" in graph.text() for graph in executable.passes().values())
    assert executable.passes()
    assert all(isinstance(text, str) for text in executable.sources())
    assert bool(executable.sources()) == (device.name in KEEPS_VALUES)
    assert executable.notes() == []


def test_its_time_is_explained(device: Device) -> None:
    executable, held, addresses = made(norm, X)
    before = X.copy()
    profile = executable.profile(addresses, 2)
    assert [timed.call for timed in profile.calls] == profile.program.calls
    assert all(timed.seconds > 0 for timed in profile.calls)
    assert profile.runs == 2
    assert executable.seconds(addresses) > 0
    assert executable.roof().seconds(1e9, 1e9) >= 0
    assert executable.roof().bandwidth > 0
    found = weft.jit(norm).explain(X)
    assert len(found.rows) == len(profile.calls)
    assert executable.where in str(found)
    assert str(executable.roof()) in str(found)
    assert json.loads(found.to_json())["kernels"] == found.kernels
    np.testing.assert_array_equal(X, before)
    del held


def test_what_is_said_of_it_is_said_of_the_code_that_runs(device: Device) -> None:
    """Whatever the settings are by then."""

    def scaled(x: Any) -> Any:
        return weft.sum(0.5 * x)  # with fast_math the sum comes first

    executable, _, _ = made(scaled, X)
    told = executable.sources(), [g.text() for g in executable.passes().values()]
    with knobs.set(fast_math=1):
        assert (executable.sources(), [g.text() for g in executable.passes().values()]) == told
        other, _, _ = made(scaled, X)
        assert other.options != executable.options
        assert [g.text() for g in other.passes().values()] != told[1]


def test_the_roof_of_a_gpu_program_is_that_of_its_own_precision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not that of the settings when somebody asks."""
    fake_gpu.install(monkeypatch)
    with knobs.set(device="cuda", cache=str(tmp_path)):
        with knobs.set(tf32=1):
            rounded, _, _ = made(norm, X)
        exact, _, _ = made(norm, X)
        rates = {"half": 8.0, "tf32": 4.0, "single": 1.0, "bandwidth": 1e9}
        monkeypatch.setattr("weft.runtime.cuda.executable.gpu_roof", lambda *_: GpuRoof(**rates))
        assert (rounded.roof().seconds(4.0, 0.0), exact.roof().seconds(4.0, 0.0)) == (1.0, 4.0)


def test_the_null_device_loses_no_values_and_moves_no_streams() -> None:
    w, draws = weft.asarray(X[0]), weft.random.Generator(1)
    before = draws.offset.item()

    def step(x: Any) -> Any:
        w.assign(w + x.sum(axis=0))

    with knobs.set(device="null"):
        with pytest.raises(
            RunError, match=r"\[null\] state must be on the null device to be replaced there, got a tensor on cpu"
        ):
            weft.jit(step)(X)
        weft.jit(lambda: draws.uniform((2,)))()
    assert w.numpy().tolist() == X[0].tolist()
    assert draws.offset.item() == before


def test_nothing_above_the_runtime_asks_which_device_it_is() -> None:
    """Devices state facts, such as `is_accelerator`, and implement the whole protocol."""
    asks = re.compile(
        r"""runtime\.cuda|[!=]=\s*["']cuda|isinstance\([^)]*\b(Cuda|Cpu|Null|Reference|Array|Compiling)Device|(Native|Cuda|Null)Executable"""
    )
    root = Path(weft.__file__).parent
    below = {root / "runtime", root / "compiler" / "gpu", root / "tpu"}  # devices themselves
    found = []
    for path in sorted(root.rglob("*.py")):
        if not below & {*path.parents}:
            found += [f"{path.relative_to(root)}: {match[0]}" for match in asks.finditer(path.read_text())]
    # The times of the CPU's algorithms are measured on a given number of threads.
    assert [line for line in found if not line.startswith("algorithms.py: NativeExecutable")] == []
