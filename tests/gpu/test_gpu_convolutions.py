"""Random convolutions over all their parameters on the device: the result and both gradients agree with float64."""

import random
from typing import Any

import numpy as np
import pytest
from gpu_tools import IS_GPU

import test_convolutions as cases
import weft
from weft.runtime.reference import interpret
from weft.testing import counted


@pytest.mark.parametrize(("rank", "seed"), [(1, 0), (1, 1), *((2, seed) for seed in range(6)), (3, 0), (3, 1)])
def test_random_convolutions(rank: int, seed: int) -> None:
    pick = random.Random(f"{rank} {seed}")
    cases.check([cases.random_case(pick, rank) for _ in range(6)], "float32", seed)


@pytest.mark.parametrize("part", range(3))
def test_layers_of_known_networks(part: int) -> None:
    cases.check(cases.plain_cases()[part::3], "float32")


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_floats(dtype: str) -> None:
    cases.test_other_floats(dtype)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int16"])
def test_integers_are_exact(dtype: str) -> None:
    cases.test_integers_are_exact(dtype)


def test_transposed_convolutions() -> None:
    cases.test_transposed_convolutions()


def test_inputs_of_size_zero() -> None:
    cases.test_inputs_of_size_zero()


# Sizes that fill tiles and tensor cores, and sizes that just do not.
TILED = [
    ((8, 64, 14, 14), (128, 64, 3, 3), {"padding": 1}),
    ((8, 128, 14, 14), (64, 128, 1, 1), {}),
    ((4, 64, 28, 28), (64, 64, 3, 3), {"padding": 1, "stride": 2}),
    ((3, 65, 13, 15), (127, 65, 3, 3), {"padding": 1}),
    ((2, 3, 64, 64), (64, 3, 7, 7), {"padding": 3, "stride": 2}),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", TILED, ids=lambda c: f"{c[0]} {c[1]}")
def test_convolutions_of_whole_tiles(case: cases.Case, dtype: str) -> None:
    cases.check([case], dtype)


# Filters that reach over one window and over several, with groups, with dilation, and of one row.
LARGE = [
    ((2, 16, 40, 36), (24, 16, 7, 7), {"padding": 3}),
    ((3, 33, 21, 17), (65, 33, 5, 5), {"padding": ((2, 1), (0, 4))}),
    ((2, 12, 30, 28), (8, 6, 5, 6), {"groups": 2, "dilation": (3, 1), "padding": 4}),
    ((2, 8, 3, 90), (16, 8, 1, 31), {"padding": ((0, 0), (15, 15))}),
    ((1, 64, 56, 56), (64, 64, 31, 31), {"padding": 15}),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("algorithm", "case"), [*(("FFT", case) for case in LARGE[:3]), *(("FFT_TILED", case) for case in LARGE)], ids=str
)
def test_convolutions_by_transforms(algorithm: str, case: cases.Case, dtype: str) -> None:
    with weft.algorithms(algorithm):
        cases.check([case], dtype)


PRODUCTS = [(128, 256, 64), (127, 255, 65), (1, 4096, 10), (1024, 33, 17), (300, 784, 128), (10, 5000, 7)]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-13), ("float16", 2e-3), ("bfloat16", 1e-2)]
)
def test_products(dtype: str, tolerance: float) -> None:
    """Plain, transposed, in batches, with bias and activation; against float64 on the very numbers."""
    rng = np.random.default_rng(0)
    kind = weft.asarray(0).astype(dtype).dtype.numpy
    groups = [[(rng.normal(size=s) / 4).astype(kind) for s in ((m, k), (k, n), (n,))] for m, k, n in PRODUCTS]

    def made(a: Any, b: Any, c: Any) -> list[Any]:
        both = weft.einsum("gik,gkj->gij", weft.stack([a, a * 2.0]), weft.stack([b, b]))
        return [a @ b, b.mT @ a.mT, weft.relu(a @ b + c), both]

    found = weft.jit(lambda groups: [made(*g) for g in groups])(groups)
    for group, results in zip(groups, found, strict=True):
        wide = [a.astype(np.float64) for a in group]
        expected = interpret(weft.make_graph(lambda *a: made(*a), *map(weft.asarray, wide)))(*wide)
        for actual, wanted in zip(results, expected, strict=True):
            length = np.sqrt(group[0].shape[1])  # of the sums: errors grow like its root
            scale = max(1.0, float(np.abs(wanted).max()))
            worst = float(np.abs(actual.numpy().astype(np.float64) - wanted).max())
            assert worst <= tolerance * scale * max(1.0, length / 8), (group[0].shape, group[1].shape, worst)
            counted()


def test_tf32_is_a_setting() -> None:
    """With it products round their factors to 11 bits; without it they do not, and other devices know no TF32."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(512, 512)).astype(np.float32) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64)

    def error() -> float:
        found = weft.jit(lambda a, b: a @ b)(a, b).numpy()
        return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))

    assert error() < 2e-6
    with weft.knobs.set(tf32=1):
        assert 1e-5 < error() < 2e-3 if IS_GPU else error() < 2e-6
