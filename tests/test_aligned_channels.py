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
    with thresholds.set(gpu_padded_conv=64, handed_on_elements=4):
        yield


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def convolutions(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op.kernel == "convolution"]


def passes(f: Callable[..., Any], *arrays: np.ndarray) -> dict[str, Graph]:
    return gpu_passes(weft.make_graph(f, *arrays), MIXED)


def gradients(how: dict[str, Any]) -> Callable[..., Any]:
    def f(x: Any, w: Any) -> Any:
        return weft.value_and_grad(lambda x, w: (weft.tanh(weft.conv(x, w, **how)) ** 2).sum(), argnums=(0, 1))(x, w)

    return f


@pytest.mark.parametrize(
    ("channels", "filters", "how"),
    [(11, 13, {}), (16, 9, {"padding": 1}), (9, 16, {"stride": 2}), (3, 21, {"padding": 1}), (12, 1, {}), (1, 10, {}), (8, 8, {})],
)  # fmt: skip
def test_convolutions_and_gradients_keep_their_values(channels: int, filters: int, how: dict[str, Any]) -> None:
    x, w = floats(2, channels, 7, 6), floats(filters, channels, 3, 3, seed=1)
    after = passes(gradients(how), x, w)
    assert_same_values(after["precision"], after["refine"], [x, w], TOLERANCE)
    for node in convolutions(after["refine"]):
        assert node.inputs[0].shape[-1] % 8 == 0 or node.inputs[0].shape[-1] == channels == 1, (
            node,
            [i.shape for i in node.inputs],
        )
    if (channels, filters) == (8, 8):
        assert not [n for n in after["refine"].nodes if n.op.name in ("pad", "slice")]


def test_a_line_and_a_volume() -> None:
    for x, w in ((floats(2, 11, 9), floats(13, 11, 3)), (floats(1, 9, 4, 5, 4), floats(10, 9, 2, 3, 2))):
        after = passes(gradients({}), x, w)
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


def images(f: Callable[..., Any], *arrays: np.ndarray) -> list[tuple[int, ...]]:
    """The images of 4 x 4 pixels that the program stores; the values of the graph are what they were."""
    after = passes(f, *arrays)
    assert_same_values(after["precision"], after["refine"], list(arrays), TOLERANCE)
    program = gpu_program(weft.make_graph(f, *arrays), {}, MIXED)
    return [o.shape for k in program.kernels for o in k.outputs if len(o.shape) == 4 and o.shape[1:3] == (4, 4)]


def test_a_network_with_batch_norm_trains_as_before() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 11, 3, padding=1), nn.BatchNorm2d(11), nn.GELU(), nn.Conv2d(11, 13, 3, stride=2), nn.BatchNorm2d(13), nn.SiLU(),
        nn.MaxPool2d(2), nn.Residual(nn.Sequential(nn.Conv2d(13, 13, 3, padding=1), nn.Tanh())), nn.GlobalAvgPool(), nn.Linear(13, 5),
    )  # fmt: skip
    x, y = floats(4, 3, 12, 11), np.arange(4)
    model(x)
    parameters = list(model.parameters())

    def step(x: Any, y: Any) -> Any:
        loss = weft.cross_entropy(model(x), y)
        return loss, weft.gradients(loss, parameters)

    traced = weft.jit(step, precision="float16").traced_function(weft.asarray(x), weft.asarray(y))
    after = gpu_passes(traced.graph, MIXED)
    arrays = [x, y, *(s.find().numpy() for s in traced.states)]
    assert_same_values(after["precision"], after["refine"], arrays, TOLERANCE)
