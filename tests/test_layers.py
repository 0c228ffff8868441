"""One row for each layer: what it is made with, what goes in and out, its formula, its costs. `check_layer` does the rest."""

import numpy as np
import pytest

import layer_formulas as formulas
from layer_formulas import adaptive, convolution, of_x, over_windows, transposed
from weft import nn
from weft.testing import LayerCase, check_layer

F = (3, 4)  # (batch, features)


def elements(make, formula, shape=F, **more):
    """A layer that keeps the shape and has nothing to train."""
    return LayerCase(make, [shape], shape, of_x(formula), **more)


ACTIVATIONS = [
    elements(nn.ReLU, lambda x: np.maximum(x, 0)),
    elements(nn.ReLU6, lambda x: np.minimum(np.maximum(x, 0), 6)),
    elements(lambda: nn.LeakyReLU(0.2), lambda x: np.where(x > 0, x, 0.2 * x)),
    LayerCase(nn.PReLU, [F], F, lambda p, x: np.where(x > 0, x, p["slope"] * x), parameters=1),
    LayerCase(lambda: nn.PReLU(4), [F], F, lambda p, x: np.where(x > 0, x, p["slope"] * x), parameters=4),
    elements(lambda: nn.ELU(0.5), lambda x: np.where(x > 0, x, 0.5 * (np.exp(x) - 1))),
    elements(nn.SELU, formulas.selu),
    elements(lambda: nn.CELU(0.5), lambda x: np.where(x > 0, x, 0.5 * (np.exp(x / 0.5) - 1))),
    elements(nn.GELU, formulas.gelu),
    elements(lambda: nn.GELU("tanh"), formulas.gelu_tanh),
    elements(nn.SiLU, lambda x: x * formulas.sigmoid(x)),
    elements(nn.Mish, lambda x: x * np.tanh(formulas.softplus(x))),
    elements(nn.Sigmoid, formulas.sigmoid),
    elements(nn.Tanh, np.tanh),
    elements(nn.Softplus, formulas.softplus),
    elements(nn.Softsign, lambda x: x / (1 + np.abs(x))),
    elements(nn.LogSigmoid, lambda x: np.log(formulas.sigmoid(x))),
    elements(nn.HardSigmoid, formulas.hard_sigmoid),
    elements(nn.HardSwish, lambda x: x * formulas.hard_sigmoid(x)),
    elements(lambda: nn.HardTanh(-0.5, 0.75), lambda x: np.clip(x, -0.5, 0.75)),
    elements(nn.Softshrink, lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0)),
    elements(nn.Hardshrink, lambda x: np.where(np.abs(x) > 0.5, x, 0)),
    elements(nn.Tanhshrink, lambda x: x - np.tanh(x)),
    elements(lambda: nn.Threshold(0.25, -2.0), lambda x: np.where(x > 0.25, x, -2.0)),
    elements(nn.Softmax, formulas.softmax),
    elements(lambda: nn.Softmax(0), lambda x: formulas.softmax(x, 0)),
    elements(nn.Softmin, lambda x: formulas.softmax(-x)),
    elements(nn.LogSoftmax, lambda x: np.log(formulas.softmax(x))),
    LayerCase(nn.GLU, [F], (3, 2), of_x(formulas.glu)),
    LayerCase(lambda: nn.Maxout(2), [F], (3, 2), of_x(formulas.maxout)),
]


def linear(p, x):
    return x @ p["weight"].T + p.get("bias", 0.0)


def two_layers(p, x):
    hidden = np.maximum(x @ p["layers.0.weight"].T + p["layers.0.bias"], 0)
    return hidden @ p["layers.2.weight"].T + p["layers.2.bias"]


def bilinear_form(p, a, b):
    return np.einsum("ni,kij,nj->nk", a, p["weight"], b) + p["bias"]


def looked_up(padding):
    return lambda p, x: p["weight"][x] * (x != padding)[..., None]


PRODUCTS = [
    LayerCase(lambda: nn.Linear(None, 2), [F], (3, 2), linear, parameters=10, macs=24, sized=lambda: nn.Linear(4, 2)),
    LayerCase(lambda: nn.Linear(4, 2, bias=False), [(2, 3, 4)], (2, 3, 2), linear, parameters=8, macs=48),
    LayerCase(
        lambda: nn.Linear(4, 2, activation="tanh"), [F], (3, 2), lambda p, x: np.tanh(linear(p, x)), parameters=10
    ),
    LayerCase(
        lambda: nn.Bilinear(None, None, 2), [(3, 4), (3, 5)], (3, 2), bilinear_form, parameters=42,
        sized=lambda: nn.Bilinear(4, 5, 2), slack=2.0,
    ),
    LayerCase(lambda: nn.Embedding(5, 3), [(2, 4)], (2, 4, 3), looked_up(None), parameters=15, below=5),
    LayerCase(lambda: nn.Embedding(5, 3, padding=1), [(2, 4)], (2, 4, 3), looked_up(1), parameters=15, below=5),
]  # fmt: skip

CONVOLUTIONS = [
    LayerCase(
        lambda: nn.Conv1d(None, 4, 3, stride=2, padding=(1,)), [(2, 3, 6)], (2, 4, 3),
        convolution(stride=2, padding=1), parameters=40, macs=216, sized=lambda: nn.Conv1d(3, 4, 3),
    ),
    LayerCase(
        lambda: nn.Conv2d(None, 4, 3, padding="same", groups=2), [(1, 2, 4, 5)], (1, 4, 4, 5),
        convolution(padding=1, groups=2), parameters=40, macs=720, sized=lambda: nn.Conv2d(2, 4, 3, groups=2),
    ),
    LayerCase(
        lambda: nn.Conv2d(2, 3, (2, 1), stride=(1, 2), padding=((1, 0), 0), dilation=(2, 1), bias=False, activation="relu"),
        [(2, 2, 4, 3)], (2, 3, 3, 2),
        lambda p, x: np.maximum(convolution(stride=(1, 2), padding=((1, 0), 0), dilation=(2, 1))(p, x), 0),
        parameters=12, macs=144,
    ),
    LayerCase(
        lambda: nn.Conv3d(2, 2, 2, padding=(0, 1, 0)), [(1, 2, 2, 3, 3)], (1, 2, 1, 4, 2),
        convolution(padding=(0, 1, 0)), parameters=34, macs=256,
    ),
    LayerCase(
        lambda: nn.DepthwiseConv2d(None, 2, multiplier=2, stride=2, dilation=2), [(2, 2, 5, 4)], (2, 4, 2, 1),
        formulas.depthwise(2, stride=2, dilation=2), parameters=20, macs=64,
        sized=lambda: nn.DepthwiseConv2d(2, 2, multiplier=2),
    ),
    LayerCase(
        lambda: nn.SeparableConv2d(None, 4, 3, padding=1), [(1, 3, 3, 4)], (1, 4, 3, 4), formulas.separable,
        parameters=43, macs=468, sized=lambda: nn.SeparableConv2d(3, 4, 3), slack=2.0,
    ),
    LayerCase(
        lambda: nn.ConvTranspose1d(None, 2, 3, stride=2, padding=1, output_padding=1), [(2, 3, 4)], (2, 2, 8),
        transposed(stride=2, padding=1, extra=1), parameters=20, macs=144, sized=lambda: nn.ConvTranspose1d(3, 2, 3),
    ),
    LayerCase(
        lambda: nn.ConvTranspose2d(4, 2, (2, 3), stride=(2, 1), padding=((0, 1), 1), dilation=(1, 2), groups=2, bias=False),
        [(1, 4, 2, 3)], (1, 2, 3, 5), transposed(stride=(2, 1), padding=((0, 1), 1), dilation=(1, 2), groups=2),
        parameters=24, macs=144,
    ),
    LayerCase(
        lambda: nn.ConvTranspose3d(2, 2, 2, activation="tanh"), [(1, 2, 2, 1, 2)], (1, 2, 3, 2, 3),
        lambda p, x: np.tanh(transposed()(p, x)), parameters=34,
    ),
    LayerCase(
        lambda: nn.Unfold((2, 3), stride=(1, 2), padding=1), [(2, 2, 3, 4)], (2, 12, 8),
        formulas.unfold(stride=(1, 2), padding=1),
    ),
    LayerCase(
        lambda: nn.Fold((3, 5), (2, 3), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), [(2, 12, 2)], (2, 2, 3, 5),
        formulas.fold((3, 5), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
    ),
]  # fmt: skip


def root_of_squares(x, axes):
    return np.sqrt((x * x).sum(axes))


POOLINGS = [
    LayerCase(lambda: nn.MaxPool1d(2), [(2, 2, 5)], (2, 2, 2), over_windows(np.max, 2, 2)),
    LayerCase(
        lambda: nn.MaxPool2d((2, 3), stride=1, padding=(1, 0)), [(1, 2, 3, 4)], (1, 2, 4, 2),
        over_windows(np.max, (2, 3), 1, (1, 0), filler=-np.inf),
    ),
    LayerCase(
        lambda: nn.MaxPool2d(2, stride=2, ceil_mode=True), [(1, 2, 3, 4)], (1, 2, 2, 2),
        over_windows(np.max, 2, 2, ((0, 1), 0), filler=-np.inf),
    ),
    LayerCase(
        lambda: nn.MaxPool3d(2, stride=1, dilation=(1, 2, 1)), [(1, 2, 2, 3, 3)], (1, 2, 1, 1, 2),
        over_windows(np.max, 2, 1, dilation=(1, 2, 1)),
    ),
    LayerCase(lambda: nn.AvgPool1d(3, stride=1, padding=1), [(2, 2, 5)], (2, 2, 5), over_windows(np.mean, 3, 1, 1)),
    LayerCase(
        lambda: nn.AvgPool2d(2, stride=1, padding=1, count_include_pad=False), [(1, 2, 3, 3)], (1, 2, 4, 4),
        over_windows(np.nanmean, 2, 1, 1, filler=np.nan),
    ),
    LayerCase(lambda: nn.AvgPool3d((1, 2, 2)), [(1, 2, 2, 2, 4)], (1, 2, 2, 1, 2), over_windows(np.mean, (1, 2, 2), (1, 2, 2))),
    LayerCase(lambda: nn.LPPool2d(2, 2), [(1, 2, 4, 4)], (1, 2, 2, 2), over_windows(root_of_squares, 2, 2)),
    LayerCase(
        lambda: nn.LPPool2d(3, 2, stride=1, padding=1), [(1, 2, 3, 3)], (1, 2, 4, 4),
        over_windows(lambda x, axes: (np.abs(x) ** 3).sum(axes) ** (1 / 3), 2, 1, 1),
    ),
    LayerCase(nn.GlobalAvgPool, [(2, 3, 4, 5)], (2, 3), of_x(lambda x: x.mean((2, 3)))),
    LayerCase(nn.GlobalMaxPool, [(2, 3, 4)], (2, 3), of_x(lambda x: x.max(2))),
    LayerCase(lambda: nn.AdaptiveAvgPool1d(3), [(2, 2, 5)], (2, 2, 3), adaptive(np.mean, 3)),
    LayerCase(lambda: nn.AdaptiveAvgPool2d((2, 3)), [(1, 2, 5, 3)], (1, 2, 2, 3), adaptive(np.mean, 2, 3)),
    LayerCase(lambda: nn.AdaptiveAvgPool3d(1), [(1, 2, 2, 3, 2)], (1, 2, 1, 1, 1), adaptive(np.mean, 1, 1, 1)),
    LayerCase(lambda: nn.AdaptiveMaxPool1d(2), [(2, 2, 5)], (2, 2, 2), adaptive(np.max, 2)),
    LayerCase(lambda: nn.AdaptiveMaxPool2d((3, 2)), [(1, 2, 4, 4)], (1, 2, 3, 2), adaptive(np.max, 3, 2)),
    LayerCase(lambda: nn.AdaptiveMaxPool3d((1, 2, 1)), [(1, 2, 2, 3, 2)], (1, 2, 1, 2, 1), adaptive(np.max, 1, 2, 1)),
]  # fmt: skip

NORMS = [
    LayerCase(
        nn.BatchNorm, [(4, 3)], (4, 3), formulas.batch_norm, parameters=6, state=6, sized=lambda: nn.BatchNorm(3)
    ),
    LayerCase(lambda: nn.BatchNorm1d(3), [(2, 3, 2)], (2, 3, 2), formulas.batch_norm, parameters=6, state=6),
    LayerCase(lambda: nn.BatchNorm2d(affine=False), [(2, 3, 2, 2)], (2, 3, 2, 2), formulas.batch_norm, state=6, sized=lambda: nn.BatchNorm2d(3, affine=False)),
    LayerCase(lambda: nn.BatchNorm3d(3, track=False), [(2, 3, 1, 2, 2)], (2, 3, 1, 2, 2), formulas.batch_norm_of_batch, parameters=6),
    LayerCase(nn.LayerNorm, [(2, 3, 4)], (2, 3, 4), formulas.layer_norm(), parameters=8, sized=lambda: nn.LayerNorm(4)),
    LayerCase(lambda: nn.LayerNorm((3, 4)), [(2, 3, 4)], (2, 3, 4), formulas.layer_norm(2), parameters=24),
    elements(lambda: nn.LayerNorm(affine=False), lambda x: formulas.standard(x, -1)),
    LayerCase(nn.RMSNorm, [F], F, formulas.rms_norm, parameters=4, sized=lambda: nn.RMSNorm(4)),
    LayerCase(lambda: nn.GroupNorm(2), [(2, 4, 3)], (2, 4, 3), formulas.group_norm(2), parameters=8, sized=lambda: nn.GroupNorm(2, 4)),
    LayerCase(lambda: nn.GroupNorm(1, affine=False), [F], F, formulas.group_norm(1)),
    LayerCase(nn.InstanceNorm, [(2, 3, 4)], (2, 3, 4), formulas.instance_norm),
    LayerCase(
        lambda: nn.InstanceNorm(affine=True), [(2, 3, 2, 3)], (2, 3, 2, 3), formulas.instance_norm, parameters=6,
        sized=lambda: nn.InstanceNorm(3, affine=True),
    ),
    LayerCase(lambda: nn.LRN(3, alpha=0.5, k=2.0), [(2, 4, 2)], (2, 4, 2), formulas.lrn),
    LayerCase(lambda: nn.LCN(3, eps=0.1), [(1, 2, 4, 3)], (1, 2, 4, 3), formulas.lcn),
]  # fmt: skip

NOISE = [
    elements(nn.Dropout, lambda x: x, random=True),
    elements(lambda: nn.Dropout1d(0.4), lambda x: x, (3, 4, 2), random=True),
    elements(lambda: nn.Dropout2d(0.4), lambda x: x, (3, 4, 2, 2), random=True),
    elements(lambda: nn.Dropout3d(0.4), lambda x: x, (3, 4, 1, 2, 2), random=True),
    elements(lambda: nn.DropPath(0.4), lambda x: x, (12, 2), random=True),
    elements(lambda: nn.AlphaDropout(0.4), lambda x: x, random=True),
    elements(nn.GaussianDropout, lambda x: x, random=True),
    elements(lambda: nn.GaussianNoise(0.5), lambda x: x, random=True),
]


def padded(mode, pairs):
    return of_x(lambda x: np.pad(x, ((0, 0), (0, 0), *pairs), mode))


PLACES = [
    elements(nn.Identity, lambda x: x),
    LayerCase(nn.Flatten, [(2, 3, 4)], (2, 12), of_x(lambda x: x.reshape(2, 12))),
    LayerCase(lambda: nn.Flatten(0), [(2, 3)], (6,), of_x(np.ravel)),
    LayerCase(lambda: nn.Reshape(2, -1), [(3, 4)], (3, 2, 2), of_x(lambda x: x.reshape(3, 2, 2))),
    LayerCase(lambda: nn.Permute(0, 2, 1), [(2, 3, 4)], (2, 4, 3), of_x(lambda x: x.transpose(0, 2, 1))),
    LayerCase(lambda: nn.Lambda(lambda x: 2.0 * x, "twice"), [F], F, of_x(lambda x: 2.0 * x)),
    LayerCase(lambda: nn.ZeroPad(1), [(2, 1, 3)], (2, 1, 5), padded("constant", [(1, 1)])),
    LayerCase(lambda: nn.ReflectPad((1, (2, 0))), [(1, 2, 2, 3)], (1, 2, 4, 5), padded("reflect", [(1, 1), (2, 0)])),
    LayerCase(lambda: nn.ReplicatePad(((3, 1), 2)), [(1, 2, 2, 3)], (1, 2, 6, 7), padded("edge", [(3, 1), (2, 2)])),
    LayerCase(lambda: nn.CircularPad([2]), [(1, 2, 3)], (1, 2, 7), padded("wrap", [(2, 2)])),
    LayerCase(lambda: nn.Crop((1, (0, 2))), [(1, 2, 3, 4)], (1, 2, 1, 2), of_x(lambda x: x[:, :, 1:2, 0:2])),
    LayerCase(lambda: nn.Upsample(2), [(1, 2, 2, 3)], (1, 2, 4, 6), of_x(lambda x: x.repeat(2, 2).repeat(2, 3))),
    LayerCase(lambda: nn.Upsample((3, 2), "bilinear"), [(1, 2, 2, 3)], (1, 2, 6, 6), formulas.bilinear(3, 2)),
    LayerCase(lambda: nn.Upsample(4, "bilinear"), [(1, 2, 3)], (1, 2, 12), formulas.bilinear(4)),
    LayerCase(lambda: nn.PixelShuffle(2), [(1, 8, 2, 3)], (1, 2, 4, 6), formulas.pixel_shuffle),
    LayerCase(lambda: nn.PixelUnshuffle(2), [(1, 2, 4, 6)], (1, 8, 2, 3), formulas.pixel_unshuffle),
    LayerCase(lambda: nn.ChannelShuffle(2), [(1, 6, 2)], (1, 6, 2), of_x(lambda x: x[:, [0, 3, 1, 4, 2, 5]])),
]


def resized(*sizes):
    """Each result is a mean of the elements of its row, weighted by how near they are: a hat one element wide."""

    def formula(p, x):
        for axis, size in enumerate(sizes, 2):
            n = x.shape[axis]
            places = np.clip((np.arange(size) + 0.5) * n / size - 0.5, 0, n - 1)
            hats = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(n)))
            x = np.moveaxis(np.tensordot(x, hats, (axis, 1)), -1, axis)
        return x

    return formula


def one_hot(x):
    return (x[..., None] == np.arange(3)).astype(float)


INPUTS = [
    elements(lambda: nn.Rescaling(0.5, -1.0), lambda x: 0.5 * x - 1.0),
    LayerCase(lambda: nn.Resizing((5, 2)), [(1, 2, 3, 4)], (1, 2, 5, 2), resized(5, 2), slack=2.0),
    LayerCase(lambda: nn.Resizing(7), [(2, 1, 3)], (2, 1, 7), resized(7)),
    LayerCase(lambda: nn.Resizing((3, 2), "nearest"), [(1, 2, 2, 5)], (1, 2, 3, 2), of_x(lambda x: x[:, :, [0, 1, 1]][..., [1, 3]])),
    LayerCase(lambda: nn.CenterCrop((1, 3)), [(1, 2, 4, 4)], (1, 2, 1, 3), of_x(lambda x: x[:, :, 1:2, 0:3])),
    LayerCase(lambda: nn.CategoryEncoding(3), [(2, 4)], (2, 4, 3), of_x(one_hot), below=4),
    LayerCase(lambda: nn.CategoryEncoding(3, "multi_hot"), [(2, 4)], (2, 3), of_x(lambda x: one_hot(x).max(-2)), below=4),
    LayerCase(lambda: nn.CategoryEncoding(3, "count"), [(2, 4)], (2, 3), of_x(lambda x: one_hot(x).sum(-2)), below=4),
]  # fmt: skip


def residual(p, x):
    return np.maximum(x @ p["body.weight"].T + p["body.bias"] + x @ p["shortcut.weight"].T, 0)


TOGETHER = [
    LayerCase(
        lambda: nn.Sequential(nn.Linear(None, 5), nn.ReLU(), nn.Linear(None, 2)), [F], (3, 2), two_layers,
        parameters=37, macs=90, sized=lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), slack=3.0,
    ),
    LayerCase(nn.Add, [F, F, (1, 4)], F, of_x(lambda a, b, c: a + b + c), slack=2.0),
    LayerCase(nn.Multiply, [F, F], F, of_x(lambda a, b: a * b)),
    LayerCase(nn.Average, [F, F], F, of_x(lambda a, b: (a + b) / 2)),
    LayerCase(nn.Maximum, [F, F], F, of_x(np.maximum)),
    LayerCase(nn.Concat, [(2, 3), (2, 1)], (2, 4), of_x(lambda a, b: np.concatenate([a, b], 1))),
    LayerCase(lambda: nn.Concat(0), [(2, 3), (1, 3)], (3, 3), of_x(lambda a, b: np.concatenate([a, b], 0))),
    LayerCase(
        lambda: nn.Residual(nn.Linear(4, 2), nn.Linear(4, 2, bias=False), "relu"), [F], (3, 2), residual,
        parameters=18, macs=48, slack=2.0,
    ),
]  # fmt: skip

CASES = [*ACTIVATIONS, *PRODUCTS, *CONVOLUTIONS, *POOLINGS, *NORMS, *NOISE, *PLACES, *INPUTS, *TOGETHER]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_layer(case):
    assert check_layer(case) >= 28


def test_every_layer_of_these_files_has_a_row():
    """A layer that is added without a row here is found."""
    elsewhere = {
        "module",
        "summary",
        "containers",
        "cells",
        "recurrent",
        "attention",
        "transformer",
        "positions",
        "functional_model",
        "kv_cache",
    }
    elsewhere |= {"vocabulary"}  # they work on texts
    in_test_inputs = {"Normalization", "Discretization"}  # state that no step changes; whole numbers as results
    classes = {n: v for n in nn.__all__ if isinstance(v := getattr(nn, n), type)}
    layers = {n for n, v in classes.items() if v.__module__.rpartition(".")[2] not in elsewhere}
    assert layers == {type(case.make()).__name__ for case in CASES} - {"Sequential"} | in_test_inputs
