"""The published formulas of layers as plain NumPy in float64, for the tests: loops over places, no code of weft's.

Each takes the layer's tensors by name and its inputs.
"""

import itertools
import math

import numpy as np
from scipy import special

# --- elements ---------------------------------------------------------------------------------------------------------------


def of_x(function):
    """A formula that needs no tensors."""
    return lambda p, *xs: function(*xs)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


def softmax(x, axis=-1):
    e = np.exp(x)
    return e / e.sum(axis=axis, keepdims=True)


def hard_sigmoid(x):
    return np.minimum(np.maximum(x / 6 + 0.5, 0), 1)


def selu(x):
    return 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * (np.exp(x) - 1))


def gelu(x):
    return x * special.ndtr(x)


def gelu_tanh(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def glu(x):
    half = x.shape[-1] // 2
    return x[..., :half] * sigmoid(x[..., half:])


def maxout(x):
    return np.stack([x[:, i : i + 2].max(1) for i in range(0, x.shape[1], 2)], axis=1)


# --- windows ---------------------------------------------------------------------------------------------------------------


def each(value, rank):
    return (value,) * rank if isinstance(value, int) else tuple(value)


def pairs(padding, rank):
    return [v if isinstance(v, tuple) else (v, v) for v in each(padding, rank)]


def windows(x, kernel, stride=1, padding=0, dilation=1, filler=0.0):
    """All windows: (batch, channels, places..., kernel...), place by place."""
    rank = x.ndim - 2
    kernel, stride, dilation = each(kernel, rank), each(stride, rank), each(dilation, rank)
    wide = np.pad(x, [(0, 0), (0, 0), *pairs(padding, rank)], constant_values=filler)
    counts = [
        (n - (k - 1) * d - 1) // s + 1 for n, k, s, d in zip(wide.shape[2:], kernel, stride, dilation, strict=True)
    ]
    result = np.empty((*x.shape[:2], *counts, *kernel))
    for place, tap in itertools.product(np.ndindex(*counts), np.ndindex(*kernel)):
        at = [i * s + t * d for i, s, t, d in zip(place, stride, tap, dilation, strict=True)]
        result[(slice(None), slice(None), *place, *tap)] = wide[(slice(None), slice(None), *at)]
    return result


def over_windows(reduce, *window, **settings):
    """A pooling: one number for each window."""

    def formula(p, x):
        found = windows(x, *window, **settings)
        return reduce(found, tuple(range(x.ndim, found.ndim)))

    return formula


def conv(x, w, bias=None, *, stride=1, padding=0, dilation=1, groups=1):
    found = windows(x, w.shape[2:], stride, padding, dilation)
    inputs, outputs, taps = x.shape[1] // groups, len(w) // groups, "uvw"[: x.ndim - 2]
    parts = [
        np.einsum(
            f"nc...{taps},oc{taps}->no...", found[:, g * inputs : (g + 1) * inputs], w[g * outputs : (g + 1) * outputs]
        )
        for g in range(groups)
    ]
    y = np.concatenate(parts, axis=1)
    return y if bias is None else y + bias.reshape(-1, *[1] * (x.ndim - 2))


def convolution(**settings):
    return lambda p, x: conv(x, p["weight"], p.get("bias"), **settings)


def transposed(*, stride=1, padding=0, extra=0, dilation=1, groups=1):
    """Every element of the input lays the filter, scaled by itself, into the result."""

    def formula(p, x):
        w, rank = p["weight"], x.ndim - 2
        steps, gaps, spare = each(stride, rank), each(dilation, rank), each(extra, rank)
        inputs, outputs = x.shape[1] // groups, w.shape[1]
        size = [
            (n - 1) * s + (k - 1) * d + 1 + e
            for n, s, k, d, e in zip(x.shape[2:], steps, w.shape[2:], gaps, spare, strict=True)
        ]
        y = np.zeros((len(x), outputs * groups, *size))
        for g, place, tap in itertools.product(range(groups), np.ndindex(*x.shape[2:]), np.ndindex(*w.shape[2:])):
            at = [i * s + t * d for i, s, t, d in zip(place, steps, tap, gaps, strict=True)]
            source, target = slice(g * inputs, (g + 1) * inputs), slice(g * outputs, (g + 1) * outputs)
            y[(slice(None), target, *at)] += x[(slice(None), source, *place)] @ w[(source, slice(None), *tap)]
        inside = [slice(lo, n - hi) for n, (lo, hi) in zip(size, pairs(padding, rank), strict=True)]
        y = y[(slice(None), slice(None), *inside)]
        return y + p["bias"].reshape(-1, *[1] * rank) if "bias" in p else y

    return formula


def adaptive(reduce, *size):
    """Window i of m over n elements reaches from floor(i n / m) to ceil((i + 1) n / m)."""

    def formula(p, x):
        y = np.empty((*x.shape[:2], *size))
        for place in np.ndindex(*size):
            spans = [slice(i * n // m, -(-(i + 1) * n // m)) for i, n, m in zip(place, x.shape[2:], size, strict=True)]
            y[(slice(None), slice(None), *place)] = reduce(x[(..., *spans)], tuple(range(2, x.ndim)))
        return y

    return formula


def depthwise(multiplier, **settings):
    return lambda p, x: conv(x, p["weight"], p.get("bias"), groups=x.shape[1], **settings)


def separable(p, x):
    inner = conv(x, p["depthwise.weight"], groups=x.shape[1], padding=1)
    return conv(inner, p["pointwise.weight"], p["pointwise.bias"])


def unfold(**settings):
    def formula(p, x):
        found = windows(x, (2, 3), **settings)
        n, c, h, w, a, b = found.shape
        return found.transpose(0, 1, 4, 5, 2, 3).reshape(n, c * a * b, h * w)

    return formula


def fold(size, **settings):
    """Where each element of an image goes, told by unfolding the numbers of its places."""

    def formula(p, x):
        numbers = np.arange(1, math.prod(size) + 1, dtype=float).reshape(1, 1, *size)
        places = unfold(**settings)(p, numbers)[0].astype(int)
        columns = x.reshape(len(x), -1, *places.shape)
        y = np.zeros((len(x), columns.shape[1], math.prod(size) + 1))
        for i, place in np.ndenumerate(places):
            y[:, :, place] += columns[(slice(None), slice(None), *i)]
        return y[:, :, 1:].reshape(len(x), -1, *size)  # place 0 is the padding

    return formula


# --- norms -----------------------------------------------------------------------------------------------------------------


def standard(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def by_channel(values, x):
    return values.reshape(1, -1, *[1] * (x.ndim - 2))


def scaled(p, y, x):
    """Times scale plus shift, a pair for each channel, if there are any."""
    return y * by_channel(p["scale"], x) + by_channel(p["shift"], x) if "scale" in p else y


def batch_norm(p, x):
    y = (x - by_channel(p["mean"], x)) / np.sqrt(by_channel(p["var"], x) + 1e-5)
    return scaled(p, y, x)


def batch_norm_of_batch(p, x):
    return scaled(p, standard(x, (0, *range(2, x.ndim))), x)


def layer_norm(count=1):
    def formula(p, x):
        y = standard(x, tuple(range(x.ndim - count, x.ndim)))
        return y * p["scale"] + p["shift"] if "scale" in p else y

    return formula


def rms_norm(p, x):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * p["scale"]


def group_norm(groups):
    def formula(p, x):
        parts = x.reshape(len(x), groups, -1)
        return scaled(p, standard(parts, 2).reshape(x.shape), x)

    return formula


def instance_norm(p, x):
    return scaled(p, standard(x, tuple(range(2, x.ndim))), x)


def lrn(p, x):
    """size 3, alpha 0.5, beta 0.75, k 2"""
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        near = x[:, max(c - 1, 0) : c + 2]
        y[:, c] = x[:, c] / (2.0 + 0.5 / 3 * (near * near).sum(1)) ** 0.75
    return y


def lcn(p, x):
    """size 3, eps 0.1: box means over what lies inside the image"""

    def box(values):
        y = np.empty_like(values)
        for i, j in np.ndindex(*x.shape[2:]):
            y[:, :, i, j] = values[:, :, max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2].mean((2, 3))
        return y

    centred = x - box(x.mean(1, keepdims=True))
    return centred / np.sqrt(box((centred**2).mean(1, keepdims=True)) + 0.1**2)


# --- places ----------------------------------------------------------------------------------------------------------------


def bilinear(*scales):
    """Result i lies at (i + 1/2) / scale - 1/2; beyond the border the outermost elements go on."""

    def formula(p, x):
        for axis, scale in enumerate(scales, 2):
            n = x.shape[axis]
            places = np.clip((np.arange(n * scale) + 0.5) / scale - 0.5, 0, n - 1)
            low = np.floor(places).astype(int)
            high, part = np.minimum(low + 1, n - 1), (places - low).reshape(-1, *[1] * (x.ndim - axis - 1))
            x = x.take(low, axis) * (1 - part) + x.take(high, axis) * part
        return x

    return formula


def pixel_shuffle(p, x):
    n, c, h, w = x.shape
    y = np.empty((n, c // 4, h * 2, w * 2))
    for k, i, j in np.ndindex(c // 4, h * 2, w * 2):
        y[:, k, i, j] = x[:, k * 4 + i % 2 * 2 + j % 2, i // 2, j // 2]
    return y


def pixel_unshuffle(p, x):
    n, c, h, w = x.shape
    y = np.empty((n, c * 4, h // 2, w // 2))
    for k, i, j in np.ndindex(c, h, w):
        y[:, k * 4 + i % 2 * 2 + j % 2, i // 2, j // 2] = x[:, k, i, j]
    return y
