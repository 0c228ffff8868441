"""Vector loops are cut where a concat or a pad changes what is read: the same results, and no element is looked for by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.compiler.cpu.backend import apply_passes
from weft.compiler.ir.nest import ready_nest
from weft.compiler.ir.segments import segments
from weft.compiler.planning.fuse import fuse
from weft.compiler.thresholds import thresholds

SIZES = ((16, 16), (3, 5, 40), (1, 64), (24, 37, 2), (70, 9))
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "concat": lambda lib, *xs: lib.concatenate(xs, axis=-1) * 2.0,
    "concats of a concat": lambda lib, *xs: lib.concatenate([lib.concatenate(xs, axis=-1), xs[0] + 1.0], axis=-1) * 2.0,
    "sums of columns": lambda lib, *xs: lib.concatenate(xs, axis=-1).sum(axis=0),
    "pad": lambda lib, *xs: lib.pad(xs[0], ((0, 0), (3, 9))) + 1.0,
    "pad of a concat": lambda lib, *xs: lib.pad(lib.concatenate(xs, axis=-1), ((1, 0), (2, 5))) * 3.0,
}


class _Weft:
    concatenate, pad = staticmethod(weft.concat), staticmethod(weft.pad)


def _inputs(sizes: tuple[int, ...], rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((rows, n), np.float32) for n in sizes]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_results(name: str, sizes: tuple[int, ...]) -> None:
    xs = _inputs(sizes, 130)
    got = weft.jit(lambda *xs: FUNCTIONS[name](_Weft, *xs))(*map(weft.asarray, xs)).numpy()
    expected = FUNCTIONS[name](np, *(x.astype(np.float64) for x in xs))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)


def _nests(name: str, sizes: tuple[int, ...]) -> list[Any]:
    xs = [weft.zeros((130, n)) for n in sizes]
    graph = weft.make_graph(lambda *xs: FUNCTIONS[name](_Weft, *xs), *xs)
    return [ready_nest(k, 16) for k in fuse(apply_passes(graph)).kernels if k.nest is not None]


@pytest.mark.parametrize(
    ("name", "count"), [("concat", 3), ("concats of a concat", 4), ("sums of columns", 3), ("pad", 3)]
)
def test_everything_is_read_as_it_lies_in_memory(name: str, count: int) -> None:
    [nest] = _nests(name, (16, 40, 24))
    found = segments(nest)
    assert [s.vector.size for s in found][: count - 1] == ([3, 16] if name == "pad" else [16, 40, 24])[: count - 1]
    assert len(found) == count
    for segment in found:
        steps = [step for phase in segment.phases for step in phase.steps]
        assert not any(step.conditions for step in steps)
        loads = [step for step in steps if step.kind == "load"]
        assert len(loads) == (0 if name == "pad" and segment.vector.size in (3, 9) else 1)
        assert all(step.indices[0].coefficient(segment.vector) == 1 for step in loads)


def test_too_many_parts_are_not_cut() -> None:
    [nest] = _nests("concat", (16, 40, 24))
    with thresholds.set(segments=2):
        assert segments(nest) == []


@pytest.mark.parametrize(("layers", "kernels"), [(7, 1), (8, 2), (14, 2), (15, 3)])
def test_a_long_chain_of_concats_is_stored_in_between(layers: int, kernels: int) -> None:
    """So that no vector loop is cut at more places than a few: eight pieces, of which the first may be a stored concat."""

    def f(x: Any, *parts: Any) -> Any:
        for part in parts:
            x = weft.concat([x, part], axis=1)
        return x * 2.0

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((50, 8 + n), np.float32) for n in range(layers + 1)]
    nests = [ready_nest(k, 16) for k in fuse(apply_passes(weft.make_graph(f, *arrays))).kernels]
    assert len(nests) == kernels
    for nest in nests:
        found = segments(nest)
        assert 1 < len(found) <= thresholds.concat_flat
        assert not any(step.conditions for s in found for phase in s.phases for step in phase.steps)
    np.testing.assert_array_equal(weft.jit(f)(*arrays).numpy(), 2 * np.concatenate(arrays, axis=1))
