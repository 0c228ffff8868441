"""The matrix unit of x86 CPUs (AMX) computes the integers that NumPy computes: products and convolutions, whole tiles, edges and remainders."""

from dataclasses import replace

import numpy as np
import pytest

import weft
from guarded import guarded_array, guarded_copy
from test_int8 import KINDS, integers, product_assembly
from weft.compiler.cpu import library
from weft.compiler.cpu.conv.shape import forward_sweep
from weft.compiler.cpu.conv.sweep_plan import blocks
from weft.compiler.cpu.gemm import plans as gemm
from weft.compiler.cpu.gemm.matrix_unit import is_matrix_tile
from weft.compiler.cpu.gemm.tiling import Problem, candidates
from weft.compiler.cpu.roofline import _int8_rate
from weft.compiler.cpu.target import TARGETS, CpuTarget, compiling_for, find_target, host
from weft.compiler.ir.conv_shape import ConvShape
from weft.compiler.thresholds import thresholds

AMX = replace(
    TARGETS["x86-64-v4"],
    features="+avx512vnni,+amx-tile,+amx-int8,-prefer-256-bit",
    dot="avx512vnni",
    matrix="amx-int8",
)
runs_tiles = pytest.mark.skipif(
    not host().matrix, reason="this CPU has no matrix unit, or Linux does not allow its use"
)


@pytest.mark.parametrize(("kind", "instruction"), [("s8", "tdpbssd"), ("u8", "tdpbuud"), ("us8", "tdpbusd")])
def test_each_kind_of_product_has_an_instruction(kind: str, instruction: str) -> None:
    text = product_assembly(AMX, kind)
    assert instruction in text
    assert text.index("ldtilecfg") < text.rindex("tilerelease")
    assert instruction not in product_assembly(replace(AMX, matrix=""), kind)


@pytest.mark.parametrize(("m", "n", "words", "tile"), [
    (64, 64, 64, "32x32"), (16, 64, 64, "16x32"), (15, 64, 64, ""), (64, 64, 16, "32x32"), (64, 64, 15, ""),
])  # fmt: skip
def test_products_of_at_least_one_tile_use_it(m: int, n: int, words: int, tile: str) -> None:
    with compiling_for(AMX):
        name = gemm.plan(m, n, words, (words, 1), (1, words), ldc=n, dtype="us8").name
    assert f"gemm {tile} " in name if tile else not any(f" {shape} " in name for shape in ("32x32", "16x32"))


def test_exported_code_has_none() -> None:
    """A process must ask Linux for the tile registers before it runs such code; a C program does not."""
    assert find_target("host").matrix == ""
    assert find_target("host").dot == host().dot


def test_the_roof_of_bytes() -> None:
    assert [_int8_rate(target) for target in (AMX, replace(AMX, matrix=""), TARGETS["x86-64-v3"])] == [32.0, 4.0, 1.0]


@runs_tiles
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m", "n", "words"), [
    (32, 32, 16), (33, 65, 33), (64, 40, 17), (70, 33, 48), (16, 48, 31), (31, 31, 20), (97, 15, 40), (40, 70, 600), (130, 100, 1100),
])  # fmt: skip
def test_products_are_exact(kind: str, m: int, n: int, words: int) -> None:
    done: list[str] = []
    for threads, at_end, rows_apart in ((1, True, 0), (2, False, 0), (3, True, 5)):
        stride = words + rows_apart
        a, b = (integers(d, (lines, 4 * k)) for d, lines, k in zip(KINDS[kind], (m, n), (stride, words), strict=True))
        left, right = (guarded_copy(operand, at_end=at_end) for operand in (a, b))
        c = guarded_array(m * n, np.int32, at_end=at_end)
        expected = a[:, : 4 * words].astype(np.int32) @ b.astype(np.int32).T
        problem = Problem(
            m, n, words, (stride, 1), (1, words), (n, 1), 1, 0, 0, 0, kind, kind, kind, threads, accumulate=False
        )
        for tiling in [t for t in candidates(problem, host()) if is_matrix_tile(t.kernel.tile)]:
            plan = gemm.plan_as(problem, tiling, host())
            work = np.zeros(plan.workspace + 64, np.uint8)
            pointers = {"a": left.ctypes.data, "b": right.ctypes.data, "c": c.ctypes.data, "work": work.ctypes.data}
            library.run(plan, pointers, threads)
            np.testing.assert_array_equal(c.reshape(m, n), expected, plan.name)
            done.append(plan.name)
    assert len(done) >= 6, done  # packed first and by each task


CONVOLUTIONS = [
    ((2, 64, 9, 7), (64, 64, 3, 3), {"padding": 1}),
    ((1, 64, 13, 13), (40, 64, 3, 3), {"padding": 1}),  # columns of a part of a tile
    ((2, 4, 23, 21), (64, 4, 7, 7), {"stride": 2, "padding": 3}),  # k has a remainder
    ((3, 128, 8, 8), (70, 128, 1, 1), {"stride": 2}),
    ((1, 64, 12, 11), (128, 32, 3, 3), {"groups": 2, "padding": 2, "dilation": 2}),
    ((2, 32, 50), (64, 32, 5), {"padding": (2,)}),
    ((1, 16, 4, 6, 7), (48, 16, 3, 3, 3), {"padding": 1}),
]


@runs_tiles
@pytest.mark.parametrize("pair", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions_are_exact(
    pair: tuple[str, str], case: tuple[tuple[int, ...], tuple[int, ...], dict[str, object]]
) -> None:
    shape, filters, how = case
    x, w = integers(pair[0], shape), integers(pair[1], filters)
    expected = weft.conv(x.astype(np.int32), w.astype(np.int32), **how).numpy()
    for threads, piece in ((1, 128 << 10), (2, 4096), (6, 128 << 10)):  # pieces: sums are stored and loaded again
        with weft.knobs.set(threads=threads), thresholds.set(filter_piece=piece):
            function = weft.jit(lambda x, w: weft.conv(x, w, dtype="int32", **how))
            for _ in range(2):
                np.testing.assert_array_equal(function(x, w).numpy(), expected)


def test_convolutions_use_it() -> None:
    def by_matrix_unit(channels: int, target: CpuTarget) -> list[bool]:
        shape = ConvShape(1, channels, 64, 1, (14, 14), (3, 3), (1, 1), (1, 1), (1, 1), (14, 14))
        sweep = replace(
            forward_sweep(shape, (9 * channels, 1, 3 * channels, channels)), kind="us8", inputs=channels // 4
        )
        return [block.by_matrix_unit for block in blocks(sweep, target)]

    assert by_matrix_unit(64, AMX) == [True]
    assert by_matrix_unit(4, AMX) == [False]  # k has 9 words
    assert by_matrix_unit(64, replace(AMX, matrix="")) == [False]
