"""Convolutions by fast Fourier transforms: the transforms against NumPy's, the plans against a float64 convolution, and the choice."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import weft
from test_conv_plans import DIRECTIONS, FFT, check, conv_shape, element_strides, execute, layouts, make_case
from weft.compiler.cpu.conv import algorithms as conv
from weft.compiler.cpu.conv.choice import decide
from weft.compiler.cpu.engine import Loaded, object_code
from weft.compiler.cpu.fft import filter_gradient_plan, plan
from weft.compiler.cpu.fft.transforms import complex_transform, real_inverse, real_transform
from weft.compiler.cpu.ir_builder import F64, PTR, Code, Value, new_module
from weft.compiler.cpu.target import TARGETS, CpuTarget, host
from weft.compiler.ir.conv_shape import ConvShape
from weft.compiler.ir.fft_tiling import LEAST_TAPS, SIZES, FftTiling, FftWindow
from weft.compiler.thresholds import LOWERED, thresholds
from weft.options import CompileOptions


def transformed(
    values: np.ndarray, transform: Callable[[Code, list[Value]], Sequence[Value]], results: int
) -> np.ndarray:
    """What the code of a transform gives for float64 numbers, one lane wide."""
    code = Code.begin(new_module("transform"), "transform", [PTR, PTR])
    source, target = code.arguments
    found = transform(code, [code.read(source, i, F64) for i in range(values.size)])
    for i, value in enumerate(found):
        code.write(value, target, i)
    code.done()
    loaded, out = Loaded(object_code(code.module)), np.zeros(results)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(loaded.address("transform"))
    function(values.ctypes.data, out.ctypes.data)
    return out


def flat(pairs: Sequence[tuple[Value, Value]]) -> list[Value]:
    return [part for pair in pairs for part in pair]


@pytest.mark.parametrize("size", [1, *SIZES[:-2], 3, 5, 6])
def test_transforms(size: int) -> None:
    """Real, complex in both directions, and back; odd lengths as well, which end every recursion."""
    rng = np.random.default_rng(size)
    x, z = rng.standard_normal(size), rng.standard_normal(2 * size)
    spectrum = transformed(x, lambda code, v: flat(real_transform(code, v)), 2 * (size // 2 + 1)).view(complex)
    np.testing.assert_allclose(spectrum, np.fft.rfft(x), atol=1e-13)
    again = transformed(
        spectrum.view(float), lambda code, v: real_inverse(code, list(zip(v[0::2], v[1::2], strict=True)), size), size
    )
    np.testing.assert_allclose(again, size * x, atol=1e-12)
    for sign, reference in ((-1, np.fft.fft), (1, lambda a: size * np.fft.ifft(a))):
        got = transformed(
            z, lambda code, v, sign=sign: flat(complex_transform(code, list(zip(v[0::2], v[1::2], strict=True)), sign)), 2 * size
        )  # fmt: skip
        np.testing.assert_allclose(got.view(complex), reference(z.view(complex)), atol=1e-12)


@pytest.mark.parametrize("window", [FftWindow(8, 8), FftWindow(1, 40), FftWindow(20, 1), FftWindow(10, 12)])
def test_points_are_half_of_a_window(window: FftWindow) -> None:
    """All points of the spectrum of a real image that are not conjugates of others, each once."""
    ky, kx = np.meshgrid(np.arange(window.y), np.arange(window.x), indexing="ij")
    other = (-ky % window.y) * window.x + -kx % window.x
    assert window.points == len({frozenset(pair) for pair in zip((ky * window.x + kx).flat, other.flat, strict=True)})


SHAPES = {
    "7x7": conv_shape((9, 8), (7, 7), (20, 37), batch=2, before=(3, 3)),
    "edges": conv_shape((23, 21), (5, 6), (16, 16), before=(1, 0), after=(3, 2)),
    "a line": conv_shape((5, 40), (1, 31), (5, 7), before=(0, 15)),
    "groups": conv_shape((20, 13), (5, 5), (24, 36), groups=3, dilation=(2, 1), batch=3, before=(2, 3)),
    "one channel": conv_shape((11, 12), (5, 5), (1, 2)),
    "larger than the image": conv_shape((4, 3), (9, 7), (3, 17), batch=5, before=(4, 4)),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(direction: str, name: str) -> None:
    check(SHAPES[name], direction, seed=len(name), only="FFT_TILED")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_whole_images(direction: str) -> None:
    check(SHAPES["7x7"], direction, only="FFT")


def drawn(rng: np.random.Generator) -> ConvShape:
    """A shape whose windows are small, so that few functions are compiled."""
    groups = int(rng.choice([1, 1, 2, 3]))
    inputs, outputs = (int(n) for n in rng.integers(2, 40, 2))
    kernel = (int(rng.integers(3, 8)), int(rng.integers(5, 8)))
    while kernel[0] * kernel[1] < LEAST_TAPS:
        kernel = kernel[0] + 1, kernel[1]
    before, after = ((int(a), int(b)) for a, b in rng.integers(0, 4, (2, 2)))
    spatial = tuple(int(n) for n in rng.integers(7, 22, 2))
    return conv_shape(
        spatial,
        kernel,
        (groups * inputs, groups * outputs),
        batch=int(rng.integers(1, 4)),
        groups=groups,
        before=before,
        after=after,
    )


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Windows of one size, whatever is fastest: many tiles, and few functions to compile."""
    every = plan.tilings

    def fixed(name: str, *given: Any) -> list[FftTiling]:
        return [t for t in every(name, *given) if t.window == FftWindow(10, 12)] or every(name, *given)

    for module in (plan, filter_gradient_plan):
        monkeypatch.setattr(module, "tilings", fixed)
        module.best_tiling.cache_clear()
    yield
    for module in (plan, filter_gradient_plan):
        module.best_tiling.cache_clear()


@pytest.mark.sweep("direction", share=0.25)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("seed", range(8))
def test_random_shapes(direction: str, seed: int, small_windows: None) -> None:
    """Many tiles, in several slabs."""
    with thresholds.set(fft_slab=LOWERED["fft_slab"], fft_slab_bytes=LOWERED["fft_slab_bytes"]):
        check(drawn(np.random.default_rng(seed)), direction, seed, only="FFT_TILED")


def test_slabs_do_not_change_the_bits(small_windows: None) -> None:
    shape = conv_shape((9, 10), (5, 5), (3, 20), batch=5, before=(2, 2))
    case = make_case(shape)
    w, strides = layouts(case, 1)
    for direction in DIRECTIONS:
        one = getattr(conv, direction)(shape, strides, 1)["FFT_TILED"]
        with thresholds.set(fft_slab=2, fft_slab_bytes=1):
            many = getattr(conv, direction)(shape, strides, 1)["FFT_TILED"]
            got = execute(many, case, w, direction, 2)
        assert len(many.phases) > len(one.phases)
        assert many.workspace < one.workspace
        np.testing.assert_array_equal(got, execute(one, case, w, direction, 1))


def test_where_it_is_chosen() -> None:
    """For large filters and enough channels; not for small ones, with a stride, or for depthwise convolutions."""
    target = CpuTarget("x86_64", "x", "", 512, 32, l2=1 << 20)

    def chosen(kernel: int, channels: int, size: int, direction: str, groups: int = 1, stride: int = 1) -> str:
        half = (kernel // 2, kernel // 2)
        shape = conv_shape((size, size), (kernel, kernel), (channels, channels), batch=4, before=half, groups=groups, stride=(stride, stride))  # fmt: skip
        strides = element_strides(np.empty((channels, channels // groups, kernel, kernel), np.float32))
        return conv.choose(direction, shape, strides, 2, target).name  # type: ignore[arg-type]

    for direction in DIRECTIONS:
        for kernel in (7, 9, 11, 15, 31):
            assert chosen(kernel, 64, 56, direction) in FFT
            assert chosen(kernel, 64, 56, direction, stride=2) not in FFT
        assert chosen(3, 64, 56, direction) not in FFT
        assert chosen(5, 128, 14, direction) not in FFT
        assert chosen(7, 4, 14, direction) not in FFT
        assert chosen(7, 64, 56, direction, groups=64) not in FFT


def test_by_name_in_a_program() -> None:
    """Forward and both gradients against float64, with an epilogue; a filter that is a constant is transformed once."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s, np.float32) for s in ((2, 17, 14, 13), (18, 17, 7, 7)))

    def loss(x: weft.Tensor, w: weft.Tensor, algorithm: str) -> weft.Tensor:
        return weft.sum(weft.relu(weft.conv(x, w, padding=3, algorithm=algorithm)) ** 2)

    step = weft.jit(lambda x, w: weft.value_and_grad(lambda *a: loss(*a, "FFT_TILED"), (0, 1))(x, w))
    value, grads = step(x, w)
    with weft.knobs.set(device="reference"):
        want, expected = weft.value_and_grad(lambda *a: loss(*a, "LOOPS"), (0, 1))(
            x.astype(np.float64), w.astype(np.float64)
        )
        np.testing.assert_allclose(value.numpy(), want.numpy(), rtol=1e-5)
        for got, gradient in zip(grads, expected, strict=True):
            np.testing.assert_allclose(got.numpy(), gradient.numpy(), atol=3e-6 * abs(gradient.numpy()).max())
    assert "FFT_TILED" in str(step.explain(x, w))
    kept = weft.asarray(w)
    infer = weft.jit(lambda x: weft.conv(x, kept, padding=3, algorithm="FFT_TILED"))
    assert "packed once" in str(infer.explain(x))
    np.testing.assert_array_equal(
        infer(x).numpy(), weft.jit(lambda x, w: weft.conv(x, w, padding=3, algorithm="FFT_TILED"))(x, w).numpy()
    )


def test_refused_with_a_reason() -> None:
    """Another algorithm does it, and the note says why."""
    long, wide = conv_shape((80, 9), (7, 7), (4, 4)), conv_shape((80, 9), (7, 7), (4, 4), dilation=(12, 1))
    strided, small = conv_shape((20, 20), (7, 7), (4, 4), stride=(2, 1)), conv_shape((20, 20), (3, 3), (4, 4))
    depthwise = conv_shape((20, 20), (7, 7), (4, 4), groups=4)
    cases = [
        ("FFT", long, "at most 64 pixels"), ("FFT_TILED", wide, "fewer than 64 pixels"), ("FFT", strided, "stride 1"),
        ("FFT_TILED", small, "25 taps or more"), ("FFT_TILED", depthwise, "groups of more than one channel"),
    ]  # fmt: skip
    for name, shape, reason in cases:
        for direction in DIRECTIONS:
            found = decide(direction, shape, (1, 4, 4, 4), CompileOptions("cpu", threads=2), name)
            assert reason in found.note
            assert found.plan.name not in FFT


def test_found_and_measured() -> None:
    table = weft.find_algorithms(weft.ones((1, 16, 9, 9)), weft.ones((16, 16, 5, 5)), padding=2, repetitions=1)
    rows = {(row.direction, row.name): row for row in table.rows}
    for direction in ("forward", "data", "filter"):
        assert rows[direction, "FFT"].error < 1e-6
        assert rows[direction, "FFT_TILED"].error < 1e-6


def test_other_cpus() -> None:
    """There are plans for all CPUs, with windows that fit on the stack, which is small in web pages."""
    shape = conv_shape((60, 60), (5, 5), (16, 16))
    for name, target in (*TARGETS.items(), ("host", host())):
        plans = conv.forward(shape, (1, 16, 16, 16), 2, target) | conv.filter_gradient(
            shape, (1, 16, 16, 16), 2, target
        )
        assert "FFT_TILED" in plans
        assert ("FFT" in plans) is (name != "wasm32")
