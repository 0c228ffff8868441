"""Checks that a compiled function does what the function does: a table of small functions, each called three times both ways.

Compared are results (values, dtypes, and how they promote in further arithmetic), the state of all arguments and of tensors from
outside after every call, and which results are arguments or tensors from outside.
"""

import contextlib
import enum
import gc
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft
from jit_tools import counting
from weft.tree import flatten

PROBES = [np.ones(2, dtype) for dtype in ("int8", "uint8", "int32", "float16", "float64")]


class Case(NamedTuple):
    """A function of a tensor from outside and arguments, and the arguments of each call."""

    function: Callable[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]
    keywords: Callable[[int], dict[str, Any]] = lambda call: {}
    between: Callable[[Any, int], Any] = lambda outside, call: None  # done before each call


def tensor(call: int, dtype: str = "float32") -> weft.Tensor:
    return weft.asarray(np.arange(1, 4, dtype=dtype) + np.asarray(call, dtype))


def one(*more: Any) -> Callable[[int], tuple[Any, ...]]:
    return lambda call: (tensor(call), *(m(call) if callable(m) else m for m in more))


def twice(call: int) -> tuple[Any, ...]:
    x = tensor(call)
    return x, x


def change_first(c: Any, a: Any, b: Any) -> Any:
    a += 1
    return a * b


def change_both(c: Any, a: Any, b: Any) -> Any:
    a += b
    b *= 2
    return a - b


def swap(c: Any, a: Any, b: Any) -> None:
    old = a * 1.0
    a.assign(b)
    b.assign(old)


def set_part(c: Any, a: Any) -> Any:
    a[1:] = a[:1] * 10.0
    return a.sum()


def train(c: Any, parameters: Any, x: Any, rate: float) -> Any:
    def loss(p: Any) -> Any:
        return ((x * p["w"] + p["b"][0]) ** 2).sum()

    value, gradient = weft.value_and_grad(loss)(parameters)
    parameters["w"].assign(parameters["w"] - rate * gradient["w"])
    parameters["b"][0] -= rate * gradient["b"][0]
    return value


def change_outside(c: Any, a: Any) -> Any:
    c += a
    return c * 2.0


def change_outside_and_argument(c: Any, a: Any) -> Any:
    a += 1.0
    c.assign(c * 0.5 + a)
    a *= 2.0
    return a - c


def count_up(c: Any, n: Any) -> Any:
    n += 1
    n *= 2
    return n, c * n


def python_arithmetic(c: Any, x: Any, n: Any, s: Any) -> Any:
    return (
        x * (n // 3),
        x * (n % 3),
        x * (s / 3 - n),
        x * -s,
        abs(s) + n,
        n**2,
        (n > 2) & (s < 1.0),
        x * (1 << n),
        round(s, 1),
    )


def in_scan(c: Any, xs: Any, s: Any) -> Any:
    return weft.scan(lambda carry, x: (carry * s + x, carry * (s * 2)), weft.asarray(0.0), xs)


def in_cond(c: Any, x: Any, s: Any) -> Any:
    return weft.cond(x.sum() > 6.5, lambda: x * s, lambda: x + (s - 1))


@weft.jit
def inner(a: Any, s: Any) -> Any:
    a *= s
    return a + 1


def nested(c: Any, a: Any, s: Any) -> Any:
    first = inner(a, s)
    return first, inner(a, s + 1), a


CASES = {
    "in place": Case(lambda c, a: a.__iadd__(1), one()),
    "in place, then used": Case(change_first, one(lambda i: tensor(2 * i))),
    "both in place": Case(change_both, one(lambda i: tensor(2 * i))),
    "two change places": Case(swap, one(lambda i: tensor(2 * i))),
    "a part in place": Case(set_part, one()),
    "assign": Case(lambda c, a: a.assign(a * 2.0), one()),
    "assign itself": Case(lambda c, a: a.assign(a), one()),
    "assign twice": Case(lambda c, a: a.assign(a + 1.0).assign(a * 3.0).sum(), one()),
    "integers in place": Case(change_first, lambda i: (tensor(i, "int8"), tensor(i, "int8"))),
    "one tensor twice": Case(change_first, twice),
    "one tensor twice, both changed": Case(change_both, twice),
    "one tensor in a list": Case(lambda c, both: change_both(c, *both), lambda i: (list(twice(i)),)),
    "one tensor by name": Case(lambda c, a, b: change_first(c, a, b), lambda i: twice(i)[:1], lambda i: {"b": tensor(i)}),
    "nested, trained": Case(train, lambda i: ({"w": tensor(i), "b": [weft.asarray(0.5)]}, tensor(1), 0.01 * (i + 1))),
    "an argument comes back": Case(lambda c, a: a, one()),
    "a changed argument comes back": Case(lambda c, a: (a.__imul__(2), {"a": a}), one()),
    "one result twice": Case(lambda c, a: [a + 1] * 2, one()),
    "from outside": Case(lambda c, a: c * a, one(), between=lambda c, i: c.assign(c + i)),
    "from outside, in place": Case(lambda c, a: c * a, one(), between=lambda c, i: c.__iadd__(i)),
    "from outside, itself": Case(lambda c: c, lambda i: (), between=lambda c, i: c.__iadd__(i)),
    "from outside, changed": Case(change_outside, one()),
    "from outside, changed, itself": Case(lambda c, a: (c.__iadd__(a), c), one()),
    "argument and outside": Case(change_outside_and_argument, one()),
    "no result": Case(lambda c, a: setattr(a, "grad", a.assign(a + 1).grad), one()),
    "float": Case(lambda c, x, s: x * s, one(lambda i: 0.1 * (i + 1))),
    "int": Case(lambda c, x, n: x * n, one(lambda i: i + 2)),
    "bool": Case(lambda c, x, b: (x * b, x.astype("int8") + b), one(lambda i: i == 1)),
    "int8 and int": Case(lambda c, x, n: (x + n, n - x, weft.maximum(x, n)), lambda i: (tensor(i, "int8"), 100 - i)),
    "uint8 and float": Case(lambda c, x, s: x * s, lambda i: (tensor(i, "uint8"), 0.5 + i)),
    "float16 and float": Case(lambda c, x, s: x * s, lambda i: (tensor(i, "float16"), 2.0 + i)),
    "float64 and float": Case(lambda c, x, s: x * s, lambda i: (tensor(i, "float64"), 0.1 * (i + 1))),
    "float64 and numpy": Case(lambda c, x, s: x * s, lambda i: (tensor(i, "float64"), np.float64(0.1 * (i + 1)))),
    "float16 and numpy": Case(lambda c, x, s: x * s, lambda i: (tensor(i, "float16"), np.float32(0.1 * (i + 1)))),
    "int8 and numpy": Case(lambda c, x, n: x * n, lambda i: (tensor(i, "int8"), np.int64(i + 2))),
    "bool and int": Case(lambda c, x, n: x * n, lambda i: (tensor(i) > 2, i + 2)),
    "float and large int": Case(lambda c, x, n: x * n, one(lambda i: 2**70 + i)),
    "where": Case(lambda c, x, s: weft.where(x > 2, s, x), lambda i: (tensor(i, "float16"), 0.1 * i)),
    "where, both numbers": Case(lambda c, x, s: weft.where(x > 2, s, 7), one(lambda i: i)),
    "clip": Case(lambda c, x, s: weft.clip(x, s, None), lambda i: (tensor(i, "int8"), i + 2)),
    "set a part to a number": Case(lambda c, x, s: x.at[0].set(s), lambda i: (tensor(i, "float16"), 0.1 * i)),
    "asarray": Case(lambda c, s: weft.asarray(s), lambda i: (0.1 * i,)),
    "asarray of numpy": Case(lambda c, s: weft.asarray(s), lambda i: (np.float64(0.1 * i),)),
    "asarray, dtype": Case(lambda c, s: weft.asarray(s, dtype="float64"), lambda i: (0.1 * i,)),
    "full": Case(lambda c, s: weft.full(3, s), lambda i: (i,)),
    "full, dtype": Case(lambda c, s: weft.full(3, s, dtype="float64"), lambda i: (0.1 * i,)),
    "sqrt of a number": Case(lambda c, s: weft.sqrt(s), lambda i: (i + 0.1,)),
    "python arithmetic": Case(python_arithmetic, one(lambda i: i + 2, lambda i: 0.7 * i - 1)),
    "numbers change names": Case(count_up, lambda i: (i,)),
    "numbers come back": Case(lambda c, n, s, b: (n, [s, -s], b, n + 1), lambda i: (i, 0.5 * i, i == 1)),
    "numpy numbers come back": Case(lambda c, n, s: (n, s * 2, n * s), lambda i: (np.int8(i), np.float32(0.1 * i))),
    "a constant comes back": Case(lambda c, x: (x + 1, 3, 2.5, True), one()),
    "numbers by name": Case(lambda c, x, s: x * s, lambda i: (tensor(i, "float16"),), lambda i: {"s": 0.1 * i}),
    "numbers in a dict": Case(lambda c, d: d["x"] * d["s"], lambda i: ({"x": tensor(i, "float16"), "s": 0.1 * i},)),
    "numbers in scan": Case(in_scan, one(lambda i: 0.3 * i)),
    "numbers in cond": Case(in_cond, one(lambda i: 0.3 * i)),
    "numbers in vmap": Case(lambda c, x, s: weft.vmap(lambda v: v * s + (s + 1))(x), one(lambda i: 0.3 * i)),
    "numbers in grad": Case(lambda c, x, s: weft.grad(lambda v: (v * v * s).sum())(x), one(lambda i: 0.3 * i)),
    "the derivative by a number": Case(lambda c, s: weft.grad(lambda v: v * v * 3)(s), lambda i: (0.3 * i,)),
    "jit in jit": Case(nested, one(lambda i: i + 2)),
    "grad of jit": Case(lambda c, x, s: weft.grad(lambda v: (inner(v * 1, s) * v).sum())(x), one(lambda i: i + 2)),
    "an index": Case(lambda c, x, n: x[n], one(lambda i: i)),
    "numpy in": Case(lambda c, x: (c * x).sum(), lambda i: (np.arange(3.0) + i,)),
}  # fmt: skip


def seen(value: Any) -> Any:
    """What can be seen of a value: what it is, its bits, and what it becomes beside others."""
    if isinstance(value, weft.Tensor):
        beside = [str((weft.asarray(p) * value.reshape(-1)[0]).dtype) for p in PROBES if value.dtype is not weft.bool]
        return "tensor", str(value.dtype), value.shape, value.numpy().astype("float64").tolist(), beside
    return type(value), value.tolist() if isinstance(value, np.ndarray) else value


def history(case: Case, compiled: bool) -> list[Any]:
    """What three calls do, the second and third being the ones that run what the first has made."""
    outside = weft.asarray([1.0, 2.0, 3.0])

    def function(*args: Any, **kwargs: Any) -> Any:
        return case.function(outside, *args, **kwargs)

    call, found = weft.jit(function) if compiled else function, []
    for i in range(3):
        case.between(outside, i)
        args, kwargs = case.arguments(i), case.keywords(i)
        leaves, before = flatten((args, kwargs))
        results, structure = flatten(call(*args, **kwargs))
        known = [*leaves, outside]
        same = [[r is k for k in known] for r in results if isinstance(r, weft.Tensor)]
        same += [[r is k for k in results] for r in results if isinstance(r, weft.Tensor)]
        found.append((str(structure), [seen(r) for r in results], same, [seen(k) for k in known]))
        assert flatten((args, kwargs))[1] == before
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_compiled_function_does_what_the_function_does(name: str) -> None:
    case = CASES[name]
    expected, got = history(case, compiled=False), history(case, compiled=True)
    for call in range(3):
        assert got[call] == expected[call], f"call {call}"


def test_the_argument_is_a_tensor_from_outside() -> None:
    def run(compiled: bool) -> Any:
        w = weft.asarray([1.0, 2.0])

        def step(a: Any) -> Any:
            a += 1.0
            return w * 10.0 + a

        f, found = weft.jit(step) if compiled else step, []
        for argument in (w, weft.asarray([5.0, 5.0]), w, w):
            found.append((f(argument).tolist(), w.tolist(), argument.tolist()))
        return found

    assert run(True) == run(False)


def test_a_value_that_python_looks_at_is_that_of_the_call() -> None:
    """It is part of the program: another value is traced anew, the same one is not."""
    w, up = weft.asarray(2.0), weft.asarray(True)
    function, traces = counting(lambda x: x * w.item() if up else x - float(w))
    f, x = weft.jit(function), weft.ones(2)
    assert [f(x).tolist() for _ in range(3)] == [[2.0, 2.0]] * 3
    assert len(traces) == 1
    w.assign(5.0)
    assert f(x).tolist() == [5.0, 5.0]
    up.assign(False)
    assert f(x).tolist() == [-4.0, -4.0]
    weft.jit(lambda: w.assign(w + 1.0))()  # in place
    assert [f(x).tolist() for _ in range(2)] == [[-5.0, -5.0]] * 2
    assert len(traces) == 4


def test_a_number_that_changes_compiles_nothing() -> None:
    f, traces = counting(lambda x, rate: x * (1.0 - rate))
    fast = weft.jit(f)
    for i in range(5):
        fast(weft.ones(2), 0.1 * i)
    assert len(traces) == 1
    fast(weft.ones(2), 1)
    fast(weft.ones(2), True)
    assert len(traces) == 3, "bool, int and float are different"


@pytest.mark.parametrize("value", [300, -129, 2**40, 2**70])
def test_a_number_that_does_not_fit_is_refused_as_without_jit(value: int) -> None:
    x = weft.asarray(np.array([1], "int8"))
    f = weft.jit(lambda x, n: x * n)
    assert f(x, 3).tolist() == [3]
    for call in (f, f.function):
        with pytest.raises(weft.UserError, match=rf"\[constant\] {value} does not fit into int8"):
            call(x, value)
    assert f(x, 5).tolist() == [5]


def test_the_type_of_arithmetic_must_not_depend_on_the_number() -> None:
    f = weft.jit(lambda x, n: x * 2**n)
    assert f(weft.ones(1), 3).tolist() == [8.0]
    with pytest.raises(
        weft.UserError, match=r"pow of numbers gave int when the function was traced, and now float.*static="
    ):
        f(weft.ones(1), -1)


REFUSED = {
    "if": (lambda x, n: x if n > 1 else -x, r"\[bool\] the number .* static="),
    "range": (lambda x, n: [x for _ in range(n)], r"\[index\] the number .* static="),
    "math": (lambda x, n: x * np.sqrt(float(n)), r"\[float\] the number .* static="),
    "dict": (lambda x, n: {1: x}.get(n), r"\[hash\] the number .* static="),
    "assign": (lambda x, n: n.assign(3), r"\[assign\] a number cannot be changed in place"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_the_number_is_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(weft.UserError, match=message):
        weft.jit(function)(weft.ones(2), 1)


def test_an_array_of_numpy_is_not_changed_in_place() -> None:
    x = np.ones(2, "float32")
    with pytest.raises(weft.UserError, match=r"cannot change a NumPy array in place. Pass weft.asarray\(x\)"):
        weft.jit(lambda a: a.__iadd__(1))(x)
    assert x.tolist() == [1.0, 1.0]


def put(d: Any) -> None:
    d["w"] = d["w"] + 1


@pytest.mark.parametrize("change", [put, lambda d: d.update(v=d["w"]), lambda d: d.clear()])
def test_other_content_of_containers_is_refused(change: Any) -> None:
    with pytest.raises(weft.UserError, match=r"cannot put other values into a list or dict .* assign\(\)"):
        weft.jit(change)({"w": weft.ones(2)})


def test_an_argument_does_not_become_a_parameter() -> None:
    with pytest.raises(weft.UserError, match="cannot make a parameter of an argument"):
        weft.jit(lambda a: setattr(a, "requires_grad", True))(weft.ones(2))


def test_an_error_while_tracing_leaves_the_argument_alone() -> None:
    def step(a: Any) -> Any:
        a += 1
        raise KeyError

    x = weft.ones(2)
    with contextlib.suppress(KeyError):
        weft.jit(step)(x)
    assert x.tolist() == [1.0, 1.0]


def test_subclasses_of_numbers_are_part_of_the_program() -> None:
    class Mode(enum.IntEnum):
        UP, DOWN = 1, 2

    f = weft.jit(lambda x, mode: x + 1 if mode is Mode.UP else x - 1)
    assert [f(weft.ones(1), mode).item() for mode in (Mode.UP, Mode.DOWN, Mode.UP)] == [2.0, 0.0, 2.0]


def test_a_program_does_not_keep_its_arguments() -> None:
    f = weft.jit(lambda a, s: a * s)
    x = np.ones(2, "float32")
    x.flags.writeable = False
    t = weft.asarray(x)
    f(t, 2.0)
    before = t._node.holders
    del t
    gc.collect()
    assert before == 1
    assert sys.getrefcount(x) <= 2
