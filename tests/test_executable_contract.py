"""What every device promises of a compiled program: the same checks on the CPU, the reference, the null device and a made-up GPU."""

import ast
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


# --- devices are asked what they can do, not who they are ------------------------------------------------------------------------------

KINDS = {"cpu", "cuda", "null", "reference", "tpu"}
CONSTANTS = {"CPU", "CUDA"}  # of weft/device_names.py
DEVICE_CLASS = re.compile(r"(Cuda|Cpu|Null|Reference|Array|Compiling|Tpu)Device|(Native|Cuda|Null|Tpu)Executable")
MAY_ASK = re.compile(r"cuda|device\b|Device\b|Executable\b")  # files without these words need not be parsed
EXEMPT = {"device_names.py", "extend.py"}  # read settings for everybody; offers `ArrayDevice` to write devices with


def questions_of_identity(tree: ast.AST) -> Iterator[str]:
    """The expressions of a file that depend on which device it is: its name compared with a certain one, its class, or "cuda" in the code."""
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            if node.value.partition(":")[0] == "cuda":
                yield repr(node.value)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(_is_device_name(side) for side in sides) and any(_is_a_certain_device(side) for side in sides):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_device_name(node.func.value):
            if node.func.attr in ("startswith", "partition", "removeprefix", "split"):
                yield ast.unparse(node)
        elif isinstance(node, ast.Match) and _is_device_name(node.subject):
            yield f"match {ast.unparse(node.subject)}"
        elif isinstance(node, ast.ImportFrom) and "runtime.cuda" in (node.module or ""):
            yield f"from {node.module}"
        elif DEVICE_CLASS.fullmatch(_name_of(node)):
            yield _name_of(node)


def _name_of(node: ast.AST) -> str:
    """The last name of what an expression or an import refers to; empty for other code."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.name if isinstance(node, ast.alias) else ""


def _is_device_name(node: ast.expr) -> bool:
    """Whether it is a device, or its name: `device`, `self.device.name`, `device().name`."""
    if isinstance(node, ast.Attribute) and node.attr == "name":
        node = node.value
    if isinstance(node, ast.Call):
        node = node.func
    return _name_of(node).endswith("device")


def _is_a_certain_device(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(_is_a_certain_device, node.elts))
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.partition(":")[0] in KINDS
    return isinstance(node, ast.Name) and node.id in CONSTANTS


@pytest.mark.parametrize(
    "code",
    [
        'device.name == "cpu"', 'device().name != "cpu"', '"null" == self.device.name', 'run.device.name in ("cpu", "reference")',
        "device.name == CPU", 'device == "tpu"', 'name.startswith("cuda")', 'f"cuda:{i}"', 'device.name.startswith("c")',
        "isinstance(device, CudaDevice)", "from ..runtime.array_device import ArrayDevice", "from ..runtime.cuda import memory",
        "match device.name:\n    case 'cpu': pass", "executable: NativeExecutable",
    ],
)  # fmt: skip
def test_questions_of_identity_are_found(code: str) -> None:
    assert list(questions_of_identity(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "device.is_accelerator", 'told["device"] not in (None, device.name)', '"""On a GPU: device=cuda."""', 'value.dtype == "python"',
        "read_device_name(device).is_gpu", 'slot.kind == "cpu"', "isinstance(x, Device)",
    ],
)  # fmt: skip
def test_questions_of_ability_are_allowed(code: str) -> None:
    assert not list(questions_of_identity(ast.parse(code)))


def test_nothing_above_the_runtime_asks_which_device_it_is() -> None:
    """Devices state facts, such as `is_accelerator`, and implement the whole protocol."""
    root = Path(weft.__file__).parent
    below = {root / "runtime", root / "compiler" / "gpu", root / "tpu"}  # devices themselves
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not below & {*path.parents} and name not in EXEMPT and MAY_ASK.search(text := path.read_text()):
            found += [f"{name}: {question}" for question in questions_of_identity(ast.parse(text))]
    assert found == [], "ask the device for a fact (weft/runtime/device.py), or read its name with read_device_name"
