"""Checks fusion: how many kernels known programs take, and that training steps leave the weights that the reference device leaves.

The counts are what the compiler reaches today. One that grows has lost something; one that shrinks should be written down here.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import weft
from weft.compiler.cpu.backend import apply_passes, compiled
from weft.compiler.gpu.program import gpu_program
from weft.compiler.ir.program import KernelProgram
from weft.compiler.passes.simplify import simplify
from weft.compiler.planning.cost_model import work
from weft.compiler.planning.fuse import fuse
from weft.compiler.thresholds import thresholds
from weft.graph import Type
from weft.knobs import knobs
from weft.options import CompileOptions
from weft.runtime.native import program_text
from weft.testing import counted

F = Callable[..., Any]


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype("float32")


def program_of(f: F, *arrays: Any) -> KernelProgram:
    return compiled(weft.jit(f).lower(*arrays), {}, CompileOptions("cpu", threads=2))


def assert_kernels(f: F, most: int, *arrays: Any) -> None:
    program = program_of(f, *arrays)
    assert len(program.kernels) <= most, program_text(program)
    counted()


# --- forward -----------------------------------------------------------------------------------------------------------------------

X, ROW = floats(64, 48), floats(48)
ONE_KERNEL: dict[str, tuple[F, tuple[Any, ...]]] = {
    "a chain": (lambda x, y: weft.tanh(weft.sin(x * y + 1.0) / (weft.exp(-x) + 2.0)) ** 2, (X, X)),
    "a chain with broadcasts": (lambda x, b: weft.relu(x * b + 3.0), (X, ROW)),
    "movement between elementwise steps": (lambda x: weft.sin(weft.flip(weft.cos(x).mT, axis=0)).reshape(-1)[::2] * 2.0, (X,)),
    "concat, pad and slice": (lambda x: weft.pad(weft.concat([x, weft.exp(x)], axis=1), ((1, 1), (0, 2)))[1:, ::3] + 1.0, (X,)),
    "gather": (lambda x, i: weft.tanh(x[i] * 2.0), (X, np.arange(10))),
    "several results of one shape": (lambda x: (weft.sin(x), weft.cos(x) * 2.0, weft.sin(x) + 1.0), (X,)),
    "a sum with what is before and behind it": (lambda x: weft.sqrt((x * x).sum(axis=1) + 1.0), (X,)),
    "a mean of squares": (lambda x: (x * x).mean(axis=1), (X,)),
    "softmax": (weft.softmax, (X,)),
    "log_softmax": (weft.log_softmax, (X,)),
    "softmax of a sum": (lambda x, b: weft.softmax(weft.tanh(x) + b) * 2.0, (X, ROW)),
    "logsumexp": (lambda x: weft.logsumexp(x, axis=-1), (X,)),
    "layer_norm": (weft.layer_norm, (X, ROW, ROW)),
    "layer_norm of a residual": (lambda x, r, g, b: weft.relu(weft.layer_norm(x + r, g, b)), (X, X, ROW, ROW)),
    "layer_norm of one row": (weft.layer_norm, (floats(1, 48), ROW, ROW)),
    "rms_norm": (weft.rms_norm, (X, ROW)),
    "argmax": (lambda x: (x * 2.0).argmax(axis=1), (X,)),
    "linear, bias, relu": (lambda x, w, b: weft.relu(x @ w + b), (X, floats(48, 32), floats(32))),
    "linear, gelu, residual": (lambda x, w, b: weft.gelu(x @ w + b) + x, (X, floats(48, 48), ROW)),
    "a transposed weight": (lambda x, w: weft.tanh(x @ w.mT), (X, floats(32, 48))),
    "a batch of products, scaled": (lambda x, y: weft.relu((x @ y) * 0.125), (floats(4, 8, 16), floats(4, 16, 8))),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name: str) -> None:
    f, arrays = ONE_KERNEL[name]
    assert_kernels(f, 1, *arrays)


SEVERAL: dict[str, tuple[F, tuple[Any, ...], int]] = {
    # A random stream's new position is one more.
    "dropout": (lambda x: weft.dropout(x, 0.5), (X,), 2),
    "linear, relu, dropout": (lambda x, w: weft.dropout(weft.relu(x @ w), 0.5), (X, floats(48, 32)), 2),
    # The caller's image has its channels first.
    "conv, bias, relu": (
        lambda x, w, b: weft.relu(weft.conv(x, w, b, padding=1)), (floats(2, 8, 9, 9), floats(16, 8, 3, 3), floats(16)), 2
    ),
    "conv, bias, residual, relu": (
        lambda x, w, b: weft.relu(weft.conv(x, w, b, padding=1) + x), (floats(2, 8, 9, 9), floats(8, 8, 3, 3), floats(8)), 2
    ),
    "two convs": (
        lambda x, w: weft.conv(weft.relu(weft.conv(x, w, padding=1)), w), (floats(2, 8, 9, 9), floats(8, 8, 3, 3)), 3
    ),
    "max_pool of relu": (lambda x: weft.max_pool(weft.relu(x), 2), (floats(2, 8, 8, 8),), 2),
    "cross entropy": (weft.cross_entropy, (floats(64, 10), np.arange(64) % 10), 2),
    "cross entropy and its gradient": (
        lambda x, y: weft.value_and_grad(weft.cross_entropy)(x, y), (floats(64, 10), np.arange(64) % 10), 2
    ),
    "mean squared error and its gradient": (lambda x, y: weft.value_and_grad(weft.mse_loss)(x, y), (X, X), 2),
    "layer_norm backwards": (
        weft.grad(lambda x, g, b: (weft.layer_norm(x, g, b) ** 2).sum(), argnums=(0, 1, 2)), (X, ROW, ROW), 2
    ),
    "softmax backwards": (weft.grad(lambda x: (weft.softmax(x) ** 2).sum()), (X,), 1),
    "attention": (
        lambda q, k, v: weft.dot_product_attention(q, k, v), (floats(2, 4, 8, 16), floats(2, 4, 8, 16), floats(2, 4, 8, 16)), 2
    ),
    "batch_norm": (lambda x, g, b: weft.batch_norm(x, g, b).value, (floats(4, 8, 6, 6), floats(8), floats(8)), 1),
    "an MLP forward": (
        lambda x, a, b, c: weft.relu(weft.relu(x @ a) @ b) @ c, (X, floats(48, 30), floats(30, 20), floats(20, 10)), 3
    ),
    "an LSTM cell": (lambda *a: lstm_cell(*a), (floats(8, 5), floats(8, 6), floats(8, 6), floats(5, 24), floats(6, 24), floats(24)), 3),
}  # fmt: skip


def lstm_cell(x: Any, h: Any, c: Any, w: Any, u: Any, b: Any) -> Any:
    gates = x @ w + h @ u + b
    n = h.shape[1]
    i, f, o, g = (gates[:, k * n : (k + 1) * n] for k in range(4))
    c = weft.sigmoid(f) * c + weft.sigmoid(i) * weft.tanh(g)
    return weft.sigmoid(o) * weft.tanh(c), c


@pytest.mark.parametrize("name", SEVERAL)
def test_several_kernels(name: str) -> None:
    f, arrays, most = SEVERAL[name]
    assert_kernels(f, most, *arrays)


# --- training steps ------------------------------------------------------------------------------------------------------------------


def parameters(*shapes: Sequence[int]) -> list[weft.Tensor]:
    """Weights of a sensible size, biases that are not quite zero."""
    made = []
    for number, shape in enumerate(shapes):
        fan = np.prod(shape[1:]) if len(shape) > 2 else shape[0]
        scale = 1.0 / np.sqrt(max(fan, 1)) if len(shape) > 1 else 0.1
        made.append(weft.parameter(floats(*shape, seed=number) * np.float32(scale)))
    return made


Net = tuple[list[weft.Tensor], F]


def mlp() -> Net:
    p = parameters((784, 300), (300,), (300, 100), (100,), (100, 10), (10,))
    return p, lambda x: weft.relu(weft.relu(x @ p[0] + p[1]) @ p[2] + p[3]) @ p[4] + p[5]


def lenet() -> Net:
    p = parameters((6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,), (400, 120), (120,), (120, 84), (84,), (84, 10), (10,))

    def forward(x: Any) -> Any:
        h = weft.max_pool(weft.relu(weft.conv(x, p[0], p[1], padding=2)), 2)
        h = weft.max_pool(weft.relu(weft.conv(h, p[2], p[3])), 2).flatten(1)
        return weft.relu(weft.relu(h @ p[4] + p[5]) @ p[6] + p[7]) @ p[8] + p[9]

    return p, forward


def residual() -> Net:
    n = 8
    p = parameters((n, 3, 3, 3), (n, n, 3, 3), (n, n, 3, 3), (n, 10), (10,))
    scales = [weft.parameter(1 + 0.1 * floats(n, seed=i)) for i in range(3)]
    shifts = [weft.parameter(0.1 * floats(n, seed=9 + i)) for i in range(3)]

    def normed(x: Any, i: int) -> Any:
        return weft.batch_norm(weft.conv(x, p[i], padding=1), scales[i], shifts[i]).value

    def forward(x: Any) -> Any:
        h = weft.relu(normed(x, 0))
        h = weft.relu(normed(weft.relu(normed(h, 1)), 2) + h)
        return h.mean(axis=(2, 3)) @ p[3] + p[4]

    return p + scales + shifts, forward


def lstm() -> Net:
    """One cell and a dense layer: the whole sequence is a scan, whose body this is."""
    n = 16
    p = parameters((12, 4 * n), (n, 4 * n), (4 * n,), (n, 10))

    def forward(x: Any) -> Any:
        zero = weft.zeros((x.shape[0], n))
        h, c = lstm_cell(x, zero + 0.5, zero - 0.25, p[0], p[1], p[2])
        return (h + c) @ p[3]

    return p, forward


def transformer() -> Net:
    n = 16
    p = parameters((n, 3 * n), (n, n), (n,), (n,), (n, 2 * n), (2 * n,), (2 * n, n), (n, 10))

    def forward(x: Any) -> Any:
        normed = weft.layer_norm(x, p[2] + 1.0, p[3])
        q, k, v = (
            weft.moveaxis((normed @ p[0])[:, :, i * n : (i + 1) * n].reshape((*x.shape[:2], 2, n // 2)), 2, 1)
            for i in range(3)
        )
        x = x + weft.moveaxis(weft.dot_product_attention(q, k, v), 1, 2).reshape(x.shape) @ p[1]
        x = x + weft.gelu(x @ p[4] + p[5]) @ p[6]
        return x.mean(axis=1) @ p[7]

    return p, forward


def momentum(params: Sequence[weft.Tensor]) -> F:
    velocities = [weft.zeros(p.shape) for p in params]

    def update(grads: Sequence[Any]) -> None:
        for p, v, g in zip(params, velocities, grads, strict=True):
            v.assign(0.9 * v + g)
            p.assign(p - 0.05 * v)

    return update


def adam(params: Sequence[weft.Tensor]) -> F:
    first, second = ([weft.zeros(p.shape) for p in params] for _ in range(2))
    steps = weft.asarray(0.0)

    def update(grads: Sequence[Any]) -> None:
        steps.assign(steps + 1.0)
        a, b = 1.0 - weft.pow(0.9, steps), 1.0 - weft.pow(0.999, steps)
        for p, m, v, g in zip(params, first, second, grads, strict=True):
            m.assign(0.9 * m + 0.1 * g)
            v.assign(0.999 * v + 0.001 * g * g)
            p.assign(p - 0.01 * (m / a) / (weft.sqrt(v / b) + 1e-4))

    return update


def trained(
    net: Callable[[], Net], optimizer: F, x: np.ndarray, wrap: F, steps: int = 3
) -> tuple[list[np.ndarray], Any]:
    """The losses and all weights after a few steps, and the step."""
    params, forward = net()
    update = optimizer(params)

    def step(x: Any, y: Any) -> Any:
        loss = weft.cross_entropy(forward(x), y)
        update(weft.gradients(loss, params))
        return loss

    run, labels = wrap(step), np.arange(len(x)) * 7 % 10
    losses = [run(weft.asarray(x), weft.asarray(labels)).item() for _ in range(steps)]
    return [np.array(losses), *(p.numpy().copy() for p in params)], run


STEPS: dict[str, tuple[Callable[[], Net], F, tuple[int, ...], int]] = {
    "MLP, momentum": (mlp, momentum, (16, 784), 13),
    "MLP, Adam": (mlp, adam, (16, 784), 14),
    "LeNet-5, momentum": (lenet, momentum, (4, 1, 28, 28), 26),
    "a residual block, momentum": (residual, momentum, (4, 3, 8, 8), 30),
    "an LSTM cell, momentum": (lstm, momentum, (6, 12), 14),
    "a transformer block, Adam": (transformer, adam, (3, 5, 16), 35),
}


@pytest.mark.parametrize("name", STEPS)
def test_training_steps(name: str) -> None:
    net, optimizer, shape, most = STEPS[name]
    x = floats(*shape, seed=77)
    with knobs.set(device="reference"):
        expected = trained(net, optimizer, x, lambda f: f)[0]
    got, step = trained(net, optimizer, x, weft.jit)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4 * max(1.0, np.abs(b).max()))
        counted()
    [made] = step.programs.latest.values()
    program = made.executable.program
    assert len(program.kernels) <= most, program_text(program)


def test_the_update_of_many_parameters_is_one_kernel() -> None:
    params = [weft.parameter(floats(5 + i, 7 - i % 3)) for i in range(12)]
    update = adam(params)

    @weft.jit
    def step(grads: Any) -> None:
        update(grads)

    grads = [floats(*p.shape, seed=5) for p in params]
    step(grads)
    [made] = step.programs.latest.values()
    assert len(made.executable.program.kernels) <= 13, program_text(made.executable.program)


# --- what is computed once and stored -------------------------------------------------------------------------------------------------


def stored(f: F, *shapes: tuple[int, ...], recompute_limit: int | None = None) -> list[str]:
    """The names of what is written although it is no result, nor a sum, nor an operand."""
    graph = simplify(weft.make_graph(f, *(Type(s, weft.float32) for s in shapes)))
    fused = fuse(graph, recompute_limit=recompute_limit)
    written = [n for k in fused.kernels for n in k.outputs]
    return [n.op.name for n in written if n not in graph.outputs and n.op.kind == "elementwise"]


def both_ways(y: Any) -> Any:
    """Two kernels that read all of it: their loops are of other lengths."""
    return y.sum(axis=0), y.sum(axis=1)


LARGE = (128, 130)
MANY_LEAVES: dict[str, tuple[F, tuple[tuple[int, ...], ...], list[str]]] = {
    "of three large tensors": (lambda a, b, c: both_ways(a + b - c), (LARGE,) * 3, ["sub"]),
    "of four": (lambda a, b, c, d: both_ways(a + b - c * d), (LARGE,) * 4, ["sub"]),
    "of two": (lambda a, b: both_ways(a - b), (LARGE,) * 2, []),
    "of one, three times": (lambda a: both_ways(a * a - a), (LARGE,), []),
    "of three small tensors": (lambda a, b, c: both_ways(a + b - c), ((20, 30),) * 3, []),
    "of a large one and rows": (lambda a, b, c: both_ways(a + b - c), (LARGE, (130,), (128, 1)), []),
    "used once": (lambda a, b, c: (a + b - c).sum(axis=0), (LARGE,) * 3, []),
    "below another that is stored": (
        lambda a, b, c: (both_ways(a + b - c), (a + b - c).max(axis=0), weft.sin(a + b - c)), (LARGE,) * 3, ["sub"],
    ),
    "a chain: with the first stored, the second is made of two": (
        lambda a, b, c, d: (both_ways(a + b - c), both_ways((a + b - c) * d)), (LARGE,) * 4, ["sub"],
    ),
    "a chain: each from the one before": (
        lambda a, b, c, d, e: (both_ways(a + b - c), both_ways((a + b - c) * d - e)), (LARGE,) * 5, ["sub", "sub"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MANY_LEAVES)
def test_what_is_made_of_several_large_tensors_is_made_once(name: str) -> None:
    f, shapes, wanted = MANY_LEAVES[name]
    assert stored(f, *shapes, recompute_limit=64) == wanted


def test_long_work_is_done_once_whatever_it_reads() -> None:
    assert stored(lambda a: both_ways(weft.exp(a)), (20, 30)) == ["exp"]
    assert stored(lambda a: both_ways(weft.exp(a)), (20, 30), recompute_limit=64) == []


POOL = (2, 4, 12, 12)


def test_windows_that_overlap_are_looked_through_once() -> None:
    """Their greatest are stored for all who want them; so is what they look at, if it is computed."""

    def kernels_with(f: F) -> list[list[str]]:
        fused = fuse(simplify(weft.make_graph(f, Type(POOL, weft.float32))), recompute_limit=1000)
        return [[n.op.name for n in k.outputs] for k in fused.kernels]

    def pooled(stride: int) -> F:
        return lambda x: both_ways(weft.max_pool(x, 2, stride=stride).reshape(8, -1))

    overlapping, apart = kernels_with(pooled(1)), kernels_with(pooled(2))
    assert [o for k in overlapping for o in k].count("window_max") == 1
    assert "window_max" not in [o for k in apart for o in k]
    below = [[o for k in kernels_with(lambda x, s=s: weft.max_pool(x * 2.0, 2, stride=s)) for o in k] for s in (1, 2)]
    assert below == [["mul", "window_max"], ["window_max"]]


def residual_steps(depth: int) -> weft.graph.Graph:
    """The gradients of residual blocks: the gradient of the input of each is that of its output and one thing more."""

    def loss(x: Any, *filters: Any) -> Any:
        for w in filters:
            x = x + weft.relu(weft.conv(x, w, padding=1))
        return (x * x).sum()

    image, filters = Type((2, 16, 24, 24), weft.float32), Type((16, 16, 3, 3), weft.float32)
    return weft.make_graph(weft.grad(loss, argnums=tuple(range(1, depth + 1))), image, *(filters,) * depth)


def test_what_a_convolution_by_loops_reads_is_made_once() -> None:
    """It reads each element for every tap and channel: the first layer of an int8 network prepared its image again for each."""

    def stored_by(f: F, dtype: str) -> list[str]:
        program = program_of(f, np.ones((1, 1, 28, 28), dtype), np.ones((20, 1, 5, 5), dtype))
        return [n.op.name for k in program.kernels for n in k.outputs]

    def quantized(x: Any, w: Any) -> Any:
        return weft.conv(weft.astype(weft.round(100 * weft.tanh(weft.astype(x, "float32"))), "int8"), w, dtype="int32")

    assert stored_by(quantized, "int8") == ["cast", "permute"]
    assert stored_by(lambda x, w: weft.conv(100 * weft.tanh(x), w, algorithm="LOOPS"), "float32") == ["mul", "permute"]
    assert stored_by(lambda x, w: weft.conv(x, w, dtype="int32"), "int8") == ["permute"], "a conversion costs nothing"


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_bytes_of_a_residual_network_grow_with_its_depth(device: str) -> None:
    """And not with its square: no block reads the gradients of all blocks behind it."""

    def nbytes(depth: int) -> int:
        graph = residual_steps(depth)
        program = compiled(graph, {}, CompileOptions("cpu", threads=2)) if device == "cpu" else gpu_program(graph, {})
        return sum(work(program, call).nbytes for call in program.calls)

    few, some, many = (nbytes(depth) for depth in (4, 8, 16))
    assert (many - some) / 8 == pytest.approx((some - few) / 4, rel=0.01)
    counted()


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_residual_stream_of_one_token_is_summed_once(device: str) -> None:
    """However small it is: no layer adds up the results of all layers before it."""

    def reads(depth: int) -> int:
        def stack(x: Any, *weights: Any) -> Any:
            for w in weights:
                x = x + weft.layer_norm(x) @ w
            return x

        graph = weft.make_graph(stack, Type((1, 512), weft.bfloat16), *(Type((512, 512), weft.bfloat16),) * depth)
        program = compiled(graph, {}, CompileOptions("cpu", threads=2)) if device == "cpu" else gpu_program(graph, {})
        return max(sum(node.shape == (1, 512) for node in kernel.reads) for kernel in program.kernels)

    assert reads(12) == reads(24) <= thresholds.stored_lines


def test_what_is_kept_in_16_bits_is_not_widened_for_windows() -> None:
    """They read it as it is, several times: a copy would be written and read."""

    def f(x: Any, w: Any, v: Any) -> Any:
        y = weft.tanh(weft.conv(x, w, padding=1))
        return weft.conv(y, v).sum() + (weft.avg_pool(y, 3, stride=1) ** 2).sum()

    image, filters = Type((2, 8, 33, 33), weft.float32), Type((8, 8, 3, 3), weft.float32)
    program = gpu_program(weft.make_graph(f, image, filters, filters), {}, CompileOptions("cuda", "bfloat16"))
    assert not [n for k in program.kernels if k.anchor is None for n in k.outputs if n.shape == (2, 33, 33, 8) and n.dtype is weft.float32]  # fmt: skip


def test_a_result_and_its_bias_are_kept_as_one() -> None:
    """Where several want the sum, and nobody the result alone, it is the sum that is written."""

    def kept(f: F, *more: tuple[int, ...]) -> list[list[str]]:
        shapes = ((32, 16), (16, 24), (24,), *more)
        fused = fuse(apply_passes(weft.make_graph(f, *(Type(s, weft.float32) for s in shapes))))
        return [[n.op.name for n in k.outputs] for k in fused.kernels if k.anchor is not None]

    assert kept(lambda a, b, c: both_ways(a @ b + c)) == [["add"]]
    assert kept(lambda a, b, c: both_ways(c + a @ b)) == [["add"]]
    assert kept(lambda a, b, c: (*both_ways(a @ b + c), a @ b)) != [["add"]]  # the result is wanted itself
    assert kept(lambda a, b, c, d: both_ways(a @ b + d), (32, 24)) == [["contract"]]  # to read that again is no less


def test_a_sum_that_is_larger_than_the_result_is_not_kept() -> None:
    shapes = ((2, 64, 32), (2, 64, 32), (32, 32), (32, 32), (32,))

    def pairs(q: Any, k: Any, v: Any, w: Any, c: Any) -> Any:
        """Every row of one with every row of the other."""
        return both_ways(((q @ v)[:, :, None, :] + (k @ w)[:, None, :, :]).reshape(-1, 32))

    def part(q: Any, k: Any, v: Any, w: Any, c: Any) -> Any:
        return both_ways((q.reshape(-1, 32) @ v)[:, :16] + c[:16])

    def turned(q: Any, k: Any, v: Any, w: Any, c: Any) -> Any:
        return both_ways(weft.flip(q.reshape(-1, 32) @ v) + c)

    def widened(q: Any, k: Any, v: Any, w: Any, c: Any) -> Any:
        return both_ways((q.reshape(-1, 32).astype("float16") @ v.astype("float16")).astype("float32") + c)

    for f in (pairs, part, turned, widened):
        fused = fuse(apply_passes(weft.make_graph(f, *(Type(s, weft.float32) for s in shapes))), recompute_limit=64)
        assert "add" not in [n.op.name for k in fused.kernels for n in k.outputs], f.__name__
