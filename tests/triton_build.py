"""Compiles kernels of every kind for two generations of GPUs, on a machine that needs none: `python triton_build.py`.

`make test` compiles each of them for one of the two, by turns, and `make test-all` for both.
"""

import itertools
import sys

import numpy as np

import weft
from sampling import mode
from weft.compiler.cpu.backend import apply_passes
from weft.compiler.gpu.anchors import is_contraction
from weft.compiler.gpu.compile import build
from weft.compiler.gpu.contraction import write_contraction
from weft.compiler.gpu.kernels import write_kernel
from weft.compiler.gpu.program import LANES, commands, gpu_program
from weft.compiler.gpu.special import plans as special
from weft.compiler.ir.nest import ready_nest
from weft.compiler.planning.fuse import fuse
from weft.ops.grouped import grouped_weight

X = np.random.default_rng(0).normal(size=(37, 300)).astype(np.float32)
LONG = np.random.default_rng(1).normal(size=(3, 10_000)).astype(np.float32)
IMAGES = np.random.default_rng(2).normal(size=(2, 3, 12, 10)).astype(np.float32)

CASES = [
    (weft.softmax, X), (weft.softmax, LONG), (lambda x: weft.softmax(x, axis=0), X), (lambda x: x.argmax(axis=1), X),
    (weft.grad(lambda x: (weft.max_pool(x, 2) ** 2).sum()), IMAGES), (lambda x: (x > 0).any(axis=1), X),
    (lambda x: weft.tanh(x) + weft.erf(x) + weft.atan2(x, x) + weft.sigmoid(x) + weft.remainder(x, 0.3) + weft.round(x), X),
    (lambda x: (x.astype("bfloat16") * 2).astype("float16"), X), (lambda x: (x.astype("int32") // 3 % 5 << 2) ** 2, X),
    (lambda x: weft.exp(x.astype("float64")).prod(axis=1), X), (lambda x, i: weft.take(x, i, axis=0), X, np.array([1, 2])),
]  # fmt: skip


W, B = np.zeros((300, 40), np.float32), np.zeros(40, np.float32)
FILTER = np.zeros((8, 3, 3, 3), np.float32)
HALF = [a.astype(weft.bfloat16.numpy) for a in (X, W, B)]
CONTRACTIONS = [
    (lambda x, w, b: weft.relu(x @ w + b), X, W, B), (lambda x, w, b: weft.relu(x @ w + b), *HALF), (lambda x: x @ x.mT, X.astype(np.float64)),
    (lambda x, w: weft.relu(weft.conv(x, w, padding=1)), IMAGES, FILTER),
    (weft.grad(lambda x, w: (weft.conv(x, w, stride=2, padding=1) ** 2).sum(), argnums=(0, 1)), IMAGES, FILTER),
]  # fmt: skip
BYTES, CODES, SCALES = np.zeros((64, 128), np.int8), np.zeros((64, 128), np.uint8), np.zeros(64 * 4, np.float32)


def narrow_products(x, a, codes, scale):
    """Products of 8-bit integers, of 8-bit floats, and with a weight of 4 bits, by both kinds of sums."""
    weight = grouped_weight(codes, scale, bits=4, shape=(64, 128)).T
    sums = weft.matmul(a.astype("float32")[:1], weight), weft.matmul(a.astype("bfloat16")[:9].astype("float32"), weight)
    return weft.requantize(weft.matmul(x, x.mT, dtype="int32"), 0.1), weft.float8_matmul(a, a), *sums


def kernels(f, *arrays):
    """The kernels of a function, as text."""
    found = fuse(apply_passes(weft.make_graph(f, *arrays))).kernels
    return [
        write_contraction("kernel", k) if is_contraction(k) else write_kernel("kernel", ready_nest(k, LANES))
        for k in found
    ]


INDEX = np.arange(3000) % 37
SPECIALS = [
    (lambda x: weft.argsort(x[:, :60]), X), (lambda x: weft.argsort(x.astype("bfloat16"), axis=0, descending=True), X),
    (lambda x: weft.argsort(x.astype("float64")), LONG), (lambda x: weft.argsort(x.astype("uint32")), X),
    (lambda x: weft.cumulative_sum(x, axis=0), X), (lambda x: weft.cumulative_sum(x, axis=1), LONG), (lambda x: weft.cumulative_prod(x, axis=1), X),
    (lambda x: weft.cumulative_prod((x * 3).astype("int16"), axis=1), X), (lambda x, i: x.at[i].set(2.0), X, INDEX[:50]),
    (weft.grad(lambda x, i: (weft.take(x, i, axis=0) ** 2).sum()), X, INDEX), (weft.grad(lambda x, i: (weft.take(x, i, axis=1) ** 2).sum()), HALF[0], INDEX[:50]),
    (lambda x: weft.top_k(x, 5, axis=0), X), (lambda x: weft.top_k(x.astype("float64"), 3).values, LONG), (lambda x, i: x.at[1:, i[0]].set(2.0), X, INDEX),
    (weft.grad(lambda x, i: (weft.take(x, i, axis=0) ** 2).sum()), np.zeros((200, 20), np.float32), 5 * INDEX),
]  # fmt: skip


def special_sources(f, *arrays):
    """The kernels of a function's sorts, scatters and running totals."""
    found = [
        k
        for k in fuse(apply_passes(weft.make_graph(f, *arrays))).kernels
        if k.anchor is not None and k.anchor.op.own_kernels
    ]
    return [special.write(k, phase) for k in found for phase in special.plan(k).phases]


def step(x, w, v):
    """A small network and its gradients: several kernels that do not wait for each other."""
    return weft.grad(lambda x, w, v: (weft.softmax(weft.relu(x @ w) @ v) ** 2).sum(), argnums=(1, 2))(x, w, v)


HEADS = np.zeros((2, 3, 40, 24), np.float16)
CHANNELS, TAPS = np.zeros((1, 40, 9, 9), np.float16), np.zeros((40, 1, 7, 7), np.float16)


def heads(x, images, taps):
    """Attention, a depthwise convolution, and their gradients."""

    def loss(x, images):
        y = weft.dot_product_attention(x, x[:, :1], x[:, :1, :, :20], causal=True, window=30)
        return (y.astype("float32") ** 2).sum() + (
            weft.conv(images, taps, padding=3, groups=40).astype("float32") ** 2
        ).sum()

    return weft.grad(loss, argnums=(0, 1))(x, images)


def few_keys(x, mask):
    """Attention with a mask and dropout, and its gradients."""
    return weft.grad(
        lambda x: (weft.dot_product_attention(x, x, x, mask=mask, dropout=0.25).astype("float32") ** 2).sum()
    )(x)


GENERATIONS = (80, 90)
_turn = itertools.cycle(GENERATIONS)


def generations():
    """The compute capabilities that the next kernel is compiled for."""
    return GENERATIONS if mode() == "all" else (next(_turn),)


def build_all(source):
    for capability in generations():
        found = build(source, capability)
        assert found.code[:4] == b"\x7fELF"
        assert (found.symbol, found.warps) == ("kernel", source.warps)
        print("built", len(found.code))


def main_of_specials() -> None:
    for f, *arrays in SPECIALS:
        for source in special_sources(f, *arrays):
            build_all(source)


def main() -> None:
    for f, *arrays in [*CASES, *CONTRACTIONS]:
        for source in kernels(f, *arrays):
            build_all(source)
    graph = weft.make_graph(narrow_products, BYTES, CODES, np.zeros(64 * 64, np.uint8), SCALES)
    for launch in commands(gpu_program(graph, {})):
        build_all(launch.kernel)
    for launch in commands(gpu_program(weft.make_graph(heads, HEADS, CHANNELS, TAPS), {})):
        build_all(launch.kernel)
    for launch in commands(gpu_program(weft.make_graph(few_keys, HEADS[:, :, :12], np.ones((12, 12), bool)), {})):
        build_all(launch.kernel)
    graph = weft.make_graph(step, X, W, np.zeros((40, 5), np.float32))
    for launch in commands(gpu_program(graph, {})):
        print("built", len(build(launch.kernel, 90).code), launch.kernel.body.count("def part"))


if __name__ == "__main__":
    main_of_specials() if sys.argv[1:] == ["special"] else main()
