"""Products of few rows with a large matrix on GPUs: which they are, and their numbers. Kernels run under Triton's interpreter."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
from weft.compiler.gpu.few_rows import FEW_ROWS, SHORT, tile_for
from weft.compiler.gpu.program import gpu_program
from weft.testing import generator

pytest.importorskip("triton")
from triton_runner import run_program

TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}


def plain(x: Any, w: Any, b: Any) -> Any:
    return x @ w.mT


def layer(x: Any, w: Any, b: Any) -> Any:
    return weft.gelu(x @ w.mT + b)


def checked(f: Any, rows: int, columns: int, terms: int, dtype: Any = np.float32, x: Any = None) -> bool:
    """Whether it is computed so; its numbers are right."""
    rng = generator(f"{rows} {columns} {terms}")
    arrays = [rng.normal(size=s).astype(dtype) for s in ((rows, terms), (columns, terms), (columns,))]
    arrays[0] = arrays[0] if x is None else x(arrays[0])
    program = gpu_program(weft.make_graph(f, *arrays), {})
    found = run_program(program, arrays)[0]
    with weft.knobs.set(device="reference"):
        expected = f(*(weft.asarray(a.astype(np.float64)) for a in arrays)).numpy()
    limit = TOLERANCE[np.dtype(dtype).name]
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=limit, atol=limit * np.abs(expected).max())
    [plan] = program.plans.values()
    return [phase.symbol for phase in plan.phases] == ["few_rows"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("f", [plain, layer])
def test_numbers(f: Any, dtype: Any) -> None:
    assert checked(f, 1, 300, 200, dtype)


@pytest.mark.parametrize(
    ("rows", "columns", "terms"),
    [(1, 1, SHORT), (2, 7, 65), (3, 257, 96), (FEW_ROWS, 1030, 130), (1, 5, 20_000), (4, 3, 5000)],
)
def test_odd_sizes(rows: int, columns: int, terms: int) -> None:
    assert checked(layer, rows, columns, terms)


def test_rows_with_gaps() -> None:
    assert checked(lambda x, w, b: x[:, ::2] @ w.mT[::2], 2, 40, 256) is False  # the matrix has gaps, too
    assert checked(lambda x, w, b: x[:, 1::2] @ w[:, :128].mT, 2, 40, 256)


@pytest.mark.parametrize(
    ("f", "rows", "terms"),
    [(plain, FEW_ROWS + 1, 256), (plain, 1, SHORT - 1), (lambda x, w, b: x @ w.reshape((256, 40)), 1, 256)],
    ids=["more rows", "short sums", "columns with gaps"],
)
def test_others(f: Any, rows: int, terms: int) -> None:
    assert not checked(f, rows, 40, terms)


def test_batches_and_other_dtypes() -> None:
    for shapes, dtype in ((((2, 1, 128), (2, 128, 40)), np.float32), (((1, 128), (128, 40)), np.float64)):
        arrays = [np.ones(s, dtype) for s in shapes]
        program = gpu_program(weft.make_graph(lambda x, w: x @ w, *arrays), {})
        assert "few_rows" not in {phase.symbol for plan in program.plans.values() for phase in plan.phases}


def test_tiles_fit_into_registers() -> None:
    for rows in range(1, FEW_ROWS + 1):
        for columns in (1, 127, 128, 768, 50257):
            for terms in (64, 768, 3072, 100_000):
                tile = tile_for(rows, columns, terms)
                assert rows * tile.columns * tile.terms / (32 * tile.warps) <= 64  # sums of a thread
                assert tile.columns == 1 or columns // tile.columns >= 128
