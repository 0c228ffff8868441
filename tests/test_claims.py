"""What cuDNN is asked for, and where libraries put results: claims as tests/claims_tools.py answers them."""

from typing import Any

import numpy as np
import pytest

import weft
from claims_tools import F, asked, claims_of, usual
from weft.compiler.gpu.commands import LibraryCall
from weft.compiler.gpu.program import commands, gpu_program
from weft.compiler.gpu.vendor.claims import claims
from weft.compiler.gpu.vendor.specs import ConvSpec, ProductSpec
from weft.compiler.ir.storage import nbytes

# --- bias and relu ride on cuDNN ----------------------------------------------------------------------------------------------------------

X, W, B = (4, 8, 5, 6), (4, 8, 3, 2), (4,)  # as many samples as filters: they must not be mistaken for each other
Y, LYING = (4, 4, 3, 5), (4, 3, 2, 8)  # the result, and the filters as they lie in memory


def last(y: Any) -> Any:
    """Channels last, as the library writes: the result of a program is otherwise channels first."""
    return weft.permute_dims(y, (0, *range(2, y.ndim), 1))


def wide(b: Any) -> Any:
    return b.reshape(-1, 1, 1)


RIDING: dict[str, tuple[F, tuple[str, ...]]] = {
    "bias": (lambda x, w, b: last(weft.conv(x, w, b)), ("bias",)),
    "bias from the left": (lambda x, w, b: wide(b) + weft.conv(x, w), ("bias",)),
    "bias and relu": (lambda x, w, b: last(weft.relu(weft.conv(x, w, b))), ("bias", "relu")),
    "relu from the left": (lambda x, w, b: last(weft.relu(wide(b) + weft.conv(x, w))), ("bias", "relu")),
    "with strides and padding": (lambda x, w, b: last(weft.relu(weft.conv(x, w, b, stride=2, padding=1))), ("bias", "relu")),
    "the bias moved after it": (lambda x, w, b: weft.relu(last(weft.conv(x, w)) + b), ("bias", "relu")),
    "seen as rows": (lambda x, w, b: weft.relu(last(weft.conv(x, w)).reshape(-1, 4) + b), ("bias", "relu")),
    "seen as one row": (lambda x, w, b: last(weft.relu(weft.conv(x, w, b))).reshape(-1), ("bias", "relu")),
    "reshaped between bias and relu": (lambda x, w, b: weft.relu(last(weft.conv(x, w, b)).reshape(-1)), ("bias", "relu")),
}  # fmt: skip


@pytest.mark.parametrize("name", RIDING)
def test_bias_and_relu_ride_on_the_convolution(name: str) -> None:
    f, epilogue = RIDING[name]
    if name == "bias from the left":
        f = lambda x, w, b: last(RIDING[name][0](x, w, b))  # noqa: E731
    [wanted] = asked(f, X, W, B)
    assert isinstance(wanted.spec, ConvSpec)
    assert (wanted.spec.epilogue, wanted.direct, wanted.library) == (epilogue, True, "CUDNN")
    assert [n.shape for n in wanted.more] == [B]
    assert wanted.rounded is None
    [without] = asked(f, X, W, B, plain=True)  # where the library has no kernel for that, ours adds the bias
    assert (without.spec.epilogue, without.direct) == ((), False)


@pytest.mark.parametrize(("x", "w", "how"), [
    ((2, 8, 9), (4, 8, 3), {"padding": 1}),
    ((1, 4, 4, 3, 5), (8, 4, 2, 2, 3), {"padding": 1, "stride": 2}),
    ((2, 8, 6, 5), (12, 4, 3, 3), {"groups": 2}),
    ((2, 8, 7, 6), (8, 1, 3, 3), {"groups": 8, "padding": ((1, 0), (2, 1))}),
    ((2, 4, 9, 9), (4, 4, 3, 2), {"dilation": (2, 3)}),
], ids=["a line", "a volume", "groups", "depthwise, uneven", "dilation"])  # fmt: skip
def test_of_any_form(x: tuple[int, ...], w: tuple[int, ...], how: dict[str, Any]) -> None:
    [wanted] = asked(lambda x, w, b: last(weft.relu(weft.conv(x, w, b, **how))), x, w, w[:1])
    assert wanted.spec.epilogue == ("bias", "relu")


def half(x: Any) -> Any:
    return x.astype("bfloat16").astype("float32")


def test_in_mixed_precision() -> None:
    """Two convolutions: the first is kept in 16 bits, the last in float32. A copy of the bias is rounded."""

    def f(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        return last(weft.relu(weft.conv(weft.relu(weft.conv(x, w, b)), v, c)))

    shapes = ((2, 8, 6, 6), (8, 8, 3, 3), (8,), (8, 8, 2, 2), (8,))
    found = asked(f, *shapes, narrow="bfloat16", tolerance=0.02, filters=(1, 3))
    assert [(c.spec.dtype, c.spec.result_dtype) for c in found] == [("bfloat16", "bfloat16"), ("bfloat16", "float32")]
    first, second = found
    assert (first.spec.epilogue, second.spec.epilogue) == (("bias", "relu"), ())
    # Libraries know a bias of the operands' type only, and the second result is not rounded: nor may its bias be.
    [copy] = first.more
    assert (copy.dtype, copy.shape, first.rounded.dtype) == (weft.bfloat16, (8,), weft.float32)
    without = asked(f, *shapes, narrow="bfloat16", tolerance=0.02, plain=True, filters=(1, 3))
    assert [(c.spec.epilogue, c.direct) for c in without] == [((), False)] * 2


NOT_RIDING: dict[str, tuple[F, tuple[tuple[int, ...], ...]]] = {
    "one number a sample": (lambda x, w, b: last(weft.conv(x, w) + b.reshape(4, 1, 1, 1)), (B,)),
    "one number a row": (lambda x, w, b: last(weft.conv(x, w) + b.reshape(3, 1)), ((3,),)),
    "one number a column": (lambda x, w, b: last(weft.conv(x, w) + b), ((5,),)),
    "one number": (lambda x, w, b: last(weft.conv(x, w) + b), ((),)),
    "the filters the other way round": (lambda x, w, b: last(weft.conv(x, w) + wide(weft.flip(b))), (B,)),
    "a residual without a bias": (lambda x, w, r: last(weft.relu(weft.conv(x, w) + r)), (Y,)),
    "a residual that lies otherwise": (lambda x, w, b, r: last(weft.relu(weft.conv(x, w, b) + r)), (B, Y)),
    "a residual of one row for all": (lambda x, w, b, r: last(weft.relu(weft.conv(x, w, b) + r)), (B, (4, 4, 1, 5))),
    "two numbers a filter": (lambda x, w, b, c: last(weft.conv(x, w, b) + wide(c)), (B, B)),
    "a clip": (lambda x, w, b: last(weft.clip(weft.conv(x, w, b), 0.0, 6.0)), (B,)),
    "a gelu": (lambda x, w, b: last(weft.gelu(weft.conv(x, w, b), approximate="tanh")), (B,)),
    "the first numbers of more": (lambda x, w, b: last(weft.conv(x, w) + wide(b[:4])), ((8,),)),
    "the last numbers of more": (lambda x, w, b: last(weft.conv(x, w) + wide(b[4:])), ((8,),)),
    "a bias that is computed there": (lambda x, w, b: last(weft.conv(x, w) + wide(b * 2.0)), (B,)),
    "the bias is taken away": (lambda x, w, b: last(weft.conv(x, w) - wide(b)), (B,)),
    "the bias is multiplied": (lambda x, w, b: last(weft.conv(x, w) * wide(weft.sin(b)) * 2.0), (B,)),
    "something before the bias": (lambda x, w, b: last(weft.relu(weft.conv(x, w)) + wide(b)), (B,)),
    "a scale before the bias": (lambda x, w, b: last(weft.conv(x, w) * 2.0 + wide(b)), (B,)),
    "something after the relu": (lambda x, w, b: last(weft.relu(weft.conv(x, w, b)) * 2.0), (B,)),
    "another activation": (lambda x, w, b: last(weft.tanh(weft.conv(x, w, b))), (B,)),
    "a leaky relu": (lambda x, w, b: last(weft.leaky_relu(weft.conv(x, w, b))), (B,)),
    "a relu at one": (lambda x, w, b: (lambda y: weft.where(y <= 1.0, 0.0, y))(last(weft.conv(x, w, b))), (B,)),
    "a relu to one": (lambda x, w, b: (lambda y: weft.where(y <= 0.0, 1.0, y))(last(weft.conv(x, w, b))), (B,)),
    "a relu turned round": (lambda x, w, b: (lambda y: weft.where(y <= 0.0, y, 0.0))(last(weft.conv(x, w, b))), (B,)),
    "a mask by another": (lambda x, w, b, r: weft.where(last(r) <= 0.0, 0.0, last(weft.conv(x, w, b))), (B, Y)),
    "two users": (lambda x, w, b: (lambda y: (last(weft.relu(y)), last(y)))(weft.conv(x, w, b)), (B,)),
    "the convolution itself is wanted too": (lambda x, w, b: (lambda y: (last(y), last(weft.relu(y + wide(b)))))(weft.conv(x, w)), (B,)),
    "channels first": (lambda x, w, b: weft.relu(weft.conv(x, w, b)), (B,)),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_RIDING)
def test_what_does_not_ride(name: str) -> None:
    """The library writes the plain convolution, and another kernel does the rest."""
    f, more = NOT_RIDING[name]
    [wanted] = asked(f, X, W, *more)
    assert isinstance(wanted.spec, ConvSpec)
    assert (wanted.spec.epilogue, wanted.direct, wanted.more) == ((), False, ())


def test_a_relu_without_a_bias_is_no_relu_of_a_sum() -> None:
    [wanted] = asked(lambda x, w: last(weft.relu(weft.conv(x, w))), X, W)
    assert (wanted.spec.epilogue, wanted.direct) == ((), False)


@pytest.mark.parametrize("relu", [False, True])
def test_a_rounding_above_movement_is_no_relu(relu: bool) -> None:
    """Of 16 bits, with one more axis and then rounded: there is a bias, and nothing else unless somebody says so."""

    def f(x: Any, w: Any, b: Any) -> Any:
        y = half(last(weft.conv(half(x), half(w)))) + b
        return (weft.relu(y) if relu else y)[:, None].astype("bfloat16")

    [wanted] = asked(f, X, (8, 8, 3, 2), (8,), tolerance=0.02)
    assert wanted.spec.epilogue == (("bias", "relu") if relu else ("bias",))
    assert wanted.direct


def test_parts_of_a_result() -> None:
    for f in (
        lambda x, w, b: last(weft.relu(weft.conv(x, w, b)))[:2],
        lambda x, w, b: last(weft.relu(weft.conv(x, w, b)))[::-1],
        lambda x, w, b: last(weft.conv(x, w))[:1],
        lambda x, w, b: weft.pad(last(weft.conv(x, w, b)), ((0, 0), (1, 0), (0, 0), (0, 0))),
    ):
        for wanted in asked(f, X, W, B):
            assert wanted.spec.epilogue == ()


def test_batch_norm_at_inference_rides_too() -> None:
    """After the pass fold a bias is all that is left of it."""

    def f(x: Any, w: Any, v: Any, *statistics: Any) -> Any:
        for n, filters in enumerate((w, v)):
            mean, var, scale, shift = (wide(s) for s in statistics[4 * n : 4 * n + 4])
            x = (weft.conv(x, filters) - mean) / weft.sqrt(var * var + 1e-5) * scale + shift
            x = weft.relu(x)
        return last(x)

    found = asked(f, X, (8, 8, 3, 2), (4, 8, 1, 2), *((8,),) * 4, *((4,),) * 4, filters=(1, 2), tolerance=1e-5)
    assert [c.spec.epilogue for c in found] == [("bias", "relu")] * 2


@pytest.mark.parametrize("dtype", [weft.bfloat16, weft.float16], ids=str)
@pytest.mark.parametrize("name", ["bias", "bias and relu", "with strides and padding", "the bias moved after it"])
def test_of_16_bits_alone(name: str, dtype: Any) -> None:
    """The sum is rounded before the bias is added to it, but not by the library."""
    f, epilogue = RIDING[name]
    [wanted] = asked(f, X, (8, 8, 3, 2), (8,), dtype=dtype, tolerance=0.02)
    assert (wanted.spec.epilogue, wanted.direct) == (epilogue, True)
    assert (wanted.spec.dtype, wanted.spec.result_dtype) == (dtype.name, dtype.name)
    assert [n.dtype for n in wanted.more] == [dtype]


# --- residuals ride too -------------------------------------------------------------------------------------------------------------------

# Images and filters of a block: as high as wide as many channels, so that axes can be mistaken for each other.
BLOCK = ((2, 8, 8, 8), (8, 8, 3, 3), (8,), (8, 8, 3, 3), (8,))


def block(tail: F) -> F:
    """Two convolutions; `tail` makes the result of the second, its bias and what the first one gave."""

    def f(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        y = weft.relu(weft.conv(x, w, b, padding=1))
        return last(tail(weft.conv(y, v, padding=1), wide(c), y))

    return f


RESIDUAL: dict[str, tuple[F, tuple[str, ...]]] = {
    "a block": (lambda z, c, y: weft.relu(z + c + y), ("bias", "residual", "relu")),
    "no relu": (lambda z, c, y: z + c + y, ("bias", "residual")),
    "from the left": (lambda z, c, y: weft.relu(y + (c + z)), ("bias", "residual", "relu")),
    "before the bias": (lambda z, c, y: weft.relu((z + y) + c), ("bias", "residual", "relu")),
    "moved there and back": (lambda z, c, y: weft.permute_dims(weft.relu(last(z + c) + last(y)), (0, 3, 1, 2)), ("bias", "residual", "relu")),
}  # fmt: skip


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "mixed"])
@pytest.mark.parametrize("name", RESIDUAL)
def test_residuals_ride_on_the_convolution(name: str, precision: str) -> None:
    tail, epilogue = RESIDUAL[name]
    how: dict[str, Any] = {
        "float32": {},
        "bfloat16": {"dtype": weft.bfloat16, "tolerance": 0.03},
        "mixed": {"narrow": weft.bfloat16, "tolerance": 0.03},
    }[precision]
    if precision == "mixed":  # something must follow for the result to be of 16 bits, as the residual is
        shapes = (*BLOCK, (8, 8, 1, 1))
        made = asked(lambda *a: last(weft.conv(weft.permute_dims(block(tail)(*a[:5]), (0, 3, 1, 2)), a[5])), *shapes, filters=(1, 3, 5), **how)  # fmt: skip
    else:
        made = asked(block(tail), *BLOCK, filters=(1, 3), **how)
    first, wanted = made[:2]
    assert (first.spec.epilogue, wanted.spec.epilogue, wanted.direct) == (("bias", "relu"), epilogue, True)
    assert wanted.more[1] is first.result
    assert (wanted.rounded is not None) == (precision == "mixed")
    assert wanted.spec.result_dtype == wanted.spec.dtype == wanted.more[0].dtype.name == wanted.more[1].dtype.name


def test_the_first_samples_of_more_are_a_residual() -> None:
    def f(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        y = weft.relu(weft.conv(x, w, b, padding=1))
        return last(weft.conv(y[:1], v, c, padding=1) + y[:1])

    assert asked(f, *BLOCK, filters=(1, 3))[-1].spec.epilogue == ("bias", "residual")

    def rest(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        y = weft.relu(weft.conv(x, w, b, padding=1))
        return last(weft.conv(y[:1], v, c, padding=1) + y[1:])

    assert asked(rest, *BLOCK, filters=(1, 3))[-1].spec.epilogue == ()


NO_RESIDUAL: dict[str, F] = {
    "height and width exchanged": lambda z, c, y: weft.relu(z + c + weft.permute_dims(y, (0, 1, 3, 2))),
    "channels in the place of rows": lambda z, c, y: weft.relu(z + c + weft.permute_dims(y, (0, 2, 1, 3))),
    "backwards": lambda z, c, y: weft.relu(z + c + weft.flip(y, axis=2)),
    "one row for all": lambda z, c, y: weft.relu(z + c + y[:, :, :1]),
    "taken away": lambda z, c, y: weft.relu(z + c - y),
    "twice as much": lambda z, c, y: weft.relu(z + c + 2.0 * y),
    "after the relu": lambda z, c, y: weft.relu(z + c) + y,
    "a relu of its own": lambda z, c, y: weft.relu(z) + c + y,
    "a clip": lambda z, c, y: weft.clip(z + c + y, 0.0, 6.0),
    "two of them": lambda z, c, y: weft.relu(z + c + y + weft.flip(y, axis=2)),
    "no bias": lambda z, c, y: weft.relu(z + y),
}


@pytest.mark.parametrize("name", NO_RESIDUAL)
def test_residuals_that_do_not_ride(name: str) -> None:
    f = block(NO_RESIDUAL[name])
    _, wanted = asked(f, *BLOCK, filters=(1, 3))
    assert (wanted.spec.epilogue, wanted.direct, wanted.more) == ((), False, ())


PRODUCTS_WITH_RESIDUALS: dict[str, tuple[F, str]] = {
    "alone": (lambda z, c, r: z + r, ""),
    "from the left": (lambda z, c, r: r + z, ""),
    "and a bias": (lambda z, c, r: r + (z + c), "bias"),
    "and a relu": (lambda z, c, r: weft.relu(z + c + r), "bias_relu"),
}


@pytest.mark.parametrize("name", PRODUCTS_WITH_RESIDUALS)
def test_residuals_ride_on_products(name: str) -> None:
    f, epilogue = PRODUCTS_WITH_RESIDUALS[name]
    [wanted] = asked(lambda a, b, c, r: f(a @ b, c, r), (12, 8), (8, 4), (4,), (12, 4))
    assert isinstance(wanted.spec, ProductSpec)
    assert (wanted.spec.epilogue, wanted.spec.residual, wanted.direct) == (epilogue, True, True)


def test_residuals_that_do_not_ride_on_products() -> None:
    for f in (
        lambda z, r: z + r.mT,
        lambda z, r: z + r[::-1],
        lambda z, r: weft.gelu(z + r, approximate="tanh") * r,
        lambda z, r: z + r.astype("bfloat16").astype("float32"),
    ):
        [wanted] = asked(lambda a, b, r, f=f: f(a @ b, r), (8, 8), (8, 8), (8, 8), tolerance=2e-2)
        assert isinstance(wanted.spec, ProductSpec)
        assert (wanted.spec.residual, wanted.direct) == (False, False)


def test_a_residual_whose_sum_is_read_by_others() -> None:
    def f(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        y = weft.relu(weft.conv(x, w, b, padding=1))
        z = weft.conv(y, v, c, padding=1)
        return last(weft.relu(z + y)), last(z)

    _, wanted = asked(f, *BLOCK, filters=(1, 3))
    assert (wanted.spec.epilogue, wanted.direct) == ((), False)


def test_a_residual_of_another_type() -> None:
    """The block ends in float32, what is added is of 16 bits."""
    found = asked(block(RESIDUAL["a block"][0]), *BLOCK, filters=(1, 3), narrow="bfloat16", tolerance=0.03)
    assert [c.spec.epilogue for c in found] == [("bias", "relu"), ()]


def test_new_state_is_not_written_over_what_the_library_adds() -> None:
    """An input of the result's size may be state whose place the result takes, and no library says that it may."""

    def f(x: Any, w: Any, b: Any, s: Any) -> Any:
        return weft.relu(last(weft.conv(x, w, b, padding=1)) + s)

    images, filters, bias = BLOCK[:3]
    [wanted] = asked(f, images, filters, bias, images)
    assert (wanted.spec.epilogue, wanted.direct) == ((), False)
    [row] = asked(lambda a, b, c: a @ b + c, (1, 8), (8, 8), (8,))
    assert (row.spec.epilogue, row.direct) == ("", False)


# --- where results go -----------------------------------------------------------------------------------------------------------------------


def test_what_is_wanted_as_it_is_goes_where_it_is_wanted() -> None:
    [plain] = asked(lambda x, w: last(weft.conv(x, w)), X, W)
    [rows] = asked(lambda x, w: last(weft.conv(x, w)).reshape(-1, 4), X, W)
    [product] = asked(lambda a, b: a @ b, (12, 8), (8, 4))
    assert [(c.direct, c.result.op.name) for c in (plain, rows, product)] == [
        (True, "conv_last"), (True, "reshape"), (True, "reshape"),
    ]  # fmt: skip
    assert isinstance(product.spec, ProductSpec)
    assert product.library == "CUBLASLT"


def test_what_is_wanted_otherwise_goes_to_memory_of_its_own() -> None:
    [turned] = asked(lambda x, w: weft.conv(x, w), X, W)
    [more] = asked(lambda a, b: weft.tanh(a @ b), (12, 8), (8, 4))
    [both] = asked(lambda a, b: (a @ b, weft.tanh(a @ b)), (12, 8), (8, 4))
    for wanted in (turned, more, both):
        assert not wanted.direct
        assert wanted.result.params[0][0] == "library"


RESULTS: dict[str, F] = {
    "itself": lambda y: (y, y.astype("float16")),
    "turned": lambda y: (y.mT, y.astype("float16")),
    "in another shape": lambda y: (y.reshape(64), 2.0 * y.astype("float16")),
    "beside a test": lambda y: (y, y.astype("float16") > 0.0),
    "as a part": lambda y: (weft.concat([y, y]), y.astype("float16")),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_that_is_wanted_whole_is_not_rounded(name: str) -> None:
    """Though somebody else wants it in 16 bits; their numbers are compared."""

    def f(a: Any, b: Any) -> Any:
        return RESULTS[name](a.astype("float32") @ b.astype("float32"))

    for wanted in asked(f, (8, 16), (16, 8), dtype=weft.float16, tolerance=1e-3):
        assert wanted.spec.c_dtype == "float32"


def test_a_bias_is_rounded_only_where_the_result_is() -> None:
    def rounded(a: Any, b: Any, c: Any) -> Any:
        wide = c.astype("float32") * 1.5
        return weft.relu(a.astype("float32") @ b.astype("float32") + wide).astype("float16")

    [wanted] = asked(rounded, (8, 16), (16, 8), (8,), dtype=weft.float16, tolerance=1e-3)
    assert (wanted.spec.epilogue, wanted.rounded) == ("", None)


def test_a_rounding_is_the_library_s() -> None:
    """Where 16 bits are all that is made of a result, it is written so: directly, or for the kernel that follows."""

    def f(x: Any, w: Any) -> Any:
        return last(weft.conv(half(x), half(w))).astype("bfloat16")

    [direct] = asked(f, (2, 8, 5, 4), (8, 8, 3, 3), tolerance=0.01)
    assert (direct.direct, direct.spec.dtype, direct.spec.result_dtype) == (True, "bfloat16", "bfloat16")
    [after] = asked(lambda x, w: weft.tanh(f(x, w).astype("float32")), (2, 8, 5, 4), (8, 8, 3, 3), tolerance=0.01)
    assert (after.direct, after.spec.result_dtype, after.result.dtype) == (False, "bfloat16", weft.bfloat16)
    [wide] = asked(
        lambda x, w: (lambda y: (weft.tanh(y.astype("bfloat16").astype("float32")), y * 2.0))(
            last(weft.conv(half(x), half(w)))
        ),
        (2, 8, 5, 4), (8, 8, 3, 3), tolerance=0.01,
    )  # fmt: skip
    assert (wide.direct, wide.spec.result_dtype) == (False, "float32")
    [itself] = asked(
        lambda x, w: (lambda y: (weft.tanh(y.astype("bfloat16").astype("float32")), y))(last(weft.conv(half(x), half(w)))),
        (2, 8, 5, 4), (8, 8, 3, 3), tolerance=0.01,
    )  # fmt: skip
    assert (itself.direct, itself.spec.result_dtype) == (False, "float32")


@pytest.mark.parametrize("how", [{}, {"stride": 2, "padding": 1}, {"groups": 2}, {"dilation": 2}], ids=str)
def test_gradients_of_filters_and_images(how: dict[str, Any]) -> None:
    """The filter's gradient lies otherwise in the library's memory than it is wanted here: it is not direct, even where nothing follows."""
    filters = (4, 8 // how.get("groups", 1), 3, 2)

    def f(x: Any, w: Any, g: Any) -> Any:
        return weft.vjp(lambda x, w: weft.conv(x, w, **how), x, w)[1](g)

    out = weft.conv(weft.zeros(X), weft.zeros(filters), **how).shape
    by_direction = {c.spec.direction: c for c in asked(f, X, filters, out)}
    assert set(by_direction) == {"data_gradient", "filter_gradient"}
    assert not by_direction["filter_gradient"].direct
    assert by_direction["filter_gradient"].spec.epilogue == ()

    def stepped(x: Any, w: Any, g: Any) -> Any:
        return w - 0.1 * weft.vjp(lambda w: weft.conv(x, w, **how), w)[1](g)[0]

    [wanted] = asked(stepped, X, filters, out)
    assert (wanted.spec.direction, wanted.direct) == ("filter_gradient", False)

    def as_ours(x: Any, g: Any) -> Any:
        """In the order in which our kernel would write it."""
        found = weft.vjp(lambda w: weft.conv(x, w, **how), weft.zeros(filters, dtype=x.dtype))[1](g)[0]
        return weft.permute_dims(found, (2, 3, 1, 0))

    [wanted] = asked(as_ours, X, out, filters=())
    assert (wanted.spec.direction, wanted.direct) == ("filter_gradient", False)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 2)])
def test_a_gradient_of_filters_goes_where_it_is_wanted(kernel: tuple[int, int]) -> None:
    """If it is wanted as libraries write it, filter after filter; a filter of one place lies so in any case."""

    def gradient(x: Any, g: Any) -> Any:
        return weft.vjp(lambda w: weft.conv(usual(x), w), weft.zeros((16, 8, *kernel)))[1](usual(g))[0]

    size = 5 - kernel[0] + 1, 6 - kernel[1] + 1
    shapes = (4, 5, 6, 8), (4, *size, 16)
    [claim] = asked(lambda x, g: last(gradient(x, g)), *shapes, filters=())
    assert claim.direct
    [claim] = asked(gradient, *shapes, filters=())
    assert claim.direct == (kernel == (1, 1))
    [claim] = asked(lambda x, g: last(gradient(x, g)) * 2.0, *shapes, filters=())
    assert not claim.direct


def test_a_bias_does_not_ride_on_gradients() -> None:
    def f(g: Any, w: Any, b: Any) -> Any:
        back = weft.vjp(lambda x: weft.conv(x, w), weft.zeros(X, dtype=w.dtype))[1]
        return last(weft.relu(back(g)[0] + wide(b)))

    [wanted] = asked(f, Y, W, (8,))
    assert (wanted.spec.direction, wanted.spec.epilogue, wanted.direct) == ("data_gradient", (), False)


# --- what is not asked for ------------------------------------------------------------------------------------------------------------------


def test_sizes_need_not_be_multiples_of_16_bytes() -> None:
    """Memory is aligned, whatever follows a tensor."""
    [product] = asked(lambda a, b: a @ b, (3, 5), (5, 7))
    [conv] = asked(lambda x, w, b: last(weft.relu(weft.conv(x, w, b))), (1, 5, 5, 5), (3, 5, 2, 2), (3,))
    assert (product.library, conv.library) == ("CUBLASLT", "CUDNN")


@pytest.mark.parametrize("size", [5, 8])
def test_elements_of_longer_tensors_may_begin_anywhere(size: int) -> None:
    """Libraries require addresses that are multiples of 16 bytes: in the body of a scan, sizes must be."""
    state, steps = np.ones((3, 4), np.float32), np.ones((6, 4, size), np.float32)
    graph = weft.make_graph(lambda a, xs: weft.scan(lambda a, x: (a, a @ x), a, xs), state, steps)
    assert len(claims_of(graph)[1]) == (size == 8)


def test_images_must_lie_there_whole() -> None:
    """One that begins in the middle of another is for our kernel."""
    assert asked(lambda x, w: last(weft.conv(x[1:3], w)), X, W, filters=(0, 1)) == []
    assert len(asked(lambda x, w: last(weft.conv(x, w)), X, W, filters=(0, 1))) == 1


OTHER_FILTERS: dict[str, tuple[F, tuple[int, ...]]] = {
    "the usual order": (lambda w: w, (4, 8, 3, 2)),
    "a part of others": (lambda w: w[4:], (8, 8, 3, 2)),
    "every second one": (lambda w: w[::2], (8, 8, 3, 2)),
    "filters last": (lambda w: weft.permute_dims(w, (3, 2, 0, 1)), (3, 2, 8, 4)),
    "turned around": (lambda w: weft.permute_dims(w, (1, 0, 2, 3)), (8, 4, 3, 2)),
}


@pytest.mark.parametrize("name", OTHER_FILTERS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_filters_that_lie_otherwise_are_copied_first(name: str, with_bias: bool) -> None:
    seen, shape = OTHER_FILTERS[name]
    if with_bias:
        [claim] = asked(lambda x, w, b: last(weft.relu(weft.conv(x, seen(w), b))), X, shape, B, filters=(0,))
        assert claim.spec.epilogue == ("bias", "relu")
    else:
        [claim] = asked(lambda x, w: last(weft.conv(x, seen(w))), X, shape, filters=(0,))
    assert claim.direct
    assert claim.filter is not None
    assert claim.scratch_tensors == [claim.filter]


def test_filters_of_gradients_are_copied_too() -> None:
    def f(g: Any, w: Any) -> Any:
        return last(weft.vjp(lambda x: weft.conv(x, w), weft.zeros(X, dtype=g.dtype))[1](g)[0])

    [claim] = asked(f, Y, W, filters=(0,))
    assert (claim.spec.direction, claim.direct, claim.filter is not None) == ("data_gradient", True, True)
    [claim] = asked(lambda g, w: weft.tanh(f(g, w)), Y, W, filters=(0,))
    assert claim.scratch_tensors == [claim.filter, claim.result]


def test_a_limit_is_for_the_library_and_its_room() -> None:
    graph = weft.make_graph(lambda x, w: weft.conv(x, usual(w)), weft.zeros(X), weft.zeros(LYING))
    program, [wanted] = claims_of(graph)
    [kernel] = [k for k in program.kernels if k.anchor is not None]
    room = nbytes(wanted.result)
    assert claims(kernel) == [wanted]
    assert claims(kernel, room - 1) == []
    [limited] = claims(kernel, room + 100)
    assert (limited.spec.workspace, limited.limit) == (100, room + 100)
    direct, _ = claims_of(weft.make_graph(lambda x, w: last(weft.conv(x, usual(w))), weft.zeros(X), weft.zeros(LYING)))
    [kernel] = [k for k in direct.kernels if k.anchor is not None]
    [limited] = claims(kernel, 100)
    assert limited.spec.workspace == 100


def test_a_limit_is_for_the_copy_of_a_bias_too() -> None:
    graph = weft.make_graph(lambda a, b, c: weft.relu(a @ b + c) @ a, *map(weft.zeros, ((8, 16), (16, 8), (8,))))
    program, _ = claims_of(graph, "float16")
    kernel = next(k for k in program.kernels if k.anchor is not None)
    [fused] = claims(kernel, 16)
    assert (fused.direct, fused.spec.workspace, fused.limit) == (True, 0, 16)  # eight numbers of 16 bits
    assert claims(kernel, 15) == []


def test_the_first_claim_has_the_epilogue_in_it() -> None:
    graph = weft.make_graph(
        lambda x, w, b: last(weft.conv(x, usual(w), b)), weft.zeros(X), weft.zeros(LYING), weft.zeros(B)
    )
    program, _ = claims_of(graph)
    [kernel] = [k for k in program.kernels if k.anchor is not None]
    fused, plain = claims(kernel)
    assert (fused.spec.epilogue, fused.direct, plain.spec.epilogue, plain.direct) == (("bias",), True, (), False)
    assert claims(kernel, 0) == claims(kernel, 0)[:1]  # there is no room for what is not direct
    assert claims(kernel, 0)[0].direct


def test_whoever_judges_decides() -> None:
    graph = weft.make_graph(lambda x, w: last(weft.conv(x, usual(w))), weft.zeros(X), weft.zeros(LYING))
    for judge in (None, lambda kernel, wanted: False):
        program = gpu_program(graph, {}, judge=judge)
        assert not any(isinstance(step, LibraryCall) for step in commands(program))
    assert any(isinstance(step, LibraryCall) for step in commands(claims_of(graph)[0]))
