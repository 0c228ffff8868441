"""Products and convolutions of 8-bit integers, summed in int32: the integers that NumPy computes, for every kind of kernel."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import weft
from guarded import guarded_array, guarded_copy
from test_aot_c import EMULATED, STATIC, numbers, require, run
from weft.compiler.cpu import library
from weft.compiler.cpu.engine import assembly
from weft.compiler.cpu.gemm import plans as gemm
from weft.compiler.cpu.target import TARGETS, CpuTarget, compiling_for, host
from weft.compiler.thresholds import thresholds

RNG = np.random.default_rng(8)
KINDS = {"s8": (np.int8, np.int8), "u8": (np.uint8, np.uint8), "us8": (np.uint8, np.int8)}
PAIRS = [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")]
SIZES = [(33, 65, 33), (8, 12, 4), (9, 50, 5), (1, 1, 1)]  # m, n, words of k


def integers(dtype: object, shape: tuple[int, ...]) -> np.ndarray:
    """All values of a dtype, the extreme ones often."""
    limits = np.iinfo(dtype)  # type: ignore[call-overload]
    values = RNG.integers(limits.min, limits.max + 1, shape)
    extreme = RNG.integers(0, 4, shape)
    return np.where(extreme == 0, limits.min, np.where(extreme == 1, limits.max, values)).astype(dtype)  # type: ignore[call-overload]


# --- the library --------------------------------------------------------------------------------------------------------------


def check_plan(kind: str, m: int, n: int, words: int, threads: int, at_end: bool = True) -> None:
    a, b = (integers(d, (lines, 4 * words)) for d, lines in zip(KINDS[kind], (m, n), strict=True))
    left, right = guarded_copy(a, at_end=at_end), guarded_copy(b, at_end=at_end)
    c = guarded_array(m * n, np.int32, at_end=at_end)
    plan = gemm.plan(m, n, words, (words, 1), (1, words), ldc=n, dtype=kind, threads=threads)
    work = np.zeros(plan.workspace + 64, np.uint8)
    pointers = {"a": left.ctypes.data, "b": right.ctypes.data, "c": c.ctypes.data, "work": work.ctypes.data}
    library.run(plan, pointers, threads)
    np.testing.assert_array_equal(c.reshape(m, n), a.astype(np.int32) @ b.astype(np.int32).T, plan.name)


@pytest.mark.sweep("kind", share=1.0)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dot", [host().dot, ""], ids=["instruction", "plain"])
def test_products_are_exact(kind: str, dot: str) -> None:
    with compiling_for(replace(host(), dot=dot)):
        for i, size in enumerate(SIZES[:2] if dot == "" else SIZES):
            check_plan(kind, *size, threads=1 + i % 2, at_end=bool(i % 2))


@pytest.mark.sweep("kind", share=1.0)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dot", [host().dot, ""], ids=["instruction", "plain"])
def test_a_matrix_by_a_vector_is_read_in_place(kind: str, dot: str) -> None:
    with compiling_for(replace(host(), dot=dot)), thresholds.set(matvec_piece=16):
        for i, (m, n, words) in enumerate([(1, 70, 37), (70, 1, 37), (1, 3, 300), (1, 130, 256), (5, 1, 1)]):
            check_plan(kind, m, n, words, threads=1 + i % 2, at_end=bool(i % 2))
        plan = gemm.plan(1, 64, 64, (64, 1), (1, 64), ldc=64, dtype="s8")
    assert plan.name == "matrix by vector along rows"
    assert plan.workspace == 0  # nothing is packed


def test_a_long_k_in_pieces() -> None:
    with thresholds.set(product_piece=8):
        check_plan("s8", 33, 60, 70, threads=2)


def test_sums_wrap_around() -> None:
    words = 1 << 15  # 128 * 128 * 4 * 2**15 = 2**31
    a, c = np.full((1, 4 * words), -128, np.int8), np.zeros((1, 1), np.int32)
    plan = gemm.plan(1, 1, words, (words, 1), (1, words), ldc=1, dtype="s8")
    work = np.zeros(plan.workspace + 64, np.uint8)
    library.run(
        plan, {"a": a.ctypes.data, "b": a.ctypes.data, "c": c.ctypes.data, "work": work.ctypes.data}
    )  # fmt: skip
    assert c[0, 0] == -(2**31)


def product_assembly(target: CpuTarget, kind: str) -> str:
    with compiling_for(target):
        plan = gemm.plan(64, 64, 64, (64, 1), (1, 64), ldc=64, dtype=kind)
        return assembly(library.module_of(plan.phases[-1].symbol), target)


VNNI512 = replace(TARGETS["x86-64-v4"], features="+avx512vnni,-prefer-256-bit", dot="avx512vnni")
VNNI256 = replace(TARGETS["x86-64-v3"], features="+avxvnni", dot="avxvnni")
DOTPROD = replace(TARGETS["aarch64"], features="+neon,+dotprod", dot="dotprod")


@pytest.mark.parametrize(
    ("target", "kind", "instruction"),
    [
        (VNNI512, "s8", "vpdpbusd"),
        (VNNI256, "us8", "vpdpbusd"),
        (TARGETS["x86-64-v3"], "s8", "vpmaddwd"),
        (DOTPROD, "s8", "sdot"),
        (DOTPROD, "u8", "udot"),
    ],
)
def test_the_instructions_of_cpus(target: CpuTarget, kind: str, instruction: str) -> None:
    assert instruction in product_assembly(target, kind)


# --- programs -----------------------------------------------------------------------------------------------------------------


def ops_of(function, *arguments: object) -> list[str]:
    return [node.op.name for node in function.passes(*arguments)["refine"].nodes]


@pytest.mark.parametrize(("pair", "threads"), [*((pair, 1) for pair in PAIRS), (PAIRS[0], 2)])
def test_matmul(pair: tuple[str, str], threads: int) -> None:
    with weft.knobs.set(threads=threads):
        for m, n, k in [(33, 65, 132), (3, 5, 3), (1, 65, 31)]:
            x, y = integers(pair[0], (m, k)), integers(pair[1], (k, n))
            expected = x.astype(np.int32) @ y.astype(np.int32)
            function = weft.jit(lambda x, y: weft.matmul(x, y, dtype="int32"))
            captured = weft.asarray(y)
            constant = weft.jit(lambda x, y=captured: weft.matmul(x, y, dtype="int32"))
            assert ("contract_int8" in ops_of(function, x, y)) == (k >= 4)
            for _ in range(3):
                np.testing.assert_array_equal(function(x, y).numpy(), expected)
                np.testing.assert_array_equal(constant(x).numpy(), expected)


def test_batches_and_other_layouts() -> None:
    x, y = integers("int8", (3, 6, 9)), integers("int8", (3, 9, 5))
    wide_x, wide_y = x.astype(np.int32), y.astype(np.int32)
    np.testing.assert_array_equal(
        weft.jit(lambda x, y: weft.matmul(x, y, dtype="int32"))(x, y).numpy(), wide_x @ wide_y
    )
    turned = weft.jit(lambda x, y: weft.einsum("bik,bkj->jbi", x, y, dtype="int32"))(x, y).numpy()
    np.testing.assert_array_equal(turned, np.einsum("bik,bkj->jbi", wide_x, wide_y))
    mapped = weft.jit(weft.vmap(lambda x, y: weft.matmul(x, y[::-1], dtype="int32")))(x, y).numpy()
    np.testing.assert_array_equal(mapped, wide_x @ wide_y[:, ::-1])


def test_a_widened_operand_that_is_also_a_result() -> None:
    x = integers("int8", (5, 8))
    both = weft.jit(lambda x: (x.astype("int32"), weft.matmul(x, x.T, dtype="int32")))(x)
    np.testing.assert_array_equal(both[0].numpy(), x)
    np.testing.assert_array_equal(both[1].numpy(), x.astype(np.int32) @ x.T.astype(np.int32))


def test_other_integers_keep_their_dtype() -> None:
    x = integers("int8", (4, 8))
    function = weft.jit(lambda x: x @ x.T)
    np.testing.assert_array_equal(function(x).numpy(), x @ x.T)
    assert "contract_int8" not in ops_of(function, x)


CONVOLUTIONS = [
    ((2, 8, 19, 17), (12, 8, 3, 3), {"padding": 1}, True),
    ((1, 3, 11, 11), (8, 3, 7, 7), {"stride": 2, "padding": 3}, True),  # channels are padded
    ((2, 16, 5, 5), (20, 16, 1, 1), {}, True),  # a matrix product
    ((1, 16, 6, 6), (4, 16, 1, 1), {"stride": 2}, True),
    ((1, 8, 7, 7), (8, 2, 3, 3), {"groups": 4, "padding": 1}, True),
    ((1, 23, 7, 7), (23, 1, 3, 3), {"groups": 23, "padding": 1}, True),  # depthwise
    ((1, 8, 7, 7), (16, 1, 3, 3), {"groups": 8, "padding": 1}, False),  # two filters a channel: loops
    ((1, 5, 9), (3, 5, 2), {"dilation": 2}, True),
    ((1, 4, 3, 4, 5), (5, 4, 2, 2, 2), {}, True),
    ((0, 4, 5, 5), (3, 4, 3, 3), {}, False),
]


@pytest.mark.parametrize(("pair", "threads"), [*((pair, 1) for pair in PAIRS), (PAIRS[0], 2)])
def test_convolutions(pair: tuple[str, str], threads: int) -> None:
    with weft.knobs.set(threads=threads):
        for shape, filters, how, has_kernel in CONVOLUTIONS[PAIRS.index(pair) :: 1 + threads]:
            x, w = integers(pair[0], shape), integers(pair[1], filters)
            expected = weft.conv(x.astype(np.int32), w.astype(np.int32), **how).numpy()
            function = weft.jit(lambda x, w, how=how: weft.conv(x, w, dtype="int32", **how))
            captured = weft.asarray(w)
            constant = weft.jit(lambda x, w=captured, how=how: weft.conv(x, w, dtype="int32", **how))
            found = {"contract_int8", "conv_int8_last"} & set(ops_of(function, x, w))
            pointwise = set(filters[2:]) == {1} and not how
            assert bool(found) == (has_kernel and (pair != ("int8", "uint8") or pointwise or filters[1] == 1))
            for _ in range(3):
                np.testing.assert_array_equal(function(x, w).numpy(), expected)
                np.testing.assert_array_equal(constant(x).numpy(), expected)


def test_requantization_is_an_epilogue() -> None:
    weights, scale = (
        weft.asarray(integers("int8", (64, 40))),
        weft.asarray(RNG.uniform(1e-4, 1e-3, 40).astype(np.float32)),
    )
    bias = weft.asarray(RNG.integers(-1000, 1000, 40).astype(np.int32))

    def layer(x):
        total = weft.matmul(x, weights, dtype="int32") + bias
        return weft.clip(weft.round(weft.relu(total.astype("float32") * scale)), -128, 127).astype("int8")

    x = integers("int8", (70, 64))
    function = weft.jit(layer)
    total = (x.astype(np.int32) @ weights.numpy().astype(np.int32) + bias.numpy()).astype(np.float32)
    expected = np.clip(np.round(np.maximum(total * scale.numpy(), 0)), -128, 127).astype(np.int8)
    for _ in range(3):
        np.testing.assert_array_equal(function(x).numpy(), expected)
    found = function.explain(x)
    assert (found.kernels, found.prepared) == (1, 1)  # weights are transposed once, the rest is the product


# --- quantization -------------------------------------------------------------------------------------------------------------


def quantized(x: np.ndarray, scale: np.ndarray, zero: np.ndarray, low: int, high: int) -> np.ndarray:
    return np.clip(np.rint(x / scale) + zero, low, high).astype(np.int64)


@pytest.mark.parametrize(
    ("dtype", "bits", "limits"),
    [("int8", None, (-128, 127)), ("uint8", None, (0, 255)), ("int16", None, (-32768, 32767)), ("int8", 4, (-8, 7)), ("uint8", 4, (0, 15))],
)  # fmt: skip
def test_quantize(dtype: str, bits: int | None, limits: tuple[int, int]) -> None:
    x = np.concatenate(
        [RNG.normal(size=(5, 6)) * 100, np.arange(6)[None] * 0.5 - 1, [[1e30, -1e30, np.inf, -np.inf, 0, 0]]]
    )
    x = x.astype(np.float32)
    scale, zero = RNG.uniform(0.01, 1, 6).astype(np.float32), RNG.integers(0, 8, 6).astype(dtype)
    function = weft.jit(lambda x, scale, zero: weft.quantize(x, scale, zero, axis=1, dtype=dtype, bits=bits))
    for call in (function, weft.jit(lambda x, *_: weft.quantize(x, 1.0, 3, dtype=dtype, bits=bits))):
        s, z = (scale, zero) if call is function else (np.float32(1), np.int8(3))
        found = call(x, scale, zero)
        assert found.dtype.name == dtype
        np.testing.assert_array_equal(found.numpy(), quantized(x, s, z, *limits))
    back = weft.dequantize(function(x, scale, zero), scale, zero, axis=-1)
    np.testing.assert_array_equal(back.numpy(), (function(x, scale, zero).numpy() - zero.astype(np.float32)) * scale)


def test_quantize_is_rejected() -> None:
    x = weft.zeros((2, 3))
    for call, text in [
        (lambda: weft.quantize(x, [0.1, 0.2]), "[quantize] axis= is required for a scale of shape (2,), got None."),
        (lambda: weft.quantize(x, [0.1, 0.2], axis=1), "a scale of shape (3,) is required for axis 1, got (2,)"),
        (lambda: weft.quantize(x, 0.1, dtype="int32"), "one of int8, uint8, int16, uint16 is required, got int32"),
        (lambda: weft.quantize(x, 0.1, bits=9), "at most the 8 bits of int8 are possible, got bits=9"),
        (lambda: weft.requantize(x, 0.1), "[requantize] an integer dtype is required, got float32"),
        (lambda: weft.matmul(x, x.T, dtype="int3"), "[matmul] there is no dtype 'int3'"),
    ]:
        with pytest.raises(weft.UserError) as error:
            call()
        assert text in str(error.value)


def test_derivatives() -> None:
    x, scale = weft.asarray(RNG.normal(size=(3, 4)).astype(np.float32)), weft.asarray(0.1)
    q = weft.quantize(x, scale)
    slope = weft.grad(lambda s: weft.dequantize(q, s).sum())(scale)
    assert slope.item() == pytest.approx(q.numpy().sum())

    def straight_through(x):
        return (x + weft.stop_gradient(weft.dequantize(weft.quantize(x, 0.1), 0.1) - x)).sum()

    np.testing.assert_array_equal(weft.grad(straight_through)(x).numpy(), np.ones((3, 4)))


def test_requantize_in_the_kernel_of_a_convolution() -> None:
    x, w = integers("uint8", (2, 8, 12, 11)), weft.asarray(integers("int8", (16, 8, 3, 3)))
    scale, bias = RNG.uniform(1e-4, 1e-3, 16).astype(np.float32), RNG.integers(-500, 500, 16).astype(np.int32)
    held = weft.asarray(scale), weft.asarray(bias)

    def layer(x):
        total = weft.conv(x, w, held[1], padding=1, dtype="int32")
        return weft.requantize(weft.maximum(total, 0), held[0], 5, axis=1, dtype="uint8")

    function = weft.jit(layer)
    total = weft.conv(x.astype(np.int32), w.numpy().astype(np.int32), padding=1).numpy() + bias[:, None, None]
    expected = quantized(
        np.maximum(total, 0).astype(np.float32) * scale[:, None, None], np.float32(1), np.float32(5), 0, 255
    )
    for _ in range(3):
        np.testing.assert_array_equal(function(x).numpy(), expected)


def test_plain_code_on_another_cpu(tmp_path: Path) -> None:
    compiler, emulator = EMULATED["x86-64-v3"]
    require(compiler, emulator.split()[0], "make")
    w, d, last = (weft.asarray(integers("int8", s)) for s in ((9, 8, 3, 3), (9, 1, 3, 3), (9 * 36, 21)))

    def network(x):
        y = weft.requantize(weft.conv(weft.quantize(x, 0.02, 100, dtype="uint8"), w, padding=1, dtype="int32"), 1e-3)
        y = weft.requantize(weft.conv(y, d, padding=1, groups=9, dtype="int32"), 3e-3)
        return weft.matmul(y.reshape(2, -1), last, dtype="int32").astype("float32")

    x = RNG.normal(size=(2, 8, 6, 6)).astype(np.float32)
    weft.export_c(tmp_path, network, x, target="x86-64-v3")
    x.tofile(tmp_path / "x.raw")
    run("make", STATIC, f"CC={compiler}", cwd=tmp_path)
    found = numbers(run(*emulator.split(), "./example", "x.raw", cwd=tmp_path))
    np.testing.assert_array_equal(found, network(weft.asarray(x)).numpy().ravel())
