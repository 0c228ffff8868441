"""Along which loop a kernel's vectors lie: where its memory does, counted as often as it is read."""

from collections.abc import Callable
from typing import Any

import pytest

import weft
from weft.compiler.cpu.backend import apply_passes, compiled
from weft.compiler.cpu.module import write
from weft.compiler.ir.nest import ReadyNest, ready_nest
from weft.compiler.planning.fuse import fuse
from weft.options import CompileOptions

CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], str]] = {
    "sums of rows": (lambda x: x.sum(axis=1), (200, 300), "inner"),
    "the largest of rows": (lambda x: x.max(axis=1), (200, 300), "inner"),
    "means of planes": (lambda x: x.mean(axis=(2, 3)), (8, 16, 14, 14), "inner"),
    "squares of rows": (lambda x: (x * x).sum(axis=1), (200, 300), "inner"),
    "sums of columns": (lambda x: x.sum(axis=0), (200, 300), "outer"),
    "sums of channels that lie last": (lambda x: x.sum(axis=(0, 1, 2)), (4, 8, 8, 64), "outer"),
    "elements": (lambda x: weft.exp(x) + 1.0, (200, 300), "outer"),
    "softmax": (lambda x: weft.softmax(x), (200, 300), "inner"),
}


def nest_of(f: Callable[..., Any], shape: tuple[int, ...]) -> ReadyNest:
    [kernel, *_] = fuse(apply_passes(weft.make_graph(f, weft.zeros(shape)))).kernels
    return ready_nest(kernel, 8)


@pytest.mark.parametrize("name", CASES)
def test_vectors_lie_along_the_memory(name: str) -> None:
    f, shape, where = CASES[name]
    nest = nest_of(f, shape)
    assert ("outer" if nest.vector is not None else "inner") == where
    for phase in nest.phases:
        along = nest.vector if nest.vector is not None else phase.vector
        if along is not None:
            assert all(s.indices[0].coefficient(along) in (0, 1) for s in phase.steps if s.kind == "load")


@pytest.mark.parametrize(
    ("f", "shape", "asks"),
    [
        (lambda x: x.sum(axis=0), (2048, 512), True),
        (lambda x: (x * x).sum(axis=(0, 1)), (64, 32, 512), True),
        (lambda x: x.sum(axis=0), (2048, 16), False),  # the next row is close
        (lambda x: x.sum(axis=1), (2048, 512), False),
        (lambda x: x + 1.0, (2048, 512), False),
        (lambda x: weft.gelu(x @ x) * x, (512, 512), True),  # an epilogue sees a few columns of each row
        (lambda x: weft.gelu(x @ x) * x, (100, 100), False),
        (lambda x: weft.gelu(x @ x), (512, 512), False),  # in place, where the product has just stored its results
    ],
)
def test_later_rows_are_prefetched_where_some_columns_of_each_are_visited(
    f: Callable[..., Any], shape: tuple[int, ...], asks: bool
) -> None:
    text = str(write(compiled(weft.make_graph(f, weft.zeros(shape)), {}, CompileOptions("cpu", threads=2))).module)
    assert ("llvm.prefetch" in text) is asks
