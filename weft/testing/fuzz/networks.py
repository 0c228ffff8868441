"""Random networks from a seed: layers one after another, a loss, and a step of an optimizer, as a program like any other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...knobs import knobs
from .generate import SETTINGS, Draft, Grower
from .program import Block, FuzzProgram, Input, Statement
from .table import Made

# Layers by the rank of their input. {c}: the size of axis 1, or of the last axis in VECTOR and SEQUENCE; {n}: a new number of features.
VECTOR = [
    "nn.Linear({c}, {n})", "nn.Linear({c}, {n}, activation='relu')", "nn.Linear({c}, {n}, bias=False)", "nn.LayerNorm({c})", "nn.RMSNorm({c})",
    "nn.BatchNorm1d({c})", "nn.Residual(nn.Linear({c}, {c}, activation='tanh'))", "nn.FeedForward({c}, {n})", "nn.PReLU()", "nn.Dropout(0.3)",
    "nn.Sequential(nn.Linear({c}, {n}), nn.Tanh(), nn.Linear({n}, {n}))",
]  # fmt: skip
SEQUENCE = [
    "nn.Linear({c}, {n})", "nn.LayerNorm({c})", "nn.TransformerBlock({c}, 2)", "nn.TransformerBlock({c}, 1, norm_first=False)",
    "nn.TransformerEncoderLayer({c}, 2)", "nn.PositionalEncoding()", "nn.TimeDistributed(nn.Linear({c}, {n}))",
    "nn.Residual(nn.FeedForward({c}, {n}))",
]  # fmt: skip
RECURRENT = [
    "nn.LSTM({c}, {n})",
    "nn.GRU({c}, {n})",
    "nn.RNN({c}, {n})",
    "nn.LSTM({c}, {n}, bidirectional=True)",
    "nn.GRU({c}, {n}, layers=2)",
]
IMAGE = [
    "nn.Conv2d({c}, {n}, 3, padding=1)", "nn.Conv2d({c}, {n}, 3, activation='relu')", "nn.Conv2d({c}, {n}, (5, 3), padding=2, stride=2)",
    "nn.Conv2d({c}, {n}, 1, bias=False)", "nn.Conv2d({c}, {c}, 3, groups={c}, padding=1)", "nn.Conv2d({c}, {n}, 3, dilation=2, padding='same')",
    "nn.DepthwiseConv2d({c}, 3, padding=1)", "nn.SeparableConv2d({c}, {n}, 3, padding=1)", "nn.ConvTranspose2d({c}, {n}, 2, stride=2)",
    "nn.BatchNorm2d({c})", "nn.GroupNorm(1, {c})", "nn.InstanceNorm({c})", "nn.MaxPool2d(2)", "nn.MaxPool2d(3, stride=1, padding=1)",
    "nn.MaxPool2d(6, stride=2, padding=2)", "nn.AvgPool2d(2)", "nn.AvgPool2d(3, stride=2, padding=1)", "nn.Upsample(2)", "nn.Upsample(2, 'bilinear')",
    "nn.Residual(nn.Conv2d({c}, {c}, 3, padding=1), activation='relu')", "nn.Residual(nn.Sequential(nn.Conv2d({c}, {n}, 3, padding=1), nn.ReLU(), nn.Conv2d({n}, {c}, 1)))",
    "nn.ReflectPad(1)", "nn.AdaptiveAvgPool2d((3, 2))", "nn.AdaptiveMaxPool2d((2, 3))", "nn.LRN(3)", "nn.Dropout2d(0.3)", "nn.LPPool2d(2.0, 2)",
]  # fmt: skip
SIGNAL = [
    "nn.Conv1d({c}, {n}, 5, padding=2)",
    "nn.MaxPool1d(3)",
    "nn.AvgPool1d(2)",
    "nn.ConvTranspose1d({c}, {n}, 3)",
    "nn.MaxPool1d(27, stride=3, padding=9)",
]
VOLUME = [
    "nn.Conv3d({c}, {n}, 3, padding=1)",
    "nn.MaxPool3d(2)",
    "nn.MaxPool3d(3, stride=1)",
    "nn.AvgPool3d(2)",
    "nn.BatchNorm3d({c})",
]
ACTIVATIONS = [
    "nn.ReLU()", "nn.GELU()", "nn.SiLU()", "nn.Tanh()", "nn.Sigmoid()", "nn.ELU()", "nn.SELU()", "nn.Mish()", "nn.Softplus()", "nn.HardSwish()",
    "nn.LeakyReLU()", "nn.Softsign()",
]  # fmt: skip

# A first input, and the layers that take it.
STARTS: list[tuple[tuple[int, ...], list[str]]] = [
    ((6, 5), VECTOR), ((3, 7, 4), SEQUENCE), ((3, 5, 4), SEQUENCE + RECURRENT), ((2, 3, 10, 10), IMAGE), ((2, 4, 9, 12), IMAGE), ((3, 3, 41), SIGNAL),
    ((1, 2, 6, 6, 6), VOLUME),
]  # fmt: skip
OPTIMIZERS = [
    "optim.sgd(modules, rate=0.05)", "optim.sgd(modules, rate=0.05, momentum=0.9)", "optim.adam(modules, rate=0.01)", "optim.adamw(modules, rate=0.01)",
    "optim.rmsprop(modules, rate=0.01)", "optim.adagrad(modules, rate=0.05)", "optim.nadam(modules, rate=0.01)", "optim.radam(modules, rate=0.01)",
    "optim.lamb(modules, rate=0.01)", "optim.adam(modules, rate=0.01, clip_norm=0.5)", "optim.sgd(modules, rate=0.1, accumulate=2)",
    "optim.adam(modules, rate=0.01, average=0.9)", "optim.adadelta(modules)", "optim.adabelief(modules, rate=0.01)", "optim.rprop(modules)",
]  # fmt: skip
LOSSES = [
    "weft.cross_entropy({0}, {1})",
    "weft.mse_loss({0}, weft.one_hot({1}, {0}.shape[-1], dtype=D))",
    "nn.huber({0}, weft.one_hot({1}, {0}.shape[-1], dtype=D))",
]


def random_network(seed: int) -> FuzzProgram:
    """The network of a seed."""
    rng = np.random.default_rng([seed, 2])
    dtype = str(rng.choice(["float32", "float64"], p=[0.85, 0.15]))
    precision = str(rng.choice(["", "bfloat16"], p=[0.75, 0.25])) if dtype == "float32" else ""
    settings = tuple(SETTINGS[int(i)] for i in rng.integers(0, len(SETTINGS), 2))
    empty = FuzzProgram(seed, (), Block((), (), ()), dtype, "float16", precision, settings)
    with knobs.set(device="reference"):
        grower = Grower(rng, Draft(empty), [], [], most=20_000)
        shape, layers = STARTS[int(rng.integers(len(STARTS)))]
        last = _layers(grower, grower.input(f"rng.normal(size={shape})", "argument"), layers)
        loss = _loss(grower, last)
    grower.inputs.append(Input("optimizer", OPTIMIZERS[int(rng.integers(len(OPTIMIZERS)))], "optimizer"))
    statements = (*grower.statements, Statement("", "{0}.minimize({1})", ("optimizer", loss)))
    return replace(empty, inputs=tuple(grower.inputs)).with_body(Block((), statements, (loss, last)))


def _layers(grower: Grower, x: str, layers: list[str]) -> str:
    for _ in range(int(grower.rng.integers(1, 6))):
        row = layers[int(grower.rng.integers(len(layers)))]
        code = "{0}({1})[0]" if row in RECURRENT else "{0}({1})"
        x = _layer(grower, x, row, code, last=layers is VECTOR or layers[0] == SEQUENCE[0])
        if grower.rng.random() < 0.5:
            x = _layer(grower, x, ACTIVATIONS[int(grower.rng.integers(len(ACTIVATIONS)))], "{0}({1})", last=True)
    return x


def _layer(grower: Grower, x: str, row: str, code: str, last: bool) -> str:
    """The value after another layer, or the same one where the layer does not fit."""
    channels = grower.shape(x)[-1 if last else 1]
    module = grower.input(row.format(c=channels, n=int(grower.rng.choice([4, 6, 8]))), "module")
    return grower.add(Made(code, (module, x))) or x


def _loss(grower: Grower, x: str) -> str:
    flat = grower.add(Made("weft.flatten({0}, 1)", (x,))) or x
    head = grower.input(f"nn.Linear({grower.shape(flat)[1]}, 5)", "module")
    scores = grower.add(Made("{0}({1})", (head, flat)))
    labels = grower.input(f"rng.integers(0, 5, size={grower.shape(flat)[:1]})", "argument", "int64")
    code = LOSSES[int(grower.rng.integers(len(LOSSES)))]
    loss = grower.add(Made(code, (str(scores), labels)))
    assert loss is not None, "the loss of a network is always near 1"
    return loss
