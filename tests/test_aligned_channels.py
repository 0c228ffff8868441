"""Large convolutions of odd channels on GPUs: they are padded, and what they compute keeps its values."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
from test_simplify import assert_same_values
from weft import nn
from weft.compiler.gpu.program import gpu_passes, gpu_program
from weft.compiler.passes.layout import layout
from weft.compiler.passes.simplify import simplify
from weft.compiler.thresholds import thresholds
from weft.graph import Graph, Node, Type
from weft.options import CompileOptions

TOLERANCE = 2e-3  # a float16: sums of padded products are added up in another order
MIXED = CompileOptions("cuda", precision="float16")


@pytest.fixture(autouse=True)
def _small_convolutions_are_padded() -> Iterator[None]:
    with thresholds.set(gpu_padded_conv=64, gpu_padded_reuse=0, handed_on_elements=4):
        yield


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def convolutions(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op.kernel == "convolution"]


def passes(f: Callable[..., Any], *arrays: np.ndarray) -> dict[str, Graph]:
    return gpu_passes(weft.make_graph(f, *arrays), MIXED)


@pytest.mark.parametrize(
    ("channels", "filters", "how"),
    [(11, 13, {}), (16, 9, {"padding": 1}), (9, 16, {"stride": 2}), (3, 21, {"padding": 1}), (12, 1, {}), (1, 10, {}), (8, 8, {})],
)  # fmt: skip
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_keep_their_values(channels: int, filters: int, how: dict[str, Any], transposed: bool) -> None:
    def f(x: Any, w: Any) -> Any:
        return weft.tanh(weft.conv_transpose(x, w, **how) if transposed else weft.conv(x, w, **how)) ** 2

    x, w = floats(2, channels, 7, 6), floats(filters, channels, 3, 3, seed=1)
    w = np.ascontiguousarray(w.swapaxes(0, 1)) if transposed else w
    after = passes(f, x, w)
    assert_same_values(after["precision"], after["refine"], [x, w], TOLERANCE)
    [node] = convolutions(after["refine"])
    assert node.inputs[0].shape[-1] % 8 == 0 or node.inputs[0].shape[-1] == channels == 1
    if (channels, filters) == (8, 8):
        assert not [n for n in after["refine"].nodes if n.op.name in ("pad", "slice")]


@pytest.mark.parametrize(("channels", "filters"), [(11, 13), (16, 9), (3, 21), (1, 10), (12, 1)])
@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_keep_their_values(channels: int, filters: int, stride: int) -> None:
    """All three convolutions of a training step are padded, where batch norm sums over pixels between them."""
    x, w, v = floats(2, channels, 8, 7), floats(filters, channels, 3, 3, seed=1), floats(11, filters, 2, 2, seed=2)

    def loss(x: Any, w: Any, v: Any) -> Any:
        y = weft.conv(x, w, padding=1, stride=stride)
        y = (y - y.mean(axis=(0, 2, 3), keepdims=True)) / weft.sqrt(y.var(axis=(0, 2, 3), keepdims=True) + 1)
        return (weft.tanh(weft.conv(weft.silu(y), v)) ** 2).sum()

    after = passes(weft.grad(loss, argnums=(0, 1, 2)), x, w, v)
    assert_same_values(after["precision"], after["refine"], [x, w, v], TOLERANCE)
    made = convolutions(after["refine"])
    assert {n.op.name for n in made} == {"conv_last", "conv_data_last", "conv_filter_last"}
    assert len(made) == 6
    for node in made:
        sizes = {i.shape[-1] for i in node.inputs[: 2 if node.op.name == "conv_filter_last" else 1]}
        assert all(size % 8 == 0 or size == 1 for size in sizes), (node.op.name, sizes)


@pytest.mark.parametrize("more", [0, 1])
def test_training_pads_convolutions_that_multiply_numbers_often(more: int) -> None:
    """For 11 channels and 11 filters of 3 x 3 taps, each is multiplied 49.5 times on average."""
    x, w = floats(2, 11, 7, 6), floats(11, 11, 3, 3, seed=1)
    with thresholds.set(gpu_padded_reuse=49 + more):
        trained = passes(weft.grad(lambda w, x: (weft.conv(x, w) ** 2).sum()), w, x)
        predicted = passes(weft.conv, x, w)
    sizes = {n.inputs[0].shape[-1] for n in convolutions(trained["refine"])}
    assert sizes == {11 if more else 16}
    assert [n.inputs[0].shape[-1] for n in convolutions(predicted["refine"])] == [16]


def test_a_line_and_a_volume() -> None:
    for x, w in ((floats(2, 11, 9), floats(13, 11, 3)), (floats(1, 9, 4, 5, 4), floats(10, 9, 2, 3, 2))):
        after = passes(lambda x, w: weft.tanh(weft.conv(x, w)), x, w)
        assert_same_values(after["precision"], after["refine"], [x, w], TOLERANCE)
        assert all(node.inputs[0].shape[-1] == 16 for node in convolutions(after["refine"]))


def test_these_stay_as_they_are() -> None:
    x, w, half = floats(2, 12, 5, 5), floats(15, 12, 3, 3), weft.float16
    types = Type(x.shape, half), Type(w.shape, half)

    def same(f: Callable[..., Any], *given: Any, pad: bool = True) -> bool:
        found = [
            n.inputs[0].shape[-1] for n in convolutions(layout(simplify(weft.make_graph(f, *given)), pad_to_words=pad))
        ]
        return found == [12]

    assert not same(weft.conv, *types)
    assert same(weft.conv, *types, pad=False)
    assert same(weft.conv, x, w)  # float32
    assert same(lambda x, w: weft.conv(x, w, algorithm="DIRECT"), *types)
    assert same(lambda x, w: weft.conv(x, w, groups=3), types[0], Type((15, 4, 3, 3), half))
    with thresholds.set(gpu_padded_conv=2 * 3 * 3 * 15 * 12 * 9):
        assert not same(weft.conv, *types)
    with thresholds.set(gpu_padded_conv=2 * 3 * 3 * 15 * 12 * 9 + 1):
        assert same(weft.conv, *types)


@pytest.mark.parametrize("activation", [weft.sigmoid, weft.gelu, lambda y: weft.maximum(y, 0.5) * y])
def test_between_two_convolutions_whole_pixels_are_computed(activation: Callable[[Any], Any]) -> None:
    """A bias and an activation, which is not zero where nothing was: no kernel copies pixels of another length."""
    x, w, v, b = floats(2, 16, 6, 6), floats(13, 16, 3, 3, seed=1), floats(16, 13, 3, 3, seed=2), floats(13, seed=3)

    def f(x: Any, w: Any, v: Any, b: Any) -> Any:
        return weft.conv(activation(weft.conv(x, w) + b.reshape((13, 1, 1))), v)

    assert images(f, x, w, v, b) == [(2, 4, 4, 16)]


def test_what_meets_pixels_of_another_length_is_sliced() -> None:
    x, w, v, y = (
        floats(2, 16, 6, 6),
        floats(13, 16, 3, 3, seed=1),
        floats(16, 13, 3, 3, seed=2),
        floats(2, 13, 4, 4, seed=3),
    )
    after = passes(lambda x, w, v, y: weft.conv(weft.conv(x, w) * y, v), x, w, v, y)
    assert_same_values(after["precision"], after["refine"], [x, w, v, y], TOLERANCE)
    [product] = [n for n in after["refine"].nodes if n.op.name == "mul"]
    assert product.shape == (2, 4, 4, 13)


@pytest.mark.parametrize("op", [lambda a, b: a % b, lambda a, b: a // b])
def test_what_fails_for_some_integers_is_not_computed_beyond_a_line(op: Callable[[Any, Any], Any]) -> None:
    """There is a zero after the bias, and dividing by it would be an error of a program that has none."""
    x, w, v, b = (
        floats(2, 16, 6, 6),
        floats(13, 16, 3, 3, seed=1),
        floats(16, 13, 3, 3, seed=2),
        floats(13, seed=3) + 50,
    )

    def f(x: Any, w: Any, v: Any, b: Any) -> Any:
        divisor = (weft.conv(x, w) * 0.1 + b.reshape((13, 1, 1))).astype("int32")
        return weft.conv(op(1000, divisor).astype("float32") * 0.01, v)

    [division] = [n for n in passes(f, x, w, v, b)["refine"].nodes if n.op.can_fail]
    assert division.shape == (2, 4, 4, 13)


def test_residual_blocks_store_each_sum_once() -> None:
    """It is read by the next convolution, by the next sum and at the end. The first convolution alone is too small to be padded."""
    blocks = 3
    x, first = floats(2, 16, 6, 6), floats(13, 16, 1, 1)
    filters = [floats(13, 13, 3, 3, seed=i) * 0.05 for i in range(2 * blocks)]
    biases = [floats(13, seed=i) for i in range(2 * blocks)]

    def f(x: Any, first: Any, *parameters: Any) -> Any:
        ws, bs = parameters[: 2 * blocks], [b.reshape((13, 1, 1)) for b in parameters[2 * blocks :]]
        y = weft.conv(x, first)
        for i in range(0, 2 * blocks, 2):
            inner = weft.relu(weft.conv(y, ws[i], padding=1) + bs[i])
            y = weft.relu(y + weft.conv(inner, ws[i + 1], padding=1) + bs[i + 1])
        return y.mean(axis=(2, 3))

    small, large = 2 * 36 * 16 * 13, 2 * 36 * 9 * 13 * 13
    with thresholds.set(gpu_padded_conv=(small + large) // 2):
        made = images(f, x, first, *filters, *biases, pixels=(6, 6))
    assert made == [(2, 6, 6, 16)] * (2 + 2 * blocks)  # of the image and of each convolution


def test_a_norm_of_examples_between_convolutions_is_stored_once() -> None:
    """In whole pixels, for the next convolution and for the sum behind it."""
    x, w, v = floats(2, 16, 6, 6), floats(15, 16, 1, 1), floats(15, 15, 3, 3, seed=1)

    def f(x: Any, w: Any, v: Any) -> Any:
        y = weft.silu(weft.group_norm(weft.conv(x, w), 1))
        return (weft.conv(y, v, padding=1) + y).mean(axis=(2, 3))

    assert images(f, x, w, v, pixels=(6, 6)) == [(2, 6, 6, 16)] * 4  # the image, two convolutions and the norm


def images(f: Callable[..., Any], *arrays: np.ndarray, pixels: tuple[int, int] = (4, 4)) -> list[tuple[int, ...]]:
    """The images of so many pixels that the program stores; the values of the graph are what they were."""
    after = passes(f, *arrays)
    assert_same_values(after["precision"], after["refine"], list(arrays), TOLERANCE)
    program = gpu_program(weft.make_graph(f, *arrays), {}, MIXED)
    return [o.shape for k in program.kernels for o in k.outputs if len(o.shape) == 4 and o.shape[1:3] == pixels]


def test_a_network_with_batch_norm_predicts_as_before() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 11, 3, padding=1), nn.BatchNorm2d(11), nn.GELU(), nn.Conv2d(11, 13, 3, stride=2), nn.BatchNorm2d(13), nn.SiLU(),
        nn.MaxPool2d(2), nn.Residual(nn.Sequential(nn.Conv2d(13, 13, 3, padding=1), nn.Tanh())), nn.GlobalAvgPool(), nn.Linear(13, 5),
    )  # fmt: skip
    x = floats(4, 3, 12, 11)
    for training in (False, True):  # with the statistics of the batch, too
        model.train(training)
        model(x)
        traced = weft.jit(lambda x: model(x), precision="float16").traced_function(weft.asarray(x))
        after = gpu_passes(traced.graph, MIXED)
        assert {n.inputs[0].shape[-1] for n in convolutions(after["refine"])} == {8, 16}
        arrays = [x, *(s.find().numpy() for s in traced.states)]
        assert_same_values(after["precision"], after["refine"], arrays, TOLERANCE)
