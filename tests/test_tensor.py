"""Checks the tensor: when it computes, what it keeps, how it changes in place, where it lives, what it takes and gives."""

import copy
import gc
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.graph import node
from weft.runtime.cpu import CpuDevice
from weft.runtime.device import _devices
from weft.tensor import wrap

T = weft.Tensor


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many nodes each run computed, from now on."""
    counts: list[int] = []
    plain = CpuDevice.run
    monkeypatch.setattr(CpuDevice, "run", lambda self, p: counts.append(len(p.order)) or plain(self, p))
    return counts


def vector(*values: float) -> T:
    return weft.asarray(np.array(values, "float32"))


# --- looking ---------------------------------------------------------------------------------------------------------


def test_nothing_is_computed_before_somebody_looks(runs: list[int]) -> None:
    weft.seed(0)  # the position of the global stream may be old work, which is done when it has waited for long
    x, w = vector(1.0, 2.0, 3.0), weft.parameter([1.0, 2.0, 3.0])
    y = weft.softmax(x @ x * w)[::-1].at[0].set(5.0)
    y[1:] = weft.random.normal((2,))
    y += weft.scan(lambda s, v: (s + v, s), weft.asarray(0.0), x)[0]
    (y * w).sum().backward()
    w -= 0.1 * w.grad
    slope = weft.grad(lambda v: weft.cond(v.sum() > 0.0, lambda: v.sum(), lambda: v.max()))(x)
    assert (y.shape, y.dtype, y.ndim, y.size, len(y), slope.shape) == ((3,), weft.float32, 1, 3, 3, (3,))
    assert len(y.graph().nodes) > 5
    assert runs == []


LOOKS: dict[str, Callable[[T], Any]] = {
    "realize": T.realize, "numpy": T.numpy, "item": T.item, "tolist": T.tolist, "repr": repr, "bool": bool, "int": int,
    "float": float, "complex": complex, "format": lambda x: f"{x:.2f}", "asarray": np.asarray, "str": str,
}  # fmt: skip


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_looking_computes_once(look: Callable[[T], Any], runs: list[int]) -> None:
    x = vector(2.0, 3.0).sum()
    look(x)
    look(x)
    repr(x), float(x)
    assert len(runs) == 1


def test_what_tensors_name_on_the_way_is_kept(runs: list[int]) -> None:
    a = weft.sin(vector(1.0, 2.0))
    b = weft.exp(weft.exp(a))
    b.numpy()
    assert runs == [3]
    assert a.numpy() is not None  # known from the way to b
    weft.cos(a + b).numpy()
    assert runs == [3, 2]


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("tracked", [True, False])  # the history of parameters is kept, the values in it are not
def test_what_nobody_reads_again_is_not_kept(device: str, tracked: bool) -> None:
    with weft.knobs.set(device=device):
        x = weft.parameter([1.0, 2.0]) if tracked else vector(1.0, 2.0)
        inner = weft.sin(x).node
        y = weft.exp(weft.cos(wrap(inner)))
        between = y.node.inputs[0]
        later = weft.tanh(wrap(inner))  # not computed yet: it will read what it is made of
        y.numpy()
        assert between.value is None
        assert inner.value is not None
        assert later.numpy() is not None


def test_a_known_value_forgets_what_led_to_it() -> None:
    x = vector(1.0)
    for _ in range(100):
        x = x + 1.0
    before = len(node._interned)
    x.numpy()
    gc.collect()
    assert len(node._interned) < before - 90


def test_debug_says_what_ran(capsys: pytest.CaptureFixture[str]) -> None:
    with weft.knobs.set(debug=1):
        weft.sin(vector(1.0)).numpy()
    assert "weft: cpu ran 1 nodes, kept 1, " in capsys.readouterr().err


@pytest.mark.parametrize("look_first", [True, False])
def test_every_step_of_training_costs_the_same(look_first: bool, runs: list[int]) -> None:
    w = weft.parameter([1.0, 2.0, 3.0])
    for _ in range(12):
        loss = ((w * 2.0 - 1.0) ** 2).sum()
        loss.backward()
        if look_first:
            loss.item()
        w -= 0.1 * w.grad
        w.grad = None
        if not look_first:
            loss.item()
    assert runs[-1] <= runs[3]


def test_every_step_of_a_simulation_costs_the_same(runs: list[int]) -> None:
    state = vector(1.0, 2.0, 3.0)
    for _ in range(12):
        energy, state = (state * state).sum(), weft.sin(state)
        energy.item()  # the state it belongs to has no name any more, but the next one is made of it
    assert runs[-1] <= runs[3]


# --- loops that never look -------------------------------------------------------------------------------------------


def write(x: T) -> T:
    x[0] = x[0] + 1.0
    return x


def train(w: T) -> T:
    ((w - 1.0) * w).sum().backward()
    w -= w.grad - 2.0 * w.detach()  # the derivative is 2w - 1, so that every step adds 1
    w.grad = None
    return w


def gather(w: T) -> T:
    (w * 1.0).sum().backward()
    return w


# Where a loop starts, a step that adds 1, and how many nodes may be alive: bytes run out first where the data is large.
LOOPS: dict[str, tuple[Callable[[], T], Callable[[T], T], int]] = {
    "plain": (lambda: vector(0.0), lambda x: x + 1.0, 900),
    "fresh data": (lambda: weft.asarray(np.zeros(1000)), lambda x: x + np.ones(1000), 150),
    "writing": (lambda: vector(0.0), write, 900),
    "scan": (lambda: vector(0.0), lambda x: weft.scan(lambda s, _: (s + 0.5, None), x, length=2)[0], 900),
    "in place": (lambda: weft.parameter([0.0]), lambda w: operator.iadd(w, 1.0), 900),
    "training": (lambda: weft.parameter([0.0]), train, 900),
    "gathering": (lambda: weft.parameter([0.0]), gather, 900),  # its .grad is never taken away
}


@pytest.mark.sweep(share=1.0)
@pytest.mark.parametrize("name", LOOPS)
def test_loops_that_never_look_stay_bounded(name: str) -> None:
    start, step, limit = LOOPS[name]
    gc.collect()
    before, most, x = len(node._interned), 0, start()
    aside = vector(1.0)  # held and never looked at, it must not hold back the rest
    with weft.knobs.set(pending_nodes=300, pending_bytes=300_000, compile_after=10_000):
        for _ in range(1200):
            x, aside = step(x), aside * 1.0
            most = max(most, len(node._interned) - before)
    assert (x.grad if name == "gathering" else x).numpy().ravel()[0] == 1200.0
    assert most < limit


# --- parameters ------------------------------------------------------------------------------------------------------


def test_printing_does_not_lose_the_history() -> None:
    w = weft.parameter([1.0, 2.0])
    y = w * w
    loss = y.sum()
    print(y, loss, w)
    loss.backward()
    assert w.grad.tolist() == [2.0, 4.0]
    assert weft.gradients(loss, [y])[0].tolist() == [1.0, 1.0]


def test_derivatives_add_up_until_they_are_taken_away() -> None:
    w = weft.parameter([1.0, 2.0])
    assert w.grad is None
    for count in (1, 2, 3):
        (w * 3.0).sum().backward()
        assert w.grad.tolist() == [3.0 * count] * 2
        assert not w.grad.requires_grad
    w.grad = None
    (w * w).backward(vector(1.0, 10.0))
    assert w.grad.tolist() == [2.0, 40.0]


def test_what_requires_grad() -> None:
    w, x = weft.parameter([1.0]), vector(1.0)
    assert all(t.requires_grad for t in (w, w * 2.0, x + w, w[0]))
    assert not any(t.requires_grad for t in (x, x * x, w.detach(), w > 0.0))
    x.requires_grad = True
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0]
    x.requires_grad = False
    assert not (x * 2.0).requires_grad
    assert T([1.0], requires_grad=True).requires_grad


def test_a_parameter_made_from_another_is_a_leaf_of_its_own() -> None:
    w = weft.parameter([1.0])
    for other in (weft.parameter(w), weft.parameter(w * 1.0), copy.copy(w), copy.deepcopy([w])[0]):
        (other * 5.0 + w).sum().backward()
        assert other.grad.tolist() == [5.0]
        other += 1.0
    assert (w.tolist(), w.grad.tolist()) == ([1.0], [4.0])


def changed_after() -> None:
    w = weft.parameter([1.0])
    loss = (w * w).sum()
    w += 1.0
    loss.backward()


W = weft.parameter([1.0, 2.0])
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "an integer parameter": (lambda: weft.parameter([1, 2]), "[parameter] a floating dtype is required, got int64."),
    "backward of a vector": (lambda: (W * W).backward(), "[backward] a scalar float is required, got float32[2]."),
    "backward of a constant": (lambda: vector(1.0).sum().backward(), "[backward] the value was not computed from any parameter."),
    "backward of a wrong cotangent": (lambda: (W * W).backward(vector(1.0)), "[backward] a cotangent of shape (2,) is required, got (1,)."),
    "backward after a change": (changed_after, "[backward] a parameter of shape (1,) was changed in place after this value was computed from it."),
    "gradients by a constant": (lambda: weft.gradients(W.sum(), [vector(1.0)]), "[gradients] derivatives can only be taken by parameters"),
    "assign another shape": (lambda: vector(1.0).assign(vector(1.0, 2.0)), "[assign] float32[1] cannot take a value of type float32[2]"),
    "assign another dtype": (lambda: vector(1.0).assign(weft.asarray([1])), "[assign] float32[1] cannot take a value of type int64[1]"),
    "grow in place": (lambda: operator.iadd(vector(1.0), vector(1.0, 2.0)), "[assign] float32[1] cannot take a value of type float32[2]"),
    "divide integers in place": (lambda: operator.itruediv(weft.asarray([1]), 2), "[assign] int64[1] cannot take a value of type float32[1]"),
    "mix devices": (lambda: vector(1.0) + vector(1.0).to_device("null"), "[add] all inputs must be on one device, got cpu and null. Move one with to_device()."),
    "an unknown device": (lambda: vector(1.0).to_device("moon"), "[device] there is no device 'moon'. Known: "),
    "a ragged list": (lambda: weft.asarray([[1], [2, 3]]), "[asarray] a rectangular nest of numbers is required"),
    "a string": (lambda: weft.asarray("abc"), "[asarray] numbers are required, got str"),
    "a number that does not fit": (lambda: weft.asarray([300], dtype="uint8"), "[asarray] 300 does not fit into uint8."),
    "a list with history": (lambda: weft.asarray([W[0], 1.0]), "[asarray] a list of tensors would lose their derivatives."),
    "a list while tracing": (lambda: weft.make_graph(lambda x: weft.asarray([x, x]), 1.0), "[asarray] a list of tensors would lose their derivatives."),
    "a look while tracing": (lambda: weft.make_graph(lambda x: x * float(x), 1.0), "[evaluate] this tensor stands for a value that is not known"),
    "a list without a copy": (lambda: weft.asarray([1.0], copy=False), "[asarray] copy=False, but a copy is needed to make float32 from list."),
    "a dtype without a copy": (lambda: weft.asarray(np.ones(2), dtype="int8", copy=False), "[asarray] copy=False, but a copy is needed"),
    "an item of many": (lambda: W.item(), "[item] a tensor with one element is required, got shape (2,). Use numpy()."),
    "a bool of many": (lambda: bool(W > 0.0), "[bool] a tensor without dimensions is required, got shape (2,)."),
    "the length of a number": (lambda: len(weft.asarray(1.0)), "[len] a tensor without dimensions has no length."),
    "a walk along a number": (lambda: iter(weft.asarray(1.0)), "[len] a tensor without dimensions has no length."),
    "T of a vector": (lambda: W.T, "[T] a matrix is required, got shape (2,). Use mT or permute_dims()."),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    call, text = MISTAKES[name]
    with pytest.raises(weft.UserError) as caught:
        call()
    assert text in str(caught.value)


# --- changes in place ------------------------------------------------------------------------------------------------

IN_PLACE = "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift imatmul"


@pytest.mark.parametrize("name", IN_PLACE.split())
def test_a_change_in_place_is_the_operator_and_a_new_name(name: str) -> None:
    start = np.array([[5, 2], [1, 3]], "float64" if name in ("itruediv", "ipow", "imatmul") else "int64")
    x, other = weft.asarray(start), start % 3 + 1
    before = x + 0
    assert getattr(operator, name)(x, weft.asarray(other)) is x
    np.testing.assert_allclose(x.numpy(), getattr(np.ndarray, f"__{name[1:]}__")(start, other))
    np.testing.assert_array_equal(before.numpy(), start)


# Functions that may have nothing to do. Their result is still a tensor of its own.
SAME: dict[str, Callable[[T], T]] = {
    "plus": operator.pos, "all": lambda x: x[:], "dots": lambda x: x[...], "at": lambda x: x.at[:].get(),
    "astype": lambda x: x.astype("float32"), "reshape": lambda x: x.reshape(2), "flatten": T.flatten,
    "permute": lambda x: x.permute(0), "squeeze": T.squeeze, "concat": lambda x: weft.concat([x]),
    "broadcast": lambda x: weft.broadcast_to(x, (2,)), "roll": lambda x: weft.roll(x, 2), "pad": lambda x: weft.pad(x, 0),
    "clip": weft.clip, "real": weft.real, "to_device": lambda x: x.to_device("cpu"),
    "copied": lambda x: weft.asarray(x, copy=True), "copy": copy.copy, "deepcopy": copy.deepcopy,
}  # fmt: skip


@pytest.mark.parametrize("f", SAME.values(), ids=SAME)
def test_results_and_sources_change_apart(f: Callable[[T], T]) -> None:
    x = vector(1.0, 2.0)
    y, z = f(x), f(x)
    y += 10.0
    x *= 3.0
    assert (x.tolist(), y.tolist(), z.tolist()) == ([3.0, 6.0], [11.0, 12.0], [1.0, 2.0])


def assigned(w: T) -> T:
    return weft.zeros(2).assign(w)


CHILDREN = {name: f for name, f in SAME.items() if "copy" not in name} | {"assigned": assigned}


@pytest.mark.parametrize("f", CHILDREN.values(), ids=CHILDREN)
def test_what_is_made_of_a_parameter_stays_its_child(f: Callable[[T], T]) -> None:
    w = weft.parameter([1.0, 2.0])
    y = f(w)
    y *= 3.0
    y.sum().backward()
    assert (w.tolist(), w.grad.tolist()) == ([1.0, 2.0], [3.0, 3.0])


def test_a_changed_parameter_is_a_new_leaf() -> None:
    w = weft.parameter([1.0, 2.0])
    before = w * 1.0
    w[0] = 7.0
    w *= 2.0
    (w * w).sum().backward()
    assert (before.tolist(), w.tolist(), w.grad.tolist()) == ([1.0, 2.0], [14.0, 4.0], [28.0, 8.0])


def test_derivatives_through_changes_in_place() -> None:
    w = weft.parameter([1.0, 2.0])
    x = w * 2.0
    early = x.sum()
    x *= w
    (x.sum() + early).backward()
    assert w.grad.tolist() == [6.0, 10.0]


# --- devices ---------------------------------------------------------------------------------------------------------


class OtherDevice(CpuDevice):
    """A second device that computes."""

    name = "other"


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> OtherDevice:
    new = OtherDevice()
    monkeypatch.setitem(_devices, "other", new)
    return new


def test_devices_are_known_by_name() -> None:
    assert {"cpu", "reference", "null"} <= {d.name for d in weft.devices()}
    assert weft.device("null") in weft.devices()
    assert weft.device() is vector(1.0).device is weft.device("cpu")
    with weft.knobs.set(device="null"):
        assert weft.device() is weft.asarray([1.0]).device is weft.device("null")


def test_the_null_device_knows_shapes_and_nothing_else(runs: list[int]) -> None:
    x = weft.asarray([[1.0, 2.0]], device="null")
    y = (x * 2.0).sum(axis=0).realize()
    assert (y.shape, y.dtype, y.device.name) == ((2,), weft.float32, "null")
    with pytest.raises(weft.RunError, match="the null device computes nothing, so there is no value"):
        y.numpy()
    assert runs == []


def test_constants_are_at_home_on_every_device() -> None:
    with weft.knobs.set(device="null"):
        kept = [weft.full((3,), 8.25).realize(), weft.arange(5).realize()]
    assert weft.full((3,), 8.25).tolist() == [8.25] * 3
    assert (weft.arange(5) + 0).tolist() == [0, 1, 2, 3, 4]
    assert weft.arange(5).tolist() == [0, 1, 2, 3, 4]
    del kept


def test_what_may_live_anywhere_is_computed_where_it_is_wanted(
    other: OtherDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed here and carried over."""
    put: list[int] = []
    monkeypatch.setattr(other, "put", lambda array, dtype: put.append(array.size))
    x = (weft.full((7,), 2.0, device="other") * weft.arange(7, device="other")).realize()
    assert put == []
    assert (x.device, x.tolist()) == (other, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0])


def test_a_value_goes_to_another_device_and_its_derivative_comes_back(other: OtherDevice) -> None:
    w = weft.parameter([1.0, 2.0])
    y = w.to_device(other) * vector(3.0, 4.0).to_device("other")
    assert (y.device, y.tolist()) == (other, [3.0, 8.0])
    (y * y).sum().backward()
    assert (w.grad.device, w.grad.tolist()) == (w.device, [18.0, 64.0])
    assert (y.to_device("cpu") + w).tolist() == [4.0, 10.0]


# --- from and to the outside -----------------------------------------------------------------------------------------

TAKEN: list[tuple[Any, Any, Any]] = [
    (1.5, weft.float32, 1.5), (2, weft.int64, 2), (True, weft.bool, True), ([1, 2], weft.int64, [1, 2]),
    ([1, 2.5], weft.float32, [1.0, 2.5]), ([[True], [False]], weft.bool, [[True], [False]]), ([], weft.float32, []),
    ((1, 2), weft.int64, [1, 2]), (range(3), weft.int64, [0, 1, 2]), (np.float64(1.5), weft.float64, 1.5),
    (np.arange(3, dtype="int16"), weft.int16, [0, 1, 2]), (np.arange(3.0, dtype=">f4"), weft.float32, [0.0, 1.0, 2.0]),
    (np.arange(6).reshape(2, 3)[:, ::-2], weft.int64, [[2, 0], [5, 3]]), (b"ab", weft.uint8, [97, 98]),
    ([weft.asarray(1.5), weft.asarray(2.5)], weft.float32, [1.5, 2.5]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "dtype", "expected"), TAKEN, ids=[repr(value) for value, _, _ in TAKEN])
def test_asarray_takes(value: Any, dtype: weft.DType, expected: Any) -> None:
    x = weft.asarray(value)
    assert x.dtype is dtype
    assert x.tolist() == expected


def frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


# An array, what is asked, and whether the memory may be shared: only where nobody can write to it, or on request.
ARRAYS: dict[str, tuple[Callable[[], np.ndarray], bool | None, bool]] = {
    "writable": (lambda: np.ones(3), None, False),
    "writable, shared on request": (lambda: np.ones(3), False, True),
    "read-only": (lambda: frozen(np.ones(3)), None, True),
    "read-only, copied on request": (lambda: frozen(np.ones(3)), True, False),
    "a read-only view of what can be written": (lambda: frozen(np.ones(3)[:]), None, False),
    "a view of what cannot be written": (lambda: frozen(np.ones(3))[1:], None, True),
    "bytes that can be written": (lambda: frozen(np.frombuffer(bytearray(8), "uint8")), None, False),
    "bytes that cannot": (lambda: np.frombuffer(b"12345678", "uint8"), None, True),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_memory_is_shared_only_where_nobody_writes(name: str) -> None:
    build, copied, shared = ARRAYS[name]
    array = build()
    x = weft.asarray(array, copy=copied)
    assert np.shares_memory(x.numpy(), array) is shared
    np.testing.assert_array_equal(x.numpy(), array)


def test_numpy_gives_a_view_that_cannot_be_written_to() -> None:
    for x in (vector(1.0, 2.0), vector(1.0, 2.0) + 1.0, weft.zeros(2), weft.broadcast_to(vector(1.0), (2,))):
        array = x.numpy()
        assert np.shares_memory(array, x.numpy())
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 9.0


TEXTS: list[tuple[Callable[[], Any], Any]] = [
    (lambda: repr(vector(1.0, 2.0)), "Tensor([1., 2.], dtype=float32)"),
    (lambda: repr(weft.parameter(1.0)), "Tensor(1., dtype=float32, requires_grad=True)"),
    (lambda: str(weft.asarray([True])), "Tensor([ True], dtype=bool)"),
    (lambda: f"{weft.asarray(1.2345):.2f} {weft.asarray(7)}", "1.23 Tensor(7, dtype=int64)"),
    (lambda: [row.tolist() for row in weft.asarray([[1, 2], [3, 4]])], [[1, 2], [3, 4]]),
    (lambda: (len(weft.zeros((4, 2))), len(weft.zeros(0))), (4, 0)),
    (lambda: (2 in weft.asarray([1, 2]), 5 in weft.asarray([1, 2])), (True, False)),
    (lambda: [10, 20, 30][weft.asarray(1)], 20),
    (lambda: (int(weft.asarray(3.7)), float(weft.asarray(3)), bool(weft.asarray(0))), (3, 3.0, False)),
    (lambda: (np.array([9.0, 8.0], "float32") - vector(1.0, 2.0)).tolist(), [8.0, 6.0]),
    (lambda: (vector(3.0) * weft.parameter([2.0]).detach()).requires_grad, False),
]  # fmt: skip


@pytest.mark.parametrize(("show", "expected"), TEXTS, ids=range(len(TEXTS)))
def test_how_a_tensor_shows_itself(show: Callable[[], Any], expected: Any) -> None:
    assert show() == expected
