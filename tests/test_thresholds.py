"""Every way of computing that depends on a size, taken by small shapes: thresholds are lowered, one at a time and all at once."""

from pathlib import Path

import numpy as np
import pytest

import test_cpu
import weft
from sampling import sampled
from test_ops import DECLARED
from weft import nn, optim, zoo
from weft.compiler.thresholds import LOWERED, thresholds
from weft.testing import counted


@pytest.fixture(autouse=True)
def _nothing_is_kept():
    with weft.knobs.set(cache="off", threads=2):
        yield


def floats(*shape, seed=0):
    return weft.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def gradient(f, count):
    return weft.grad(lambda *args: (f(*args) ** 2).sum(), argnums=tuple(range(count)))


def convolution(**how):
    return gradient(lambda x, w: weft.conv(x, w, **how), 2)


# By the first word of a threshold: functions whose code it changes, and the shapes of their arguments.
FUNCTIONS = {
    "sort": [(lambda x: (weft.sort(x, axis=1), weft.argsort(x, axis=0)), (5, 23)), (weft.sort, (300,))],
    "cumulate": [
        (lambda x: (weft.cumulative_sum(x, axis=0), weft.cumulative_sum(x, axis=1), weft.cumulative_prod(x, axis=1)), (7, 37)),
        (lambda x: weft.cumulative_sum(x, axis=1), (3, 41, 5)),
    ],
    "scatter": [
        (lambda x: x.at[weft.asarray([1, 4, 1, 2, 0, 1])].add(2.0 * x), (6, 9)),
        (lambda x: x.at[:, weft.asarray([2, 0, 2])].add(x[:, :3]), (6, 9)),
        (gradient(lambda x: x[weft.asarray([3, 3, 1, 0, 3])] * 1.5, 1), (5, 7)),
    ],
    "matvec": [
        (lambda a, x: a @ x, (70, 90), (90,)), (lambda a, x: x @ a, (70, 90), (70,)), (lambda a, x: a @ x, (3, 301), (301,)),
        (lambda a, x: a.T @ x, (66, 9), (66,)),
    ],
    "product": [(lambda a, b: a @ b, (5, 61), (61, 7)), (lambda a, b: a.T @ b, (67, 9), (67, 4))],
    "filter": [
        (convolution(padding=1), (3, 4, 9, 9), (5, 4, 3, 3)), (convolution(stride=2), (2, 6, 11, 8), (4, 6, 5, 5)),
        (convolution(groups=2), (2, 6, 7, 7), (4, 3, 3, 3)), (convolution(), (3, 8, 6, 6), (9, 8, 1, 1)),
    ],
    "winograd": [(convolution(padding=1, algorithm=name), (2, 16, 13, 13), (16, 16, 3, 3)) for name in ("WINOGRAD", "WINOGRAD_2X2")],
    "fft": [(convolution(padding=2, algorithm="FFT_TILED"), (5, 6, 13, 13), (4, 6, 5, 5))],
    "attention": [
        (gradient(lambda q, k, v: weft.dot_product_attention(q, k, v, causal=True), 3), (2, 4, 21, 6), (2, 2, 35, 6), (2, 2, 35, 9)),
        (gradient(lambda q, k, v: weft.dot_product_attention(q, k, v, window=7), 3), (1, 1, 40, 5), (1, 1, 19, 5), (1, 1, 19, 3)),
    ],
    "depthwise": [(convolution(padding=1, groups=8), (2, 8, 9, 9), (8, 1, 3, 3))],
    "row": [(convolution(padding=2), (2, 1, 17, 40), (6, 1, 5, 5)), (convolution(), (2, 3, 30, 30), (4, 3, 7, 7))],
    "inlined": [
        (gradient(lambda x: weft.gelu(x, approximate=True) + weft.sigmoid(x) * weft.tanh(x) + weft.log1p(weft.exp(-x)), 1), (19, 53))
    ],
    "loops": [
        (lambda x: (x.sum(), x.sum(axis=0), x.sum(axis=1), x.mean(axis=1)), (37, 41)),
        (gradient(lambda x: weft.max_pool(x, 3, stride=2, padding=1), 1), (2, 3, 9, 9)),
        (gradient(lambda x: weft.layer_norm(weft.tanh(x)) * weft.softmax(x, axis=0), 1), (19, 53)),
        (lambda x: (x.max(), x.min(axis=0), weft.prod(x * 0.1 + 1.0, axis=1), weft.argmax(x, axis=1)), (37, 41)),
        (lambda x: (weft.softmax(x), weft.layer_norm(x), x.var(axis=0)), (19, 53)),
        (gradient(lambda x: weft.max_pool(x, 2), 1), (2, 3, 8, 8)),
        (gradient(lambda x: weft.avg_pool(x, 3, stride=1), 1), (2, 3, 7, 7)),
        (gradient(lambda x: weft.batch_norm(x).value, 1), (3, 4, 5, 7)),
    ],
}  # fmt: skip


FUNCTIONS["concat"] = [
    (gradient(lambda x: weft.concat([x[:, :2], x * 2.0, x[:, 1:3], weft.sin(x)], axis=1), 1), (5, 7)),
    (gradient(lambda x: appended(x, 5), 1), (5, 7)),
    (gradient(lambda x: appended(x, 11), 1), (3, 4)),
]


def appended(x, layers):
    """Each layer appends to what it reads."""
    for n in range(layers):
        x = weft.concat([x, weft.tanh(x[:, n : n + 3] * x.mean(axis=0)[:3])], axis=1)
    return x


def of(name):
    return FUNCTIONS.get(name.split("_")[0], FUNCTIONS["loops"])


def check(case):
    f, *shapes = case
    args = [floats(*shape, seed=i) for i, shape in enumerate(shapes)]
    with weft.knobs.set(device="reference"):
        want = weft.tree.flatten(f(*(weft.asarray(a.numpy().astype(np.float64)) for a in args)))[0]
    compiled = weft.jit(f)
    for _ in range(2):
        for w, g in zip(want, weft.tree.flatten(compiled(*args))[0], strict=True):
            w, g = w.numpy(), g.numpy()
            counted()
            np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-5 * max(1.0, np.abs(w).max()))


GPU = [name for name in LOWERED if name.startswith("gpu")]


@pytest.mark.sweep(share=3.0)  # the tests of all of them go every way, too
@pytest.mark.parametrize("name", [name for name in LOWERED if name not in GPU])
def test_one_at_a_time(name):
    assert LOWERED[name] != getattr(thresholds, name)
    with thresholds.set(**{name: LOWERED[name]}):
        for case in sampled(name, of(name)[:3], share=0.25):  # the test of all of them has the others, too
            check(case)


@pytest.mark.parametrize("name", [*GPU, "all"])
def test_kernels_for_gpus(name):
    """Under Triton's interpreter."""
    pytest.importorskip("triton")
    from triton_runner import run_program
    from weft.compiler.gpu.program import gpu_program

    def f(x, y):
        return x.sum(), x.sum(axis=0), x.var(axis=1), weft.argmax(x, axis=1), weft.softmax(y), y, x

    arrays = [np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate(((13, 17), (5, 6)))]
    with thresholds.set(**(LOWERED if name == "all" else {name: LOWERED[name]})):
        found = run_program(gpu_program(weft.make_graph(f, *arrays), {}), arrays)
    with weft.knobs.set(device="reference"):
        want = [r.numpy() for r in f(*(weft.asarray(a.astype(np.float64)) for a in arrays))]
    for w, g in zip(want, found, strict=True):
        counted()
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", DECLARED, ids=lambda op: op.name)
def test_every_op_with_all_of_them(op):
    with thresholds.set(**LOWERED):
        test_cpu.check_samples(op, share=0.2)  # test_cpu.py takes more of them, with the usual thresholds


@pytest.mark.parametrize("group", FUNCTIONS)
def test_functions_with_all_of_them(group):
    with thresholds.set(**LOWERED):
        for case in FUNCTIONS[group]:
            check(case)


def trained(build, shape, precision=None):
    """The parameters after three steps."""
    weft.seed(3)
    model = build()
    x, y = floats(*shape), weft.asarray(np.arange(shape[0]) % 3)
    model(x[:1])
    optimizer = optim.sgd(model, 0.1, momentum=0.9)

    @weft.jit(precision=precision)
    def step(x, y):
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    losses = [float(step(x, y)) for _ in range(3)]
    return losses, {name: p.numpy() for name, p in model.named_tensors().items()}


class Recurrent(nn.Module):
    def __init__(self):
        self.lstm, self.top = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.top(self.lstm(x)[0][:, -1])


NETWORKS = {
    "perceptron": (lambda: zoo.mlp(20, 16, 3), (9, 20), None),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(), nn.Flatten(), nn.Linear(None, 3),
        ), (4, 2, 8, 8), None,
    ),
    "convolutions, bfloat16": (
        lambda: nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(None, 3)), (4, 2, 6, 6), "bfloat16"
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(20, 9), nn.Dropout(0.3), nn.Linear(9, 9), nn.Dropout(0.3), nn.Linear(9, 3)), (9, 20), None
    ),
    "LSTM": (Recurrent, (3, 7, 5), None),
}  # fmt: skip


@pytest.mark.sweep(share=0.4)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_with_all_of_them(name):
    losses, parameters = trained(*NETWORKS[name])
    with thresholds.set(**LOWERED):
        losses_too, parameters_too = trained(*NETWORKS[name])
    tolerance = 2e-2 if NETWORKS[name][2] else 2e-4
    np.testing.assert_allclose(losses_too, losses, rtol=tolerance)
    for p in parameters:
        np.testing.assert_allclose(parameters_too[p], parameters[p], rtol=tolerance, atol=tolerance, err_msg=p)


def test_every_threshold_is_asked_for():
    root = Path(weft.__file__).parent
    text = "".join(p.read_text() for p in root.rglob("*.py") if p.name != "thresholds.py")
    assert [name for name in LOWERED if f"thresholds.{name}" not in text] == []
