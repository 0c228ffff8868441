"""Kernels for NVIDIA GPUs: every op that becomes loops, run under Triton's interpreter, agrees with the definition."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
from sampling import sampled
from test_cpu import result_nodes
from test_ops import DECLARED
from triton_build import IMAGES, LONG, X, kernels
from weft import nn, optim, zoo
from weft.compiler.gpu.program import commands, gpu_program
from weft.errors import RunError
from weft.graph.graph import close as close_graph
from weft.graph.node import Type, make, placeholder
from weft.runtime.reference import interpret
from weft.testing import close, counted, generator
from weft.testing.checks import _as_dtype, _define_all, _float_dtypes

pytest.importorskip("triton")
from triton_runner import run_graph, run_kernel, run_program, training_step


@pytest.mark.parametrize("op", DECLARED, ids=lambda op: op.name)
def test_every_sample_and_dtype(op):
    rng = generator(op.name)
    cases = [(sample, dtype) for sample in op.samples(rng) for dtype in _float_dtypes(sample)]
    for sample, dtype in sampled(f"triton {op.name}", cases, share=0.25, of=lambda case: case[1]):
        inputs = [_as_dtype(i, dtype) for i in sample.inputs]
        here = [placeholder(object(), Type(i.shape, weft.asarray(i).dtype)) for i in inputs]
        outputs = result_nodes(make(op, tuple(here), sample.params))
        found = run_graph(close_graph(here, outputs), inputs)
        for actual, expected, output in zip(found, _define_all(op, inputs, sample.params), outputs, strict=True):
            close(actual, expected, output.dtype)
            counted()


def made(f, *arrays):
    return run_graph(weft.make_graph(f, *arrays), [np.asarray(a) for a in arrays])


def agrees(f, *arrays, tolerance=2e-6):
    """With the definition in float64."""
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    with weft.knobs.set(device="reference"):
        expected = f(*(weft.asarray(a) for a in wide))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for actual, e in zip(made(f, *arrays), expected, strict=True):
        scale = max(1.0, float(np.abs(e.numpy()).max()))
        np.testing.assert_allclose(actual.astype(np.float64), e.numpy(), rtol=tolerance, atol=tolerance * scale)
        counted()


COMPOSITES = {
    "softmax of rows": lambda: agrees(weft.softmax, X),
    "softmax of rows longer than a strip": lambda: agrees(weft.softmax, LONG, tolerance=1e-5),
    "softmax of columns": lambda: agrees(lambda x: weft.softmax(x, axis=0), X),
    "sums in both directions": lambda: agrees(lambda x: (x.sum(axis=0), x.sum(axis=1), (x * x).sum()), X, tolerance=1e-5),
    "the greatest, and where": lambda: agrees(lambda x: (x.max(axis=1), x.argmax(axis=1), x.argmin(axis=0)), X[:9]),
    "layer norm": lambda: agrees(lambda x: weft.layer_norm(x, weft.ones(300), weft.zeros(300)), X, tolerance=1e-5),
    "a batch normalised": lambda: agrees(lambda x: (x - x.mean(axis=(0, 2, 3), keepdims=True)) / x.std(axis=(0, 2, 3), keepdims=True), IMAGES, tolerance=1e-5),
    "pooling": lambda: agrees(lambda x: (weft.max_pool(x, 3, stride=2, padding=1), weft.avg_pool(x, 2)), IMAGES),
    "movement": lambda: agrees(lambda x: weft.concat([x[:, ::-1], weft.pad(x.mT[:37, :37], ((0, 0), (1, 2)))], axis=1)[3:, 5:200:3], X),
    "a table": lambda: agrees(lambda x, i: weft.take(x, i, axis=0) * 2.0, X, np.array([[3, 36], [-1, 0]])),
}  # fmt: skip


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize("name", COMPOSITES)
def test_composites(name):
    COMPOSITES[name]()


def test_derivatives_too():
    agrees(weft.grad(lambda x: (weft.softmax(x) * weft.sin(x)).sum()), X, tolerance=1e-5)
    agrees(weft.grad(lambda x: (weft.max_pool(x, 2) ** 2).sum()), IMAGES, tolerance=1e-5)


def test_what_goes_wrong_is_told():
    with pytest.raises(RunError, match="index 40 is out of range for axis 0 of size 37"):
        made(lambda x, i: weft.take(x, i, axis=0), X, np.array([3, 40]))
    with pytest.raises(RunError, match="an integer was divided by zero"):
        made(lambda a, b: a // b, np.arange(4), np.array([1, 1, 0, 2]))


# --- code for GPUs, without one -------------------------------------------------------------------------------------------------


def test_kernels_compile_for_gpus():
    """In a process of its own: interpreting is for a whole process."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    script = Path(__file__).parent / "triton_build.py"
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("built") >= 24
    counted(24)


def test_a_kernel_can_be_read():
    [source] = kernels(weft.softmax, X)
    body = source.text[source.text.index("def kernel(") :]
    for line in (
        "# max over 300",
        "# sum over 300",
        "# float32[37, 300]",
        "row = tl.program_id(0) * 4 + tl.arange(0, 4)[:, None]",
    ):
        assert line in body
    assert source.programs == 10
    assert len(source.arguments) == 2
    assert source.writes == (source.arguments[1],)


# --- products and convolutions ----------------------------------------------------------------------------------------------------


def arrays_of(*shapes, kind=np.float32):
    rng = np.random.default_rng(7)
    return [(rng.normal(size=s) / 4).astype(kind) for s in shapes]


CONTRACTIONS = {
    "a product": (lambda a, b: a @ b, ((70, 45), (45, 33))),
    "transposed": (lambda a, b: a.mT @ b.mT, ((45, 70), (33, 45))),
    "batches": (lambda a, b: weft.einsum("bik,bkj->bij", a, b), ((3, 20, 17), (3, 17, 40))),
    "more tiles than a group": (lambda a, b: a @ b, ((1300, 8), (8, 200))),
    "bias and relu": (lambda a, b, c: weft.relu(a @ b + c), ((70, 45), (45, 33), (33,))),
    "a residual, twice used": (lambda a, b, c: ((a @ b) + c, weft.tanh(a @ b)), ((16, 45), (45, 33), (16, 33))),
    "a linear layer's gradients": (lambda a, b, g: (g @ b.mT, a.mT @ g), ((70, 45), (45, 33), (70, 33))),
    "convolution": (lambda x, w: weft.conv(x, w, padding=1), ((2, 5, 9, 8), (6, 5, 3, 3))),
    "with strides, dilation, bias and relu": (
        lambda x, w, b: weft.relu(weft.conv(x, w, stride=2, padding=2, dilation=2) + b[:, None, None]), ((2, 3, 15, 13), (20, 3, 3, 3), (20,))),
    "a convolution's gradients": (
        lambda x, w: weft.grad(lambda x, w: (weft.conv(x, w, stride=2, padding=1) ** 2).sum(), argnums=(0, 1))(x, w), ((2, 4, 9, 8), (6, 4, 3, 3))),
    "in groups": (lambda x, w: weft.relu(weft.conv(x, w, padding=1, groups=2)), ((2, 6, 9, 8), (8, 3, 3, 3))),
    "a group a channel": (lambda x, w: weft.conv(x, w, padding=1, stride=2, groups=5), ((2, 5, 9, 8), (10, 1, 3, 3))),
    "gradients in groups": (
        lambda x, w: weft.grad(lambda x, w: (weft.conv(x, w, padding=1, groups=2) ** 2).sum(), argnums=(0, 1))(x, w), ((2, 6, 9, 8), (8, 3, 3, 3))),
    "in one dimension": (lambda x, w: weft.conv(x, w, padding=2), ((2, 5, 40), (7, 5, 5))),
}  # fmt: skip


@pytest.mark.sweep(share=0.4)
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions(name):
    f, shapes = CONTRACTIONS[name]
    agrees(f, *arrays_of(*shapes), tolerance=1e-5)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_contractions_of_other_types(kind):
    a, b = arrays_of((70, 45), (45, 33), kind=getattr(weft, kind).numpy)
    [found] = made(lambda a, b: a @ b, a, b)
    assert found.dtype == a.dtype
    close(found, a.astype(np.float64) @ b.astype(np.float64), weft.asarray(a).dtype)


# --- whole programs -----------------------------------------------------------------------------------------------------------------


def step_of(model, *shape, classes=10, make=lambda m: optim.sgd(m, 0.1, momentum=0.9)):
    """A step of training on random numbers: see `training_step`."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=shape).astype(np.float32), rng.integers(0, classes, shape[0])
    model(weft.asarray(x[:1]))
    return training_step(model, make(model), x, y)


STEPS = {
    "a perceptron of three layers": lambda: step_of(zoo.mlp(20, 16, 12, 10), 9, 20),
    "with Adam and a schedule": lambda: step_of(
        zoo.mlp(20, 16, 10), 9, 20, make=lambda m: optim.adam(m, optim.schedules.cosine(1e-2, 100), clip_norm=1.0)),
    "LeNet": lambda: step_of(zoo.lenet5_classic(4, size=16), 2, 1, 16, 16, classes=4),
    "with batch norm and dropout": lambda: step_of(
        nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(None, 3)), 4, 2, 6, 6, classes=3),
    "a residual network": lambda: step_of(zoo.resnet((1, 1), classes=4, width=4, stem="cifar"), 3, 3, 8, 8, classes=4),
}  # fmt: skip


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize("name", STEPS)
def test_training_steps(name):
    """Forward, backward and optimizer as launches in planned memory: the same losses and parameters as the definition gives."""
    weft.seed(5)
    graph, updates, arrays = STEPS[name]()
    expected = interpret(graph)(*arrays)
    found = run_program(gpu_program(graph, updates), arrays)
    for actual, e, node in zip(found, expected, graph.outputs, strict=True):
        close(actual, e, node.dtype, slack=4.0)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_whole_numbers_are_multiplied_by_loops(dtype):
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 9, (3, 5)).astype(dtype), rng.integers(0, 9, (5, 4)).astype(dtype)
    x, w = rng.integers(0, 9, (2, 3, 6, 5)).astype(dtype), rng.integers(0, 9, (4, 3, 3, 2)).astype(dtype)
    graph = weft.make_graph(lambda a, b, x, w: (a @ b, weft.conv(x, w)), *map(weft.asarray, (a, b, x, w)))
    for found, expected in zip(
        run_program(gpu_program(graph, {}), [a, b, x, w]), interpret(graph)(a, b, x, w), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_small_kernels_are_launched_together():
    graph, updates, _ = step_of(zoo.mlp(20, 16, 12, 10), 9, 20)
    program = gpu_program(graph, updates)
    found = commands(program)
    assert len(found) < len(program.calls)
    assert "def part1(number, " in found[-1].kernel.body
    assert len(found) <= 8


def test_errors_of_joined_kernels_are_told_apart():
    x, i, j = X, np.array([3, 1]), np.array([2, 999])
    graph = weft.make_graph(lambda x, i, j: (weft.take(x, i, axis=0), weft.take(x, j, axis=1)), x, i, j)
    [launch] = commands(gpu_program(graph, {}))
    given = dict(zip(gpu_program(graph, {}).graph.inputs, (x, i, j), strict=True))
    values = {n: given[n] if n in given else np.zeros(n.shape, n.dtype.numpy) for n in launch.kernel.arguments}
    status = run_kernel(launch.kernel, values)
    assert (
        launch.kernel.errors[status[0] - 1][1].format(value=status[1])
        == "index 999 is out of range for axis 1 of size 300."
    )


LONG_SUMS = {
    "a product": (lambda a, b: weft.relu(a.mT @ b + 0.5), ((5000, 9), (5000, 7))),
    "a filter's gradient": (
        weft.grad(lambda w, x: (weft.conv(x, w, padding=1) * weft.sin(x[:, :1])).sum()), ((2, 1, 3, 3), (3, 1, 30, 31))),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG_SUMS)
def test_long_sums_are_made_in_parts(name):
    f, shapes = LONG_SUMS[name]
    arrays = arrays_of(*shapes)
    graph = weft.make_graph(f, *arrays)
    program = gpu_program(graph, {})
    assert any("part * " in launch.kernel.body for launch in commands(program))
    for actual, e, node in zip(run_program(program, arrays), interpret(graph)(*arrays), graph.outputs, strict=True):
        close(actual, e, node.dtype, slack=4.0)


def test_kernels_that_differ_only_in_the_types_of_memory_are_two():
    a, b = np.zeros(300_000, np.float32), np.zeros(300_000, np.int32)  # too large to share a launch
    first, second = commands(gpu_program(weft.make_graph(lambda a, b: (a == a[::-1], b == b[::-1]), a, b), {}))
    assert first.kernel.body == second.kernel.body
    assert first.kernel is not second.kernel
    again = commands(gpu_program(weft.make_graph(lambda a, c: (a == a[::-1], c == c[::-1]), a, a), {}))
    assert again[0].kernel is again[1].kernel
