"""Checks what neural networks are made of against plain loops and published formulas, in float64.

Convolution and pooling meet loops that follow the definition place by place; everything else meets a formula that is
written here in NumPy. What weft is asked for and what it is compared with share no code.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import special

import weft
from weft.testing import check_grads, counted, generator

INF, NAN = math.inf, math.nan
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def near(actual, expected, tolerance=1e-12):
    counted()
    actual, expected = actual.numpy(), np.asarray(expected)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


def normal(rng, *shape):
    return rng.normal(size=shape)


def ints(rng, low, high, count):
    return tuple(int(v) for v in rng.integers(low, high, count))


# --- convolution: y[n, o, p] = sum over c, t of x[n, c, p * stride + t * dilation - padding] * w[o, c, t] -------------


def meetings(groups, outer, kernel, stride, pads, dilation, size):
    """Every (group, place outside, place in the kernel, place inside) of a convolution; padding is left out."""
    for group, p, t in itertools.product(range(groups), np.ndindex(*outer), np.ndindex(*kernel)):
        place = [i * s + j * d - a for i, j, s, d, (a, _) in zip(p, t, stride, dilation, pads, strict=True)]
        if all(0 <= i < n for i, n in zip(place, size, strict=True)):
            yield group, p, t, tuple(place)


def part(array, group, groups):
    """The slice of an axis that belongs to a group."""
    return slice(group * array // groups, (group + 1) * array // groups)


def conv_by_loop(x, w, stride, pads, dilation, groups):
    facts = zip(x.shape[2:], w.shape[2:], stride, pads, dilation, strict=True)
    y = np.zeros((len(x), len(w), *((n + sum(p) - (k - 1) * d - 1) // s + 1 for n, k, s, p, d in facts)))
    for g, p, t, place in meetings(groups, y.shape[2:], w.shape[2:], stride, pads, dilation, x.shape[2:]):
        c, o = part(x.shape[1], g, groups), part(len(w), g, groups)
        y[(slice(None), o, *p)] += x[(slice(None), c, *place)] @ w[(o, slice(None), *t)].T
    return y


def transpose_by_loop(x, w, stride, pads, dilation, groups, size):
    """Every element of x adds a multiple of the filter to the result; neighbours are a stride apart."""
    y = np.zeros((len(x), w.shape[1] * groups, *size))
    for g, p, t, place in meetings(groups, x.shape[2:], w.shape[2:], stride, pads, dilation, size):
        c, o = part(x.shape[1], g, groups), part(y.shape[1], g, groups)
        y[(slice(None), o, *place)] += x[(slice(None), c, *p)] @ w[(c, slice(None), *t)]
    return y


def pairs_of(padding, sizes, kernel, stride, dilation):
    """A padding as pairs: "same" gives ceil(n / stride) results, the odd place of padding behind."""
    if padding == "same":
        facts = zip(sizes, kernel, stride, dilation, strict=True)
        totals = [max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0) for n, k, s, d in facts]
        return [(t // 2, t - t // 2) for t in totals]
    each = [0 if padding == "valid" else padding] * len(kernel) if isinstance(padding, int | str) else padding
    return [(p, p) if isinstance(p, int) else p for p in each]


def random_conv(rng):
    """Shapes and settings: groups with one channel each (depthwise) and every way to write a padding come up."""
    ndim, groups = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    kernel, stride, dilation = ints(rng, 1, 4, ndim), ints(rng, 1, 4, ndim), ints(rng, 1, 3, ndim)
    ways = ["same", "valid", 1, ints(rng, 0, 3, ndim), [ints(rng, 0, 3, 2) for _ in range(ndim)]]
    padding = ways[int(rng.integers(len(ways)))]
    return groups, kernel, stride, dilation, padding, ints(rng, 5, 8, ndim), int(rng.integers(1, 3)), ints(rng, 1, 3, 2)


@pytest.mark.sweep(share=0.25)
@pytest.mark.parametrize("number", range(30))
def test_conv_and_its_gradients(number):
    rng = generator(f"conv {number}")
    groups, kernel, stride, dilation, padding, sizes, batch, (c, o) = random_conv(rng)
    pads = pairs_of(padding, sizes, kernel, stride, dilation)
    shapes = (batch, c * groups, *sizes), (o * groups, c, *kernel)
    (x, w), (x2, w2) = ([normal(rng, *s) for s in shapes] for _ in range(2))
    bias = normal(rng, o * groups)
    how = (stride, pads, dilation, groups)

    def f(x, w, b):
        return weft.conv(x, w, b, stride=stride, padding=padding, dilation=dilation, groups=groups)

    y, back = weft.vjp(f, weft.asarray(x), weft.asarray(w), weft.asarray(bias))
    near(y, conv_by_loop(x, w, *how) + bias.reshape(-1, *[1] * len(sizes)))
    if padding == "same":
        assert y.shape[2:] == tuple(-(-n // s) for n, s in zip(sizes, stride, strict=True))
    # A gradient is the adjoint: <conv(x2, w), g> = <x2, back(g)>, and the same for the filter.
    g = normal(rng, *y.shape)
    to_x, to_w, to_b = (t.numpy() for t in back(weft.asarray(g)))
    np.testing.assert_allclose(np.vdot(conv_by_loop(x2, w, *how), g), np.vdot(x2, to_x), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.vdot(conv_by_loop(x, w2, *how), g), np.vdot(w2, to_w), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(to_b, g.sum(axis=(0, *range(2, g.ndim))), rtol=1e-9, atol=1e-9)


@pytest.mark.sweep(share=0.25)
@pytest.mark.parametrize("number", range(15))
def test_conv_transpose(number):
    rng = generator(f"conv_transpose {number}")
    groups, kernel, stride, dilation, padding, sizes, batch, (c, o) = random_conv(rng)
    extra = tuple(int(rng.integers(s)) for s in stride)
    pads = pairs_of(0 if padding == "same" else padding, sizes, kernel, stride, dilation)
    x, w = normal(rng, batch, c * groups, *sizes), normal(rng, c * groups, o, *kernel)
    facts = zip(sizes, kernel, stride, pads, dilation, extra, strict=True)
    size = [(n - 1) * s + (k - 1) * d + 1 - sum(p) + e for n, k, s, p, d, e in facts]
    how = {"stride": stride, "padding": pads, "dilation": dilation, "groups": groups, "output_padding": extra}
    near(weft.conv_transpose(x, w, **how), transpose_by_loop(x, w, stride, pads, dilation, groups, size))
    check_grads(lambda x, w: weft.conv_transpose(x, w, **how), [x, w], rng=rng, order=1)


@pytest.mark.parametrize(("n", "kernel", "stride"), [(4, 3, 1), (4, 3, 2), (5, 4, 2), (3, 2, 2), (4, 2, 3), (3, 1, 2)])
def test_conv_transpose_same_multiplies_the_size_by_the_stride(n, kernel, stride):
    rng = generator(f"same {n} {kernel} {stride}")
    x, w, bias = normal(rng, 2, 3, n), normal(rng, 3, 2, kernel), normal(rng, 2)
    before = max((n - 1) * stride + kernel - n * stride, 0) // 2
    expected = transpose_by_loop(x, w, (stride,), [(before, 0)], (1,), 1, (n * stride,)) + bias.reshape(2, 1)
    near(weft.conv_transpose(x, w, bias, stride=stride, padding="same"), expected)


def test_conv_refuses_a_filter_of_other_dimensions_in_words():
    for padding in (0, "same", "valid"):
        with pytest.raises(weft.UserError, match=r"\[conv\]"):
            weft.conv(weft.zeros((1, 3, 8)), weft.zeros((2, 3, 3, 3)), padding=padding)


# --- pooling ------------------------------------------------------------------------------------------------------------


def windows(n, k, s, pads, d, ceil):
    """For each window along an axis: the places it holds, and its width cut at the end of the padding."""
    room = n + sum(pads) - (k - 1) * d - 1
    count = (-(-room // s) if ceil else room // s) + 1
    count -= ceil and (count - 1) * s >= n + pads[0]  # a last window must start inside the input or the padding before
    starts = [i * s - pads[0] for i in range(count)]
    return [([a + j * d for j in range(k) if 0 <= a + j * d < n], min(a + k, n + pads[1]) - a) for a in starts]


def pool_by_loop(x, rows, reduce):
    y = np.empty((*x.shape[:2], *map(len, rows)))
    for p in np.ndindex(*y.shape[2:]):
        seen = [row[i] for row, i in zip(rows, p, strict=True)]
        values = x[np.ix_(range(x.shape[0]), range(x.shape[1]), *(places for places, _ in seen))]
        y[(..., *p)] = reduce(values.reshape(*x.shape[:2], -1), math.prod(width for _, width in seen))
    return y


@pytest.mark.sweep(share=0.25)
@pytest.mark.parametrize("number", range(20))
def test_pooling(number):
    rng = generator(f"pool {number}")
    ndim = int(rng.integers(1, 4))
    x = normal(rng, 2, 2, *ints(rng, 5, 9, ndim))
    size, stride, dilation = ints(rng, 1, 5, ndim), ints(rng, 1, 4, ndim), ints(rng, 1, 3, ndim)
    padding = tuple(int(rng.integers(k // 2 + 1)) for k in size)
    pads, ones = [(p, p) for p in padding], (1,) * ndim
    if all(n + 2 * p >= (k - 1) * d + 1 for n, k, p, d in zip(x.shape[2:], size, padding, dilation, strict=True)):
        for ceil in (False, True):
            rows = [windows(*f, ceil) for f in zip(x.shape[2:], size, stride, pads, dilation, strict=True)]
            y = weft.max_pool(x, size, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil)
            near(y, pool_by_loop(x, rows, lambda values, _: values.max(-1)))
    for ceil, include in itertools.product((False, True), repeat=2):
        rows = [windows(*f, ceil) for f in zip(x.shape[2:], size, stride, pads, ones, strict=True)]
        divided = lambda values, width: values.sum(-1) / (width if include else values.shape[-1])  # noqa: B023, E731
        how = {"stride": stride, "padding": padding, "ceil_mode": ceil, "count_include_pad": include}
        y, back = weft.vjp(lambda x: weft.avg_pool(x, size, **how), weft.asarray(x))  # noqa: B023
        near(y, pool_by_loop(x, rows, divided))
        g, x2 = normal(rng, *y.shape), normal(rng, *x.shape)
        adjoint = np.vdot(x2, back(weft.asarray(g))[0].numpy())
        np.testing.assert_allclose(np.vdot(pool_by_loop(x2, rows, divided), g), adjoint, rtol=1e-9, atol=1e-9)


def test_pooling_same_and_default_stride():
    x = np.arange(10.0).reshape(1, 1, 10)
    near(weft.max_pool(x, 3), [[[2, 5, 8]]])
    near(weft.max_pool(x, 3, stride=2, padding="same"), [[[2, 4, 6, 8, 9]]])
    near(weft.avg_pool(x, 3, stride=2, padding="same", count_include_pad=False), [[[1, 3, 5, 7, 8.5]]])
    near(weft.max_pool(-x, 4, stride=3, padding=[(0, 2)]), [[[0, -3, -6]]])  # padding never wins


def test_max_pool_derivative_goes_to_the_first_of_equals():
    grad = weft.grad(lambda x: weft.max_pool(x, 3, stride=2, padding=1).sum())
    near(grad(np.zeros((1, 1, 5))), [[[1, 1, 0, 1, 0]]])
    check_grads(lambda x: weft.max_pool(x, 2, stride=1), [normal(generator("max"), 1, 2, 4, 4)], rng=generator("max"))


@pytest.mark.parametrize(
    ("sizes", "wanted"), [((7,), 3), ((6,), 3), ((3,), 5), ((5, 8), (2, 4)), ((4, 5, 6), (3, 1, 4))]
)
def test_adaptive_and_global_pooling(sizes, wanted):
    x = normal(generator(f"adaptive {sizes}"), 2, 3, *sizes)
    each = [wanted] if isinstance(wanted, int) else wanted
    rows = [[(range(i * n // m, -(-(i + 1) * n // m)), 1) for i in range(m)] for n, m in zip(sizes, each, strict=True)]
    near(weft.adaptive_avg_pool(x, wanted), pool_by_loop(x, rows, lambda values, _: values.mean(-1)))
    near(weft.adaptive_max_pool(x, wanted), pool_by_loop(x, rows, lambda values, _: values.max(-1)))
    near(weft.global_avg_pool(x), x.reshape(2, 3, -1).mean(-1))
    near(weft.global_max_pool(x), x.reshape(2, 3, -1).max(-1))
    check_grads(lambda x: weft.adaptive_max_pool(x, wanted), [x], rng=generator("adaptive"), order=1)


# --- softmax ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_softmax_along_any_axis(axis):
    x = normal(generator("softmax"), 3, 4, 5) * 10
    near(weft.softmax(x, axis), special.softmax(x, axis=axis))
    near(weft.log_softmax(x, axis), special.log_softmax(x, axis=axis))
    near(weft.logsumexp(x, axis=axis), special.logsumexp(x, axis=axis))
    axes = (0, axis % 2 + 1)
    near(weft.logsumexp(x, axis=axes, keepdims=True), special.logsumexp(x, axis=axes, keepdims=True))


def test_softmax_of_extremes():
    """Also the derivatives of those stay finite."""
    for row in ([1e300, -1e300, 0.0], [-1e4, -1e4, -1e4], [-INF, 0.0, 1.0], [-INF, -INF, 800.0], [5.0]):
        near(weft.softmax(np.array(row)), special.softmax(row))
        near(weft.log_softmax(np.array(row)), special.log_softmax(row))
        near(weft.logsumexp(np.array(row)), special.logsumexp(row))
        for f in (weft.softmax, weft.logsumexp):
            assert np.isfinite(weft.grad(lambda x, f=f: f(x).sum())(np.array(row)).numpy()).all()
    near(weft.logsumexp([-INF, -INF]), -INF)
    near(weft.logsumexp([INF, 0.0]), INF)


# --- normalisation ------------------------------------------------------------------------------------------------------


def standard(x, axes, eps):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def test_norms():
    rng = generator("norms")
    x, scale, shift = normal(rng, 4, 6, 3, 5) * 3 + 2, normal(rng, 6), normal(rng, 6)
    column, row = (slice(None), None, None), normal(rng, 3, 5)
    y, mean, var = weft.batch_norm(x, scale, shift, eps=0.1)
    near(y, standard(x, (0, 2, 3), 0.1) * scale[column] + shift[column])
    near(mean, x.mean((0, 2, 3)))
    near(var, x.var((0, 2, 3)))
    given = weft.batch_norm(x, mean_=shift, var_=scale**2, eps=0.1).value
    near(given, (x - shift[column]) / np.sqrt(scale**2 + 0.1)[column])
    near(weft.layer_norm(x), standard(x, -1, 1e-5))
    near(weft.layer_norm(x, row, row + 1, axis=(-2, -1)), standard(x, (2, 3), 1e-5) * row + row + 1)
    near(weft.rms_norm(x, row[0]), x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * row[0])
    grouped = standard(x.reshape(4, 3, 2, 3, 5), (2, 3, 4), 1e-5).reshape(x.shape)
    near(weft.group_norm(x, 3, scale, shift), grouped * scale[column] + shift[column])
    near(weft.instance_norm(x, scale, shift), standard(x, (2, 3), 1e-5) * scale[column] + shift[column])
    check_grads(lambda x, s: weft.batch_norm(x, s).value, [x[:2, :, 0, :2], scale], rng=rng, order=1)
    check_grads(lambda x: weft.layer_norm(x), [x[0, 0]], rng=rng)


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_local_response_norm(size):
    """Torch's formula: the sum over size // 2 channels before and (size - 1) // 2 behind, divided by the size."""
    x = normal(generator("lrn"), 2, 6, 3, 2)
    squares = [np.square(x[:, max(c - size // 2, 0) : c + (size - 1) // 2 + 1]).sum(1) / size for c in range(6)]
    near(weft.local_response_norm(x, size, alpha=0.3, beta=0.6, k=1.5), x / (1.5 + 0.3 * np.stack(squares, 1)) ** 0.6)


@pytest.mark.parametrize("size", [3, (2, 5)])
def test_local_contrast_norm(size):
    x = normal(generator("lcn"), 2, 3, 5, 6)
    sides = (size, size) if isinstance(size, int) else size
    spans = lambda side, n: [(range(max(i - side // 2, 0), min(i + (side + 1) // 2, n)), 1) for i in range(n)]  # noqa: E731
    boxes = [spans(side, n) for side, n in zip(sides, (5, 6), strict=True)]

    def local_mean(z):
        return pool_by_loop(z, boxes, lambda values, _: values.mean(-1)).mean(1, keepdims=True)

    centred = x - local_mean(x)
    near(weft.local_contrast_norm(x, size, eps=0.01), centred / np.sqrt(local_mean(centred**2) + 0.01**2))


# --- activations --------------------------------------------------------------------------------------------------------

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
ACTIVATIONS = {  # name: (weft's function, the published formula in a form that never overflows)
    "relu": (weft.relu, lambda x: np.maximum(x, 0)),
    "relu6": (weft.relu6, lambda x: np.clip(x, 0, 6)),
    "leaky_relu": (lambda x: weft.leaky_relu(x, 0.2), lambda x: np.where(x > 0, x, 0.2 * x)),
    "prelu": (lambda x: weft.prelu(x, 0.3), lambda x: np.where(x > 0, x, 0.3 * x)),
    "elu": (lambda x: weft.elu(x, 1.5), lambda x: np.where(x > 0, x, 1.5 * np.expm1(np.minimum(x, 0)))),
    "selu": (weft.selu, lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(np.minimum(x, 0)))),
    "celu": (lambda x: weft.celu(x, 2.0), lambda x: np.where(x > 0, x, 2 * np.expm1(np.minimum(x, 0) / 2))),
    "gelu": (weft.gelu, lambda x: x * special.ndtr(x)),
    "gelu_tanh": (
        lambda x: weft.gelu(x, approximate=True),
        lambda x: x * special.expit(math.sqrt(8 / math.pi) * x * (1 + 0.044715 * np.minimum(x * x, 1e6))),
    ),
    "sigmoid": (weft.sigmoid, special.expit),
    "silu": (weft.silu, lambda x: x * special.expit(x)),
    "mish": (weft.mish, lambda x: x * np.tanh(np.logaddexp(x, 0))),
    "softplus": (weft.softplus, lambda x: np.logaddexp(x, 0)),
    "log_sigmoid": (weft.log_sigmoid, lambda x: -np.logaddexp(-x, 0)),
    "softsign": (weft.softsign, lambda x: x / (1 + np.abs(x))),
    "hard_sigmoid": (weft.hard_sigmoid, lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    "hard_swish": (weft.hard_swish, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "hard_tanh": (weft.hard_tanh, lambda x: np.clip(x, -1, 1)),
    "soft_shrink": (weft.soft_shrink, lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0)),
    "hard_shrink": (weft.hard_shrink, lambda x: np.where(np.abs(x) > 0.5, x, 0)),
    "tanh_shrink": (weft.tanh_shrink, lambda x: x - np.tanh(x)),
    "tanh": (weft.tanh, np.tanh),
}


@pytest.mark.sweep("name", share=0.5)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name, dtype):
    """The formula at moderate and extreme points; the derivative is finite everywhere, and right away from kinks."""
    f, formula = ACTIVATIONS[name]
    most = float(weft.finfo(dtype).max) / 2
    points = np.array([0, 1e-300, 1e-5, 0.21, 0.7, 1.3, 2.9, 4.1, 7.7, 15, 50, 200, 800, 3e4, 1e30, 1e300])
    x = weft.asarray(np.concatenate([-points, points]).clip(-most, most), dtype=dtype)
    y, back = weft.vjp(f, x)
    at = x.numpy().astype(np.float64)
    with np.errstate(over="ignore"):
        near(y, formula(at), TOLERANCE[dtype])
    assert y.dtype is x.dtype
    slope = back(weft.ones_like(x))[0].numpy().astype(np.float64)
    assert np.isfinite(slope).all(), dict(zip(at, slope, strict=True))
    smooth = (np.abs(at) < 100) & (np.abs(at) > 1e-3)
    difference = (formula(at[smooth] + 1e-6) - formula(at[smooth] - 1e-6)) / 2e-6
    np.testing.assert_allclose(slope[smooth], difference, rtol=0, atol=max(1e-8, 4 * TOLERANCE[dtype]))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_of_nan_is_nan(name):
    assert math.isnan(ACTIVATIONS[name][0](weft.asarray([NAN])).item())


def test_gates_and_lookups():
    rng = generator("gates")
    x, slopes, table, index = normal(rng, 4, 6), normal(rng, 6), normal(rng, 5, 3), rng.integers(0, 5, (2, 4))
    near(weft.glu(x), x[:, :3] * special.expit(x[:, 3:]))
    near(weft.glu(x, axis=0), x[:2] * special.expit(x[2:]))
    near(weft.maxout(x, 3), x.reshape(4, 2, 3).max(2))
    near(weft.maxout(x, 2, axis=0), x.reshape(2, 2, 6).max(1))
    near(weft.prelu(x, slopes), np.where(x > 0, x, x * slopes))
    near(weft.prelu(x, slopes[:4], axis=0), np.where(x > 0, x, x * slopes[:4, None]))
    near(weft.embedding(table, index), table[index])
    counts = np.bincount(index.ravel(), minlength=5)
    near(weft.grad(lambda t: weft.embedding(t, index).sum())(table), np.tile(counts[:, None], (1, 3)))
    near(weft.one_hot(index, 5), np.eye(5)[index])
    near(weft.one_hot([-1, 5, 1], 3), [[0, 0, 0], [0, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout(rate):
    x = generator("dropout").uniform(1, 2, size=(100, 1000))
    f = lambda x: weft.dropout(x, rate, generator=weft.random.Generator(7))  # noqa: E731
    y, back = weft.vjp(f, weft.asarray(x))
    kept = y.numpy() != 0
    near(y, np.where(kept, x / (1 - rate), 0))
    near(back(weft.ones_like(y))[0], kept / (1 - rate))
    assert abs(kept.mean() - (1 - rate)) < 5 * math.sqrt(rate * (1 - rate) / x.size)
    assert abs(y.numpy().mean() / x.mean() - 1) < 0.02
    assert np.array_equal(f(weft.asarray(x)).numpy(), y.numpy())
    assert np.array_equal(weft.dropout(x, rate, training=False).numpy(), x)
    assert not np.array_equal(weft.dropout(x, rate).numpy(), weft.dropout(x, rate).numpy())


# --- losses and attention -----------------------------------------------------------------------------------------------


def cross_entropy_by_formula(logits, target, weight, smoothing, ignored, reduction):
    """Logits (..., classes). Every row: -sum of weight * q * log p, with the smoothed target q."""
    classes, hard = logits.shape[-1], target.dtype.kind == "i"
    weight = np.ones(classes) if weight is None else weight
    q = (np.eye(classes)[target] if hard else target) * (1 - smoothing) + smoothing / classes
    losses = -(weight * q * special.log_softmax(logits, axis=-1)).sum(-1)
    shares = weight[target] * (target != ignored) if hard else np.ones(losses.shape)
    losses = losses * (shares != 0)
    return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / shares.sum()}[reduction]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy(reduction, axis, smoothing):
    rng = generator(f"cross entropy {axis}")
    logits, classes, soft = normal(rng, 3, 4, 5) * 3, rng.integers(0, 5, (3, 4)), rng.dirichlet(np.ones(5), (3, 4))
    moved = np.moveaxis(logits, -1, axis)
    for weight, ignored in itertools.product((None, rng.uniform(0.5, 2, 5)), (None, 2, -1)):
        target = np.where(rng.random((3, 4)) < 0.3, -1, classes) if ignored == -1 else classes
        how = {"axis": axis, "weight": weight, "label_smoothing": smoothing, "reduction": reduction}
        actual = weft.cross_entropy(moved, target, ignore_index=ignored, **how)
        near(actual, cross_entropy_by_formula(logits, target, weight, smoothing, ignored, reduction))
        actual = weft.cross_entropy(moved, np.moveaxis(soft, -1, axis), **how)
        near(actual, cross_entropy_by_formula(logits, soft, weight, smoothing, None, reduction))


def test_losses_of_distances():
    rng = generator("distances")
    a, b = normal(rng, 3, 4), normal(rng, 3, 4)
    for f, distances in ((weft.mse_loss, (a - b) ** 2), (weft.mae_loss, np.abs(a - b))):
        near(f(a, b), distances.mean())
        near(f(a, b, reduction="sum"), distances.sum())
        near(f(a, b, reduction="none"), distances)
        for wrong in (lambda f=f: f(a, b[:, :1]), lambda f=f: f(a, b, reduction="average")):
            with pytest.raises(weft.UserError, match="required|must be"):
                wrong()


def test_a_class_that_does_not_exist_is_named():
    for wrong in (5, -3):
        with pytest.raises(weft.WeftError, match=f"(index|class) {wrong} "):
            weft.cross_entropy([[0.0, 1.0]], [wrong]).item()


def attention_by_formula(q, k, v, added, scale):
    """Added to the scores is -inf where nothing may be seen; a row that sees nothing gives zeros."""
    scores = q @ np.swapaxes(k, -1, -2) * scale + added
    raised = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e300))
    return raised @ v / np.maximum(raised.sum(-1, keepdims=True), 1e-300)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_attention(batch):
    rng = generator(f"attention {batch}")
    q, k, v = normal(rng, *batch, 4, 5), normal(rng, *batch, 6, 5), normal(rng, *batch, 6, 2)
    mask, bias, scale = rng.random((*batch, 4, 6)) < 0.5, normal(rng, 4, 6), 1 / math.sqrt(5)
    mask[..., 1, :] = False
    hide = np.where(mask, 0, -INF)
    past = np.where(np.arange(6) <= np.arange(4)[:, None] + 2, 0, -INF)  # the last query sees every key
    attend = weft.dot_product_attention
    near(attend(q, k, v), attention_by_formula(q, k, v, 0, scale))
    near(attend(q, k, v, scale=0.3), attention_by_formula(q, k, v, 0, 0.3))
    near(attend(q, k, v, mask=bias), attention_by_formula(q, k, v, bias, scale))
    near(attend(q, k, v, mask=mask), attention_by_formula(q, k, v, hide, scale))
    near(attend(q, k, v, causal=True), attention_by_formula(q, k, v, past, scale))
    near(attend(q, k, v, mask=mask, causal=True), attention_by_formula(q, k, v, hide + past, scale))
    near(attend(q, k[..., :1, :, :], v), attention_by_formula(q, k[..., :1, :, :], v, 0, scale)) if batch else None
    grads = weft.grad(lambda *qkv: attend(*qkv, mask=mask).sum(), argnums=(0, 1, 2))(q, k, v)
    assert all(np.isfinite(g.numpy()).all() for g in grads)


# --- sums of products ---------------------------------------------------------------------------------------------------

EINSUMS = """
i->i:3 i->:3 ij->ji:23 ij->:23 ij->j:23 ij->i:23 ii->i:33 ii->:33 ii:33 ji:23 iij->j:334 iji->ij:343 iii->i:333
iijj->ij:2233 ,->:, ,i->i:,3 i,i->:3,3 i,i->i:3,3 i,j->ij:2,3 i,j->ji:2,3 ij,jk->ik:23,34 ij,jk:23,34 ij,kj->ki:23,43
ij,ij->:23,23 ij,ij->ij:23,23 ij,j->i:23,3 bij,bjk->bik:223,234 bij,jk->bik:223,34 bhqd,bhkd->bhqk:2234,2254
ii,ij->j:33,34 ij,kl->:23,42 ij,kl->ijkl:23,42 ijk,jil->kl:234,325 i...->...:345 ...i->...:345 ...ii->...i:2433
...ij,...jk->...ik:523,534 ...ij,...jk->...ik:1523,4134 ...,...->...:23,3 ...i,...i:43,43 i...i->...:323 ij...,j->i...:2345,3
ij,jk,kl->il:23,34,42 ij,jk,kl->:23,34,42 i,i,i->i:3,3,3 ab,bc,cd,de->ae:23,34,42,23 i,j,k,l->lkji:2,3,4,2 ij,ij->ij:21,23
ij,ij->i:13,23 ij,jk->ik:21,34 ab,ab,ab->b:23,13,21 Ba,aB->:23,32 Ba:23 ij,jk->ik:20,03 i,->:0,
"""


@pytest.mark.sweep(share=1.0)
@pytest.mark.parametrize("case", EINSUMS.split())
def test_einsum(case):
    equation, shapes = case.split(":")
    rng = generator(case)
    arrays = [normal(rng, *map(int, shape)) for shape in shapes.split(",")]
    near(weft.einsum(equation, *arrays), np.einsum(equation, *arrays))
    whole = [rng.integers(-5, 5, a.shape) for a in arrays]
    assert np.array_equal(weft.einsum(equation, *whole).numpy(), np.einsum(equation, *whole))
    if all(a.size for a in arrays):
        check_grads(lambda *xs: weft.einsum(equation, *xs), arrays, rng=rng, order=1)


BATCHES = [(), (1,), (5,), (2, 1), (2, 5)]


@pytest.mark.sweep(share=1.0)
@pytest.mark.parametrize("left", [None, *BATCHES])
@pytest.mark.parametrize("right", [None, *BATCHES])
def test_matmul(left, right):
    rng = generator(f"matmul {left} {right}")
    a = normal(rng, 3) if left is None else normal(rng, *left, 4, 3)
    b = normal(rng, 3) if right is None else normal(rng, *right, 3, 2)
    near(weft.matmul(a, b), np.matmul(a, b))
    near(weft.asarray(a) @ b, a @ b)
    check_grads(weft.matmul, [a, b], rng=rng, order=1)


def test_products_with_axes():
    rng = generator("products")
    x, y, u, v = normal(rng, 2, 3, 4), normal(rng, 4, 3, 5), normal(rng, 2, 3), normal(rng, 4, 1, 3)
    for axes in (0, 1, ([1, 2], [1, 0]), ([-1], [0]), ([], [])):
        near(weft.tensordot(x, y, axes=axes), np.tensordot(x, y, axes=axes))
    near(weft.vecdot(u, v), (u * v).sum(-1))
    near(weft.vecdot(x, x, axis=-2), (x * x).sum(-2))
    near(weft.outer(u[0], v[0, 0]), np.outer(u[0], v[0, 0]))
    near(weft.cross(u, v), np.cross(u, v))
    near(weft.cross(x, x[..., :1], axis=1), np.cross(x, x[..., :1], axis=1))
    for offset in range(-5, 5):
        near(weft.trace(x, offset=offset), np.trace(x, offset, -2, -1))
        near(weft.diagonal(x, offset=offset), np.diagonal(x, offset, -2, -1))
        near(weft.diagonal(x, offset=offset, axis1=2, axis2=0), np.diagonal(x, offset, 2, 0))


# --- edges --------------------------------------------------------------------------------------------------------------

BROKEN_IMAGE = np.array([NAN, 1.0, 2.0, 3.0, 1.0, 1.0, 2.0, 3.0]).reshape(2, 1, 2, 2)
HIDE_ALL = np.full((2, 3), -INF)
EDGES = {
    "a window of padding alone has no derivative": (
        lambda: weft.grad(lambda x: weft.max_pool(x, 2, stride=1, padding=2, dilation=3).sum())(np.ones((1, 1, 1))),
        [[[0.0]]],
    ),
    "infinity stays in its window": (lambda: weft.adaptive_avg_pool([[[1.0, 2.0, INF]]], 2), [[[1.5, INF]]]),
    "nan stays in its image": (lambda: weft.isfinite(weft.local_contrast_norm(BROKEN_IMAGE, 3)[1]).all(), True),
    "softmax of nothing": (lambda: weft.softmax(weft.zeros((2, 0))), np.zeros((2, 0))),
    "log_softmax of nothing": (lambda: weft.log_softmax(weft.zeros((2, 0))), np.zeros((2, 0))),
    "softmax of no rows": (lambda: weft.softmax(weft.zeros((0, 2))), np.zeros((0, 2))),
    "the sum of no exponentials is 0": (lambda: weft.logsumexp(weft.zeros((2, 0)), axis=1), [-INF, -INF]),
    "one place is hot in a small dtype": (lambda: weft.one_hot(weft.asarray([5], dtype="uint8"), 300).sum(), 1.0),
    "an impossible class costs infinitely much": (
        lambda: weft.cross_entropy([[0.0, -INF]], [1], weight=[1.0, 2.0]),
        INF,
    ),
    "a float mask can hide everything": (
        lambda: weft.dot_product_attention(np.ones((2, 4)), np.ones((3, 4)), np.ones((3, 2)), mask=HIDE_ALL),
        np.zeros((2, 2)),
    ),
    "full dropout leaves nothing of infinity": (lambda: weft.dropout([INF], 1.0), [0.0]),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(name):
    actual, expected = EDGES[name]
    near(actual(), expected)


def half(*values):
    return weft.asarray(np.array(values), dtype="float16")


MANY = weft.zeros((70_000, 2), dtype="float16")  # more rows than a float16 can count
HALVES = {  # The inputs and the result fit into float16; what is between them does not, unless it is computed wider.
    "mean of large numbers": (lambda: weft.mean(half(6e4, 6e4)), 6e4),
    "mean of many": (lambda: weft.mean(MANY + 1.0), 1.0),
    "std": (lambda: weft.std(half(300, -300)), 300.0),
    "norm": (lambda: weft.norm(half(300, 400)), 500.0),
    "layer_norm": (lambda: weft.layer_norm(half(300, -300)), [1.0, -1.0]),
    "rms_norm": (lambda: weft.rms_norm(half(300, -300)), [1.0, -1.0]),
    "batch_norm": (lambda: weft.batch_norm(half([300], [-300])).value, [[1.0], [-1.0]]),
    "group_norm": (lambda: weft.group_norm(half([300, -300]), 1), [[1.0, -1.0]]),
    "avg_pool": (lambda: weft.avg_pool(half([[3e4] * 4]), 4), [[[3e4]]]),
    "global_avg_pool": (lambda: weft.global_avg_pool(half([[3e4] * 4])), [[3e4]]),
    "adaptive_avg_pool": (lambda: weft.adaptive_avg_pool(half([[3e4] * 3]), 2), [[[3e4, 3e4]]]),
    "softmax": (lambda: weft.softmax(MANY, axis=0).max().astype("float32") * 7e4, 1.0),
    "cross_entropy": (lambda: weft.cross_entropy(MANY, np.zeros(70_000, int)), math.log(2)),
    "attention": (lambda: weft.dot_product_attention(*[half([40.0] * 64)] * 3)[0, :1], [40.0]),
}


@pytest.mark.parametrize("name", HALVES)
def test_halves_do_not_overflow_on_the_way(name):
    actual, expected = HALVES[name]
    near(actual(), expected, 4e-3)


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 3])
def test_diag_both_ways(offset):
    x = np.arange(1.0, 4.0)
    matrix = weft.diag(x, offset=offset)
    near(matrix, np.diag(x, offset))
    near(weft.diag(matrix, offset=offset), x)
