"""What cuBLASLt is asked for: claims as tests/claims_tools.py answers them."""

from typing import Any

import numpy as np
import pytest

import weft
from claims_tools import F, asked, claims_of
from weft.compiler.gpu.vendor.claims import Claim
from weft.compiler.gpu.vendor.specs import ProductSpec

# --- bias and activations ride on cuBLASLt --------------------------------------------------------------------------------------------------

FACTORS = ((8, 16), (16, 8), (8,))  # as many rows as columns: a bias must not be mistaken


def by_tanh(x: Any) -> Any:
    return weft.gelu(x, approximate="tanh")


def written_out(x: Any) -> Any:
    """A gelu by tanh as many write it, without care for large numbers."""
    return x * (weft.tanh((x * x * x * 0.044715 + x) * 0.7978845608) + 1.0) * 0.5


ON_PRODUCTS: dict[str, tuple[F, str]] = {
    "bias": (lambda a, b, c: a @ b + c, "bias"),
    "bias from the left": (lambda a, b, c: c + a @ b, "bias"),
    "relu": (lambda a, b, c: weft.relu(a @ b), "relu"),
    "bias and relu": (lambda a, b, c: weft.relu(a @ b + c), "bias_relu"),
    "gelu": (lambda a, b, c: by_tanh(a @ b), "gelu_tanh"),
    "bias and gelu": (lambda a, b, c: by_tanh(a @ b + c), "bias_gelu_tanh"),
    "a gelu written out": (lambda a, b, c: written_out(a @ b + c), "bias_gelu_tanh"),
    "turned factors": (lambda a, b, c: weft.relu(b.mT @ a.mT + c), "bias_relu"),
}


@pytest.mark.parametrize("dtype", [weft.float32, weft.bfloat16, weft.float16], ids=str)
@pytest.mark.parametrize("name", ON_PRODUCTS)
def test_bias_and_activation_ride_on_the_product(name: str, dtype: Any) -> None:
    f, epilogue = ON_PRODUCTS[name]
    how: dict[str, Any] = {"dtype": dtype, "tolerance": 3e-6 if dtype is weft.float32 else 0.02}
    [wanted] = asked(f, *FACTORS, **how)
    assert isinstance(wanted.spec, ProductSpec)
    assert (wanted.spec.epilogue, wanted.direct, wanted.library) == (epilogue, True, "CUBLASLT")
    assert (wanted.spec.c_dtype, wanted.rounded) == (dtype.name, None)
    assert [n.shape for n in wanted.more] == ([(8,)] if "bias" in epilogue else [])
    [without] = asked(f, *FACTORS, plain=True, **how)
    assert (without.spec.epilogue, without.direct) == ("", False)


def test_one_bias_for_a_whole_batch() -> None:
    [wanted] = asked(lambda a, b, c: weft.relu(a @ b + c), (3, 8, 16), (3, 16, 8), (8,))
    assert (wanted.spec.batch, wanted.spec.epilogue) == (3, "bias_relu")
    [each] = asked(lambda a, b, c: weft.relu(a @ b + c), (3, 8, 16), (3, 16, 8), (3, 1, 8))
    assert (each.spec.epilogue, each.direct) == ("", False)
    [rows] = asked(lambda a, b, c: by_tanh(a @ b + c).reshape(6, -1), (3, 8, 16), (16, 8), (8,))
    assert (rows.spec.batch, rows.spec.m, rows.spec.epilogue) == (1, 24, "bias_gelu_tanh")


def test_products_in_mixed_precision() -> None:
    """The bias is of the result's type: a copy where that has 16 bits, itself where it has 32."""
    shapes = (*FACTORS, (8, 24), (24,))
    found = asked(
        lambda a, b, c, d, e: weft.relu(by_tanh(a @ b + c) @ d + e), *shapes, narrow="float16", tolerance=0.01
    )
    assert [c.spec.epilogue for c in found] == ["bias_gelu_tanh", "bias_relu"]
    assert [(c.spec.a_dtype, c.spec.c_dtype) for c in found] == [("float16", "float16"), ("float16", "float32")]
    assert [(c.more[0].dtype, c.rounded is not None) for c in found] == [(weft.float16, True), (weft.float32, False)]


def gelu_like(half: float = 0.5, one: float = 1.0, slope: float = 0.7978845608, cubic: float = 0.044715, low: float = -10.0, high: float = 10.0) -> F:  # fmt: skip
    def f(x: Any, gate: Any = None) -> Any:
        near = weft.clip(x if gate is None else gate, low, high)
        return half * x * (one + weft.tanh(slope * (near + cubic * (near * near * near))))

    return f


def cut_by_others(x: Any, low: bool) -> Any:
    """A gelu whose clip asks another number than the one that it cuts."""
    near = weft.where((2.0 * x if low else x) < -10.0, -10.0, x)
    near = weft.where((near if low else 2.0 * near) > 10.0, 10.0, near)
    return 0.5 * x * (1.0 + weft.tanh(0.7978845608 * (near + 0.044715 * (near * near * near))))


NOT_ON_PRODUCTS: dict[str, F] = {
    "bias along the rows": lambda a, b, c: weft.relu(a @ b + c[:, None]),
    "one number": lambda a, b, c: weft.relu(a @ b + c[0]),
    "a bias the other way round": lambda a, b, c: a @ b + weft.flip(c),
    "the bias is taken away": lambda a, b, c: weft.relu(a @ b - c),
    "two biases": lambda a, b, c: weft.relu(a @ b + c + weft.flip(c)),
    "a residual": lambda a, b, c: weft.relu(a @ b + c + b.mT @ a.mT * c),
    "a scale": lambda a, b, c: (a @ b) * 3.0 + c,
    "the relu first": lambda a, b, c: weft.relu(a @ b) + c,
    "a clip": lambda a, b, c: weft.clip(a @ b + c, 0.0, 6.0),
    "another activation": lambda a, b, c: weft.silu(a @ b + c),
    "a relu and more": lambda a, b, c: weft.relu(a @ b + c) * 2.0,
    "a relu of a gelu": lambda a, b, c: weft.relu(by_tanh(a @ b + c)),
    "the exact gelu": lambda a, b, c: weft.gelu(a @ b + c),
    "a gelu by the logistic function": lambda a, b, c: (lambda x: x * weft.sigmoid(1.702 * x))(a @ b + c),
    "half of what": lambda a, b, c: gelu_like(half=0.25)(a @ b + c),
    "twice the one": lambda a, b, c: gelu_like(one=2.0)(a @ b + c),
    "another slope": lambda a, b, c: gelu_like(slope=0.8)(a @ b + c),
    "another cube": lambda a, b, c: gelu_like(cubic=0.05)(a @ b + c),
    "clipped too early": lambda a, b, c: gelu_like(low=-1.0)(a @ b + c),
    "clipped too early at the top": lambda a, b, c: gelu_like(high=1.0)(a @ b + c),
    "clipped by another": lambda a, b, c: cut_by_others(a @ b + c, low=True),
    "clipped by another at the top": lambda a, b, c: cut_by_others(a @ b + c, low=False),
    "gated by another": lambda a, b, c: gelu_like()(a @ b, a @ b + c),
    "gated by itself turned": lambda a, b, c: gelu_like()(a @ b, (a @ b).mT),
    "turned": lambda a, b, c: (weft.relu(a @ b + c) * 1.0).mT,
    "the sum of a relu is wanted too": lambda a, b, c: (lambda x: (x, weft.relu(x)))(a @ b + c),
    "the sum is wanted turned": lambda a, b, c: (lambda x: (x.mT, by_tanh(x)))(a @ b + c),
    "the sum is wanted twice": lambda a, b, c: (lambda x: (x, by_tanh(x), 2.0 * x))(a @ b + c),
    "twice the sum is wanted": lambda a, b, c: (lambda x: (2.0 * x, by_tanh(x)))(a @ b + c),
    "the product is wanted too": lambda a, b, c: (a @ b, weft.relu(a @ b + c)),
}


@pytest.mark.parametrize("name", NOT_ON_PRODUCTS)
def test_what_does_not_ride_on_products(name: str) -> None:
    for wanted in asked(NOT_ON_PRODUCTS[name], *FACTORS):
        assert (wanted.spec.epilogue, wanted.more) == ("", ())


# --- the derivative of a gelu -----------------------------------------------------------------------------------------------------------


def layers(act: F) -> F:
    """Two layers, and the derivatives of all that is multiplied and added."""

    def loss(a: Any, b: Any, c: Any, d: Any) -> Any:
        return weft.sum(weft.square(act(a @ b + c) @ d))

    return weft.grad(loss, argnums=(0, 1, 2, 3))


@pytest.mark.parametrize("how", ["float32", "float16", "mixed"])
@pytest.mark.parametrize("act", [by_tanh, written_out])
def test_a_gelu_keeps_its_sum_for_its_derivative(act: F, how: str) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "float32": {"tolerance": 1e-5},
        "float16": {"dtype": weft.float16, "tolerance": 0.02},
        "mixed": {"narrow": weft.bfloat16, "tolerance": 0.03},
    }
    n = 128 if how == "mixed" else 8  # only what is large is kept in 16 bits
    found = asked(layers(act), (n, 16), (16, n), (n,), (n, 24), **kinds[how])
    [forward] = [c for c in found if c.spec.epilogue == "bias_gelu_tanh_sum"]
    [backward] = [c for c in found if c.spec.epilogue == "dgelu_tanh"]
    assert forward.direct
    assert backward.direct
    assert forward.more[-1] is backward.more[0]
    assert forward.more[-1].dtype is forward.result.dtype is backward.result.dtype
    assert len(found) == 6


def test_derivatives_of_large_numbers() -> None:
    found = asked(
        lambda a, b, x: (lambda s: (s, slope(a @ b, s)))((1e5 * x) @ (1e5 * x)),
        (8, 16),
        (16, 8),
        (8, 8),
        tolerance=1e-5,
    )
    assert [c.spec.epilogue for c in found] == ["", "dgelu_tanh"]


def test_a_sum_that_is_a_result_is_kept_too() -> None:
    [wanted] = asked(lambda a, b, c: (lambda x: (x, by_tanh(x)))(a @ b + c), *FACTORS)
    assert (wanted.spec.epilogue, wanted.direct, len(wanted.more)) == ("bias_gelu_tanh_sum", True, 2)
    [plain] = asked(lambda a, b, c: (lambda x: (by_tanh(x), x))(a @ b), *FACTORS)
    assert (plain.spec.epilogue, plain.direct, len(plain.more)) == ("gelu_tanh_sum", True, 1)


def slope(g: Any, x: Any, act: F = by_tanh) -> Any:
    """The gradient that goes into an activation, of the one that comes out of it."""
    return weft.grad(lambda x: weft.sum(act(x) * g))(x)


def riding(f: F) -> list[Claim]:
    """What is claimed for two products: a result of the program, and one that a function makes something of together with it."""
    return asked(lambda a, b, x: (lambda s: (s, f(a @ b, s)))(x @ x), (8, 16), (16, 8), (8, 8), tolerance=1e-5)


def test_a_derivative_of_what_was_read() -> None:
    _, wanted = riding(slope)
    assert (wanted.spec.epilogue, wanted.spec.k, wanted.direct) == ("dgelu_tanh", 16, True)
    # A given tensor of the same size may be state whose place the result takes.
    [given] = asked(lambda a, b, x: slope(a @ b, x), (8, 16), (16, 8), (8, 8))
    assert given.spec.epilogue == ""


NO_SLOPE: dict[str, F] = {
    "of the exact gelu": lambda g, x: slope(g, x, weft.gelu),
    "of silu": lambda g, x: slope(g, x, weft.silu),
    "of a relu": lambda g, x: slope(g, x, weft.relu),
    "the gelu itself": lambda g, x: by_tanh(x) * g,
    "turned": lambda g, x: slope(g, x.mT),
    "with each other's parts": lambda g, x: slope(x, g),
    "twice": lambda g, x: slope(2.0 * g, x),
    "added to": lambda g, x: slope(g, x) + x,
    "of another": lambda g, x: slope(g, 2.0 * x),
    "but at one point": lambda g, x: weft.where(x == 0.3125, 0.0, slope(g, x)),
    "but beyond a border": lambda g, x: weft.where(x > 14.0, 0.0, slope(g, x)),
    "but for large gradients": lambda g, x: weft.where(g > 1.0, 0.0, slope(g, x)),
    "but where it is nan": lambda g, x: (lambda y: weft.where(weft.isnan(y), 0.0, y))(slope(g, x)),
    "but where it is infinite": lambda g, x: (lambda y: weft.where(weft.isfinite(y), y, 0.0))(slope(g, x)),
    "but for nan": lambda g, x: weft.where(x <= x, slope(g, x), 0.0),
    "but where a square is small": lambda g, x: weft.where(x * x < 1e-9, 0.0, slope(g, x)),
    "but near to zero": lambda g, x: weft.where((x > 0.0) & (x < 1e-4), 0.0, slope(g, x)),
    "but for small gradients": lambda g, x: weft.where(weft.abs(g) < 1e-4, 0.0, slope(g, x)),
    "of rounded gradients": lambda g, x: slope(g.astype("bfloat16").astype("float32"), x),
    "rounded on the way": lambda g, x: slope(g, x).astype("bfloat16").astype("float32"),
    "up to infinity": lambda g, x: weft.where(x < np.inf, slope(g, x), 0.0),
    "of softly clipped gradients": lambda g, x: slope(1e10 * weft.tanh(1e-10 * g), x),
    "and a square": lambda g, x: slope(g, x) + 1e-13 * (g * g),
    "and a little more": lambda g, x: slope(g, x) + 1e-9,
    "of clipped gradients": lambda g, x: slope(weft.clip(g, -50.0, 50.0), x),
    "of a clipped one": lambda g, x: slope(g, x, gelu_like(high=1.0)),
}


@pytest.mark.parametrize("name", NO_SLOPE)
def test_what_is_no_derivative_of_a_gelu(name: str) -> None:
    found = riding(NO_SLOPE[name])
    assert found
    assert not any(wanted.spec.epilogue or wanted.more for wanted in found)


OTHER_KINDS: dict[str, tuple[F, str]] = {
    "masked": (lambda a, b, m: weft.where(m, a @ b, -np.inf), "bool"),
    "masked the other way": (lambda a, b, m: weft.where(~m, a @ b, 0.0), "bool"),
    "masked by bits": (lambda a, b, m: weft.where((m & 1) == 1, a @ b, 0.0), "uint8"),
    "scaled by integers": (lambda a, b, m: (a @ b) * m.astype("float32"), "int32"),
    "by bits of floats": (lambda a, b, m: weft.where(weft.signbit(m), a @ b, 0.0), "float32"),
}


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_what_is_made_with_numbers_of_other_kinds(name: str) -> None:
    f, kind = OTHER_KINDS[name]
    graph = weft.make_graph(f, weft.ones((8, 16)), weft.ones((16, 8)), weft.ones((8, 8), dtype=kind))
    [wanted] = claims_of(graph)[1]
    assert (wanted.spec.epilogue, wanted.direct) == ("", False)


ANOTHER_SUM: dict[str, F] = {
    "of another bias": lambda y, c, d: (lambda n: (n[1], by_tanh(n[0])))(weft.concat([(y + c)[None], (y + d)[None]])),
    "of twice as much": lambda y, c, d: (lambda n: (n[1], by_tanh(n[0])))(weft.concat([y[None], 2.0 * y[None]])),
    "of a bias the other way round": lambda y, c, d: (lambda n: (n[1], by_tanh(n[0])))(
        y[None] + weft.concat([c[None], weft.flip(c)[None]])[:, None, :]
    ),
    "without the bias": lambda y, c, d: (y, by_tanh(y + c)),
    "with one more": lambda y, c, d: (y + c + d, by_tanh(y + c)),
}  # fmt: skip


@pytest.mark.parametrize("name", ANOTHER_SUM)
def test_another_sum_is_not_that_of_the_gelu(name: str) -> None:
    """Their numbers are compared, too."""
    for wanted in asked(lambda a, b, c, d: ANOTHER_SUM[name](a @ b, c, d), *FACTORS, (8,)):
        assert not wanted.spec.has_sum


def test_sums_of_a_batch_or_of_odd_rows_are_our_kernel_s() -> None:
    batch = asked(lambda a, b: (lambda x: (x, by_tanh(x)))(a @ b), (3, 8, 16), (3, 16, 8))
    odd = asked(lambda a, b: (lambda x: (x, by_tanh(x)))(a @ b), (8, 16), (16, 12))
    assert [c.spec.epilogue for c in (*batch, *odd)] == ["", ""]


def test_a_residual_rides_on_a_product() -> None:
    def f(a: Any, b: Any, c: Any) -> Any:
        y = weft.relu(a @ b + c)
        return weft.relu(y @ y.mT + c + y)

    found = [(wanted.spec.epilogue, wanted.spec.residual) for wanted in asked(f, *FACTORS)]
    assert found == [("bias_relu", False), ("bias_relu", True)]


def test_products_of_float64_have_no_epilogue() -> None:
    [wanted] = asked(lambda a, b, c: weft.relu(a @ b + c), *FACTORS, dtype=weft.float64)
    assert (wanted.spec.epilogue, wanted.direct) == ("", False)


def test_a_bias_of_any_length_rides_on_a_product() -> None:
    [wanted] = asked(lambda a, b, c: weft.relu(a @ b + c), (8, 16), (16, 3), (3,))
    assert (wanted.spec.epilogue, wanted.direct) == ("bias_relu", True)
