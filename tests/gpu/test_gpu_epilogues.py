"""Bias, residual and activation that NVIDIA's libraries add as they write, asked for by name: numbers against float64.

Sizes are such that the libraries have kernels for them; that they do it in one call is asserted where they are known to.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu_tools import IS_GPU

import weft
from weft.compiler.gpu.algorithms import claimed
from weft.runtime.reference import interpret
from weft.testing import counted

BY_LIBRARY = {"conv_algorithm": "CUDNN", "matmul_algorithm": "CUBLASLT"} if IS_GPU else {}
F = Callable[..., Any]


def arrays_of(shapes: tuple[tuple[int, ...], ...], dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    kind = weft.asarray(0).astype(dtype).dtype.numpy
    return [(rng.normal(size=s) / np.sqrt(max(8, np.prod(s[1:])))).astype(kind) for s in shapes]


def check(f: F, arrays: list[np.ndarray], tolerance: float, precision: str | None = None) -> Any:
    """Run it three times (played, recorded, replayed): the same bits, near to float64. Returns the program."""
    made = weft.jit(f, precision=precision)
    with weft.knobs.set(**BY_LIBRARY):
        found = [made(*arrays).numpy() for _ in range(3)]
    assert all(one.tobytes() == found[0].tobytes() for one in found)
    wide = [a.astype(np.float64) for a in arrays]
    [expected] = interpret(weft.make_graph(f, *map(weft.asarray, wide)))(*wide)
    scale = float(np.abs(expected).max())
    worst = float(np.abs(found[0].astype(np.float64) - expected).max())
    assert worst <= tolerance * scale, (worst, scale)
    counted()
    return next(iter(made.programs.latest.values())).executable.program


def in_one_call(program: Any) -> list[bool]:
    """For each product and convolution, whether a library writes what is wanted, and no kernel of ours follows."""
    return [plan.phases[-1].symbol == "library" for plan in program.plans.values()]


# --- convolutions -----------------------------------------------------------------------------------------------------------------


def first(x: Any) -> Any:
    return weft.permute_dims(x, (0, 3, 1, 2))


def last(x: Any) -> Any:
    return weft.permute_dims(x, (0, 2, 3, 1))


def layer(x: Any, w: Any, b: Any, relu: bool = True) -> Any:
    y = weft.conv(first(x), first(w), b, padding=1)
    return last(weft.relu(y) if relu else y)


def block(relu: bool) -> F:
    """Two convolutions and what goes around the second."""

    def f(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        y = layer(x, w, b)
        z = layer(y, v, c, relu=False) + y
        return weft.relu(z) if relu else z

    return f


LAYER = ((4, 14, 14, 64), (64, 3, 3, 64), (64,))
BLOCK = (*LAYER, (64, 3, 3, 64), (64,))
HALVES = [("float16", 4e-3), ("bfloat16", 3e-2)]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), *HALVES])
def test_bias_and_relu_on_a_convolution(dtype: str, tolerance: float) -> None:
    program = check(layer, arrays_of(LAYER, dtype), tolerance)
    assert not IS_GPU or dtype == "float32" or in_one_call(program) == [True]


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), *HALVES])
def test_a_residual_on_a_convolution(dtype: str, tolerance: float, relu: bool) -> None:
    program = check(block(relu), arrays_of(BLOCK, dtype), tolerance)
    assert not IS_GPU or dtype == "float32" or all(in_one_call(program))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_residual_in_mixed_precision(dtype: str) -> None:
    def two_blocks(x: Any, *filters: Any) -> Any:
        return block(True)(block(True)(x, *filters), *filters)

    check(two_blocks, arrays_of(BLOCK, "float32"), 4e-3 if dtype == "float16" else 3e-2, precision=dtype)


# --- products ---------------------------------------------------------------------------------------------------------------------


def by_tanh(x: Any) -> Any:
    return weft.gelu(x, approximate="tanh")


ENDS: dict[str, F] = {
    "bias": lambda a, b, c: a @ b + c,
    "relu": lambda a, b, c: weft.relu(a @ b),
    "bias and relu": lambda a, b, c: weft.relu(a @ b + c),
    "gelu": lambda a, b, c: by_tanh(a @ b),
    "bias and gelu": lambda a, b, c: by_tanh(a @ b + c),
    "turned factors": lambda a, b, c: weft.relu(b.mT @ a.mT + c),
}
SIZES = [(256, 512, 256), (1000, 264, 1000)]  # as many rows as columns: both orders of the factors


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), *HALVES])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", ENDS)
def test_what_follows_a_product(name: str, size: tuple[int, int, int], dtype: str, tolerance: float) -> None:
    m, k, n = size
    program = check(ENDS[name], arrays_of(((m, k), (k, n), (n,)), dtype), tolerance)
    assert not IS_GPU or dtype == "float32" or in_one_call(program) == [True]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_layers_in_mixed_precision(dtype: str) -> None:
    """The first bias is rounded with its result; the second is of float32, as the end is."""

    def layers(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        return weft.relu(by_tanh(x @ w + b) @ v + c)

    shapes = ((256, 128), (128, 512), (512,), (512, 64), (64,))
    check(layers, arrays_of(shapes, "float32"), 4e-3 if dtype == "float16" else 3e-2, precision=dtype)


def derivatives(x: Any, w: Any, b: Any, v: Any, g: Any) -> Any:
    """Of two layers with a gelu between them, as one tensor: what goes into the input, the first bias and the second weight."""

    def layers(x: Any, b: Any, v: Any) -> Any:
        return by_tanh(x @ w + b) @ v

    data, bias, weight = weft.vjp(layers, x, b, v)[1](g)
    return weft.concat([data, bias[None], weight.mT])


PAIR = ((256, 512), (512, 512), (512,), (512, 128), (256, 128))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), *HALVES])
def test_the_derivative_of_a_gelu_on_a_product(dtype: str, tolerance: float) -> None:
    program = check(derivatives, arrays_of(PAIR, dtype), tolerance)
    asked = [claimed(kernel, plan.phases[-1]).spec.epilogue for kernel, plan in _by_library(program)]
    assert not IS_GPU or dtype == "float32" or {"bias_gelu_tanh_sum", "dgelu_tanh"} <= set(asked), asked


def _by_library(program: Any) -> list[Any]:
    return [(k, p) for k, p in program.plans.items() if p.phases[-1].symbol == "library"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_derivative_of_a_gelu_in_mixed_precision(dtype: str) -> None:
    check(derivatives, arrays_of(PAIR, "float32"), 4e-3 if dtype == "float16" else 3e-2, precision=dtype)


@pytest.mark.parametrize(("dtype", "large"), [("float16", 1e4), ("bfloat16", 1e15), ("float32", 1e15)])
def test_derivatives_of_large_numbers_are_none_or_one(dtype: str, large: float) -> None:
    """Where a cube overflows: a gradient passes above zero, and nothing does below."""
    kind = weft.asarray(0).astype(dtype).dtype.numpy
    rng = np.random.default_rng(0)
    w, g, v = (rng.normal(size=s).astype(kind) for s in ((64, 64), (64, 64), (64, 64)))
    x = (np.eye(64) * large).astype(kind)  # so that sums are large, whichever way they are added up
    sums = x.astype(np.float64) @ w.astype(np.float64)

    def into(x: Any, w: Any, v: Any, g: Any) -> Any:
        return weft.vjp(lambda sums: by_tanh(sums) @ v, x @ w)[1](g)[0]

    with weft.knobs.set(**BY_LIBRARY):
        found = weft.jit(into)(x, w, v, g).numpy().astype(np.float64)
    expected = np.where(sums > 0, g.astype(np.float64) @ v.astype(np.float64).T, 0.0)
    far = np.abs(sums) > 10
    assert far.mean() > 0.99
    np.testing.assert_allclose(found[far], expected[far], rtol=0, atol=3e-2 * np.abs(expected).max())
    counted()


def test_a_batch_with_one_bias() -> None:
    shapes = ((6, 64, 128), (6, 128, 96), (96,))
    check(lambda a, b, c: weft.relu(a @ b + c), arrays_of(shapes, "float16"), 4e-3)


def test_large_numbers_end_as_they_should() -> None:
    """Where the cube of a gelu overflows: the number itself above zero, nothing below."""
    a, b, c = arrays_of(((64, 64), (64, 64), (64,)), "float32")
    with weft.knobs.set(**BY_LIBRARY):
        found = weft.jit(ENDS["bias and gelu"])(a * 1e15, b * 1e5, c).numpy()
    sums = (a * 1e15).astype(np.float64) @ (b * 1e5).astype(np.float64)
    np.testing.assert_allclose(found, np.maximum(sums, 0), rtol=1e-4, atol=1e-5 * np.abs(sums).max())
    counted()


def test_state_is_added_to_and_replaced() -> None:
    """New state takes the place of the old, which is added: no library is trusted to read it in time."""
    x, w, b, s = arrays_of((*LAYER, LAYER[0]), "float16")
    state = weft.asarray(s)

    @weft.jit
    def step(x: Any, w: Any, b: Any) -> Any:
        state.assign(weft.relu(layer(x, w, b, relu=False) + state))
        return weft.sum(state.astype("float32"))

    expected = s.astype(np.float64)
    wide = [a.astype(np.float64) for a in (x, w, b)]
    [added] = interpret(weft.make_graph(lambda *a: layer(*a, relu=False), *map(weft.asarray, wide)))(*wide)
    with weft.knobs.set(**BY_LIBRARY):
        for _ in range(3):
            step(x, w, b)
            expected = np.maximum(expected + added, 0)
    np.testing.assert_allclose(state.numpy().astype(np.float64), expected, rtol=0, atol=5e-3 * np.abs(expected).max())
    counted()
