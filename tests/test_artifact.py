"""`jit(f).artifact(*args)`: what a call runs, as a value that is printed, compared and hashed."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from jit_tools import counting, floats
from weft import nn, optim
from weft.graph import Graph
from weft.knobs import knobs
from weft.tracing.artifact import Artifact

W = weft.asarray([1.0, 2.0, 3.0])
TABLE = np.arange(3, dtype=np.float32)
X = floats(4, 3)


def affine(x: Any) -> Any:
    return (x * 2.0 + W).sum()


def made(f: Callable[..., Any] = affine, *args: Any, **how: Any) -> Artifact:
    return weft.jit(f, **how).artifact(*(args or (X,)))


def test_two_traces_of_a_function_are_equal() -> None:
    one, other = made(), made(affine, 2.0 * X)
    assert one == other
    assert hash(one) == hash(other)
    assert one.digest == other.digest
    assert {one: "found"}[other] == "found"
    assert one != one.digest


# One thing is another in each: none may equal the first, nor each other.
OTHERS: dict[str, Callable[[], Artifact]] = {
    "as it is": made,
    "shape": lambda: made(affine, floats(5, 3)),
    "dtype": lambda: made(affine, X.astype("float64")),
    "number in the code": lambda: made(lambda x: (x * 3.0 + W).sum()),
    "array in the code": lambda: made(lambda x: (x * 2.0 + TABLE).sum()),
    "content of the array": lambda: made(lambda x: (x * 2.0 + (TABLE + 1)).sum()),
    "precision": lambda: made(precision="bfloat16"),
    "structure of the result": lambda: made(lambda x: [(x * 2.0 + W).sum()]),
    "structure of the arguments": lambda: made(lambda x: (x[0] * 2.0 + W).sum(), [X]),
    "state is replaced": lambda: made(lambda x: (W.assign(W + 0.0), (x * 2.0 + W).sum())[1]),
    "static argument": lambda: made(lambda x, n: (x * 2.0 + W).sum(), X, 3, static="n"),
    "another value of it": lambda: made(lambda x, n: (x * 2.0 + W).sum(), X, 4, static="n"),
    "number as an argument": lambda: made(lambda x, n: (x * n + W).sum(), X, 2.0),
    "arithmetic on it": lambda: made(lambda x, n: (x * (n + 1) + W).sum(), X, 2.0),
    "other arithmetic on it": lambda: made(lambda x, n: (x * (n + 2) + W).sum(), X, 2.0),
    "an argument that comes back": lambda: made(lambda x: ((x * 2.0 + W).sum(), x), weft.asarray(X)),
}  # fmt: skip


def test_whatever_changes_the_program_changes_the_artifact() -> None:
    found = {name: make() for name, make in OTHERS.items()}
    names = {artifact: name for name, artifact in found.items()}
    assert len(names) == len(found), {*found} - {*names.values()}


@pytest.mark.parametrize(
    ("name", "value"),
    [("threads", 1), ("fast_math", 1), ("conv_algorithm", "GEMM"), ("winograd", 0), ("device", "reference")],
)
def test_every_option_changes_the_artifact(name: str, value: Any) -> None:
    with knobs.set(threads=2):
        before = made()
        with knobs.set(**{name: value}):
            after = made()
    assert before != after
    assert getattr(after.options, name) == value
    assert str(after.options) in str(after)


def test_state_is_named_by_the_path_to_it() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    optimizer = optim.sgd(net, 0.1, momentum=0.9)
    stream, parts = weft.random.Generator(3), {"scale": weft.asarray(2.0)}

    def step(x: Any) -> Any:
        loss = (net(x) * parts["scale"]).sum() + stream.uniform(()) + W.sum()
        optimizer.minimize(loss)
        return loss

    found = made(step)
    assert {"net.layers.0.weight", "net.layers.0.bias", "parts.scale", "W", "stream.key"} <= {*found.state}
    assert {*found.streams} == {"stream", "weft.random"}
    assert len({*found.state}) == len(found.state)
    assert not [name for name in found.state if name.startswith("state")]
    text = str(found)
    assert "input      state net.layers.0.weight, replaced: float32[2, 3]" in text
    assert "output     state net.layers.0.weight: float32[2, 3]" in text


def test_gradients_and_the_object_of_a_method_have_names() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = weft.parameter([1.0, 2.0, 3.0])

        @weft.jit
        def backward(self, x: Any) -> None:
            (self.w * x).sum().backward()

    model = Model()
    first = model.backward.artifact(X)
    assert [str(o) for o in first.outputs] == ["grad self.w.grad"]
    model.backward(X)
    assert "self.w.grad" in model.backward.artifact(X).state
    assert model.backward.artifact(X) != first


def test_state_that_no_path_leads_to_is_numbered() -> None:
    kept = {object(): weft.asarray(1.0)}  # in a list of an object without attributes
    find = iter(kept.values()).__next__
    [name] = made(lambda x, tensors=[find()]: x * tensors[0]).state
    assert name == "state0"


def test_it_is_plain_data() -> None:
    """No closures, tensors or buffers: they could not be saved, and would be kept alive."""
    net = nn.Linear(3, 2)

    def step(x: Any, rate: float) -> Any:
        return net(x).sum() * (rate + 1), x, W, TABLE + x

    def check(value: Any) -> None:
        if isinstance(value, tuple):
            for part in value:
                check(part)
        elif dataclasses.is_dataclass(value) and not isinstance(value, Graph):
            for field in dataclasses.fields(value):
                check(getattr(value, field.name))
        else:
            assert value is None or type(value) in (str, int, bool, bytes, Graph, type), value

    check(made(step, weft.asarray(X), 0.5))


def test_nothing_is_compiled_or_changed_and_a_program_that_is_there_is_not_traced_again() -> None:
    w = weft.asarray([0.0, 0.0, 0.0])

    def step(x: Any) -> Any:
        w.assign(w + x.sum(0))
        return w.sum()

    function, traces = counting(step)
    f = weft.jit(function)
    first = f.artifact(X)
    assert w.tolist() == [0.0, 0.0, 0.0]
    assert not f.programs.latest
    f(X)
    count = len(traces)
    assert f.artifact(X) == first
    assert len(traces) == count


def test_arguments_that_are_one_tensor_are_another_program() -> None:
    @weft.jit
    def add(a: Any, b: Any) -> None:
        a += b

    a, b = weft.asarray([1.0]), weft.asarray([2.0])
    assert add.artifact(a, b) != add.artifact(a, a)
    assert a.item() == 1.0
    assert [str(o) for o in add.artifact(a, b).outputs] == ["argument args.0"]


IN_ANOTHER_PROCESS = """
import numpy as np, weft
w = weft.asarray(np.ones(3, "float32"))
table = {"b": np.arange(3, dtype="float32")}
@weft.jit
def f(x, rate):
    w.assign(w - rate * 2 * x)
    return {"sum": (w + table["b"]).sum(), "drawn": weft.random.uniform((2,))}
digest = f.artifact(np.zeros(3, "float32"), 0.5).digest
"""


def test_the_digest_is_the_same_in_another_process() -> None:
    here: dict[str, Any] = {}
    exec(IN_ANOTHER_PROCESS, here)
    script = f"{IN_ANOTHER_PROCESS}\nprint(digest)"
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here["digest"]


def test_functions_that_are_compiled_by_themselves_are_looked_into() -> None:
    own = weft.asarray([1.0])
    inner = weft.jit(lambda x: x * own)
    inner(X)
    assert made(lambda x: inner(x)).state == ("inner.own",)
