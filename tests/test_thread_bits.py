"""Results have the same bits for any number of threads, with the algorithms that are chosen by default."""

import numpy as np
import pytest

import weft
from weft.compiler.cpu.conv.choice import decide
from weft.compiler.ir.conv_shape import DIRECTIONS, ConvShape
from weft.options import CompileOptions
from weft.testing import counted

THREADS = (1, 2, 16)


def floats(*shape, seed=0):
    return weft.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def check(f, *args):
    found = []
    for threads in THREADS:
        with weft.knobs.set(threads=threads):
            found.append([r.numpy() for r in weft.tree.flatten(weft.jit(f)(*args))[0]])
    for other in found[1:]:
        counted()
        for a, b in zip(found[0], other, strict=True):
            assert a.tobytes() == b.tobytes()


# batch, channels, filters, size: where the estimate of the fastest algorithm changes with the number of threads.
CONVOLUTIONS = [
    (2, 64, 64, 14),
    (1, 32, 32, 16),
    (2, 64, 64, 8),
    (1, 6, 16, 14),
    (8, 64, 64, 14),
    (1, 64, 64, 8),
    (2, 16, 16, 32),
]


@pytest.mark.sweep(share=2.0)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions_and_their_gradients(case):
    batch, channels, filters, size = case
    x, w = floats(batch, channels, size, size), floats(filters, channels, 3, 3, seed=1)
    check(lambda x, w: weft.conv(x, w, padding=1), x, w)
    check(weft.grad(lambda x, w: (weft.conv(x, w, padding=1) ** 2).sum(), argnums=(0, 1)), x, w)


def test_the_algorithm_does_not_depend_on_the_number_of_threads():
    for batch in (1, 2, 8, 32, 128):
        for channels, size in [(6, 14), (16, 32), (32, 16), (64, 8), (64, 14), (96, 32), (256, 14), (512, 7)]:
            shape = ConvShape(batch, channels, channels, 1, (size, size), (3, 3), (1, 1), (1, 1), (1, 1), (size, size))
            for direction in DIRECTIONS.values():
                options = [CompileOptions("cpu", threads=threads) for threads in THREADS]
                names = {decide(direction, shape, (1, 1, 1, 1), each).plan.name for each in options}
                counted()
                assert len(names) == 1, (shape, direction, names)


# Sizes on both sides of blocks, of products that are cut in pieces along k, and of products with a vector.
PRODUCTS = [
    (64, 64, 64),
    (3, 5, 7),
    (1, 300, 5000),
    (300, 1, 5000),
    (17, 19, 40_001),
    (1, 1, 40_001),
    (257, 129, 65),
    (2, 2, 100_003),
]


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_products(case):
    m, n, k = case
    check(lambda a, b: (a @ b, (a @ b).sum(axis=0)), floats(m, k), floats(k, n, seed=1))


FUNCTIONS = {
    "softmax": lambda x: weft.softmax(x, axis=0),
    "layer norm": lambda x: weft.layer_norm(x),
    "variance": lambda x: x.var(axis=0),
    "sum": lambda x: x.sum(),
    "norm": lambda x: weft.norm(x),
    "cumulative sum": lambda x: weft.cumulative_sum(x, axis=0),
    "cumulative sum of all": lambda x: weft.cumulative_sum(x.reshape(-1)),
    "sort": lambda x: weft.sort(x.reshape(-1)),
    "scatter": lambda x: weft.zeros((7,)).at[weft.arange(x.size) % 7].add(x.reshape(-1)),
    "gradient": weft.grad(lambda x: (weft.layer_norm(weft.tanh(x)) ** 3).sum()),
}


@pytest.mark.sweep("name", share=0.3)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(40_009, 3), (3, 40_009)])
def test_functions(name, shape):
    check(FUNCTIONS[name], floats(*shape))
