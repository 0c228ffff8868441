"""Kernels that do the same share one function. Two that differ in one fact must not: each pair here differs in one alone."""

from collections.abc import Callable

import numpy as np
import pytest

import weft
from weft.graph import OPS
from weft.tensor import emit

Function = Callable[[weft.Tensor], weft.Tensor]


def padded(x: weft.Tensor, low: int, high: int, gap: int = 0, value: float = 0.0) -> weft.Tensor:
    return emit(OPS["pad"], (x,), (((low, high, gap),), value))


def spread(x: weft.Tensor, count: int = 3) -> weft.Tensor:
    """The first element, several times: wherever it is looked at, one place is read."""
    return weft.broadcast_to(x[0], (count,))


PAIRS: dict[str, tuple[Function, Function]] = {
    "a constant": (lambda x: x * 2.0, lambda x: x * 3.0),
    "the sign of a zero": (lambda x: weft.copysign(x, 0.0), lambda x: weft.copysign(x, -0.0)),
    "an op": (weft.floor, weft.ceil),
    "the order of operands": (lambda x: x - x[::-1], lambda x: x[::-1] - x),
    "a place": (lambda x: x[1:], lambda x: x[:-1]),
    "a direction": (lambda x: x[::-1] + 1.0, lambda x: x + 1.0),
    "a filler": (lambda x: padded(x, 1, 1, value=1.0), lambda x: padded(x, 1, 1, value=2.0)),
    "a border": (lambda x: padded(x, 2, 0), lambda x: padded(x, 0, 2)),
    "gaps": (lambda x: padded(spread(x), 0, 0, gap=1), lambda x: padded(spread(x), 0, 2)),
    "where padding begins": (lambda x: padded(spread(x, 3), 0, 2), lambda x: padded(spread(x, 4), 0, 1)),
    "a reduction": (lambda x: x.max(), lambda x: x.min()),
    "a dtype on the way": (lambda x: x.astype("float16") * 1.0, lambda x: x.astype("bfloat16") * 1.0),
    "the dtype of a result": (lambda x: x.astype("int16"), lambda x: x.astype("uint16")),
    "a size of a table": (lambda x: x[[0, -1]], lambda x: x[1:][[0, -1]]),
    "windows": (lambda x: weft.max_pool(x[None, None], 3, stride=1), lambda x: weft.max_pool(x[None, None], 2, stride=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_kernels_that_differ_in_one_fact_are_two_functions(name: str) -> None:
    first, second = PAIRS[name]
    both = weft.jit(lambda x, y: (first(x), second(y)))
    arrays = [np.array(v, np.float32) for v in ([1.25, 0.5, 2.75, 0.125], [3.5, 1.625, 0.25, 7.0])]
    with weft.knobs.set(device="reference"):
        expected = [f(weft.asarray(a)).numpy() for f, a in zip((first, second), arrays, strict=True)]
    found = both(*arrays)
    program = both._for(tuple(arrays), {}).executable.program
    assert len(program.kernels) >= 2  # else nothing is tested here
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.numpy().dtype == wanted.dtype
        np.testing.assert_array_equal(actual.numpy(), wanted)
        np.testing.assert_array_equal(np.signbit(actual.numpy()), np.signbit(wanted))
