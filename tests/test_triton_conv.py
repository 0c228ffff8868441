"""Convolutions and products as kernels for GPUs: any number of channels, how sums are walked, and how tiles are arranged."""

from typing import Any

import numpy as np
import pytest

import weft
from weft.compiler.gpu.contraction import (
    BUSY,
    FEWEST_PARTS,
    LEAST_PART,
    MOST_PARTS,
    SIDES,
    ContractionTile,
    ContractionWriter,
    _Walk,
    arranged,
    tile_for,
    walked,
    write_contraction,
)
from weft.compiler.gpu.program import gpu_program
from weft.compiler.ir.index import Loop
from weft.graph import Type
from weft.options import CompileOptions
from weft.testing import counted, generator

pytest.importorskip("triton")
from triton_runner import run_kernel, run_program

# --- numbers --------------------------------------------------------------------------------------------------------------------------


def all_directions(**how: Any) -> Any:
    """A convolution with something after it, and both its gradients."""

    def step(x: Any, w: Any) -> Any:
        y, back = weft.vjp(lambda x, w: weft.conv(x, w, **how), x, w)
        return (weft.tanh(y * 0.1), *back(y * 0.5))

    return step


def agrees(
    f: Any, *arrays: np.ndarray, narrow: Any = None, tolerance: float = 3e-6
) -> weft.compiler.planning.build.KernelProgram:
    """With the definition in float64, relative to the greatest number."""
    program = gpu_program(weft.make_graph(f, *arrays), {}, CompileOptions("cuda", narrow))
    with weft.knobs.set(device="reference"):
        exact = f(*(weft.asarray(a.astype(np.float64)) for a in arrays))
    for actual, e in zip(run_program(program, list(arrays)), exact, strict=True):
        scale = np.abs(e.numpy()).max() or 1.0
        np.testing.assert_allclose(actual.astype(np.float64), e.numpy(), rtol=0, atol=tolerance * scale)
        counted()
    return program


def normal(*shape: int) -> np.ndarray:
    return generator(str(shape)).normal(size=shape).astype(np.float32)


# channels, filters, the image, the kernel, and how
FORMS: dict[str, tuple[int, int, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1 channel": (1, 5, (7, 6), (3, 3), {"padding": 1}),
    "2 channels, a stride": (2, 4, (7, 6), (3, 2), {"stride": 2}),
    "3 channels, uneven padding": (3, 7, (5, 6), (3, 3), {"padding": ((1, 0), (0, 2))}),
    "4 channels, dilation": (4, 3, (9, 8), (3, 3), {"dilation": 2}),
    "5 channels, one filter": (5, 1, (6, 5), (2, 3), {}),
    "7 channels, one by one": (7, 9, (5, 3), (1, 1), {}),
    "8 channels": (8, 16, (4, 3), (3, 2), {"padding": 1}),
    "9 channels, strides": (9, 17, (5, 4), (2, 3), {"stride": (2, 3), "padding": 1}),
    "15 channels, a line": (15, 4, (11,), (4,), {"padding": 2}),
    "16 channels": (16, 15, (5, 4), (2, 2), {}),
    "17 channels, strides and dilation": (17, 6, (6, 5), (2, 2), {"stride": 2, "dilation": (3, 2), "padding": 2}),
    "24 channels in 3 groups": (24, 9, (4, 3), (2, 2), {"groups": 3, "padding": 1}),
    "6 channels in groups of one": (6, 12, (5, 4), (3, 2), {"groups": 6, "stride": 2}),
    "22 channels in 2 groups of an odd size": (22, 14, (3, 4), (2, 2), {"groups": 2}),
    "32 channels, a volume": (32, 3, (2, 3, 2), (2, 1, 2), {"padding": 1}),
    "33 channels": (33, 18, (3, 4), (2, 2), {"padding": 1}),
    "40 channels, a stride above the kernel": (40, 33, (5, 4), (1, 2), {"stride": 3}),
}


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize("name", FORMS)
def test_any_number_of_channels(name: str) -> None:
    channels, filters, image, kernel, how = FORMS[name]
    x = normal(2, channels, *image)
    w = normal(filters, channels // how.get("groups", 1), *kernel)
    agrees(all_directions(**how), x, w)


@pytest.mark.sweep("narrow", share=0.3)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [2, 3, 5, 7])
@pytest.mark.parametrize("narrow", [None, "bfloat16"], ids=["float32", "mixed"])
def test_images_of_few_channels_are_filled_up(channels: int, narrow: Any, stride: int) -> None:
    """To whole words, or blocks of them: the gradients of the filters are those of the channels that there are."""
    x, w = normal(2, channels, 5, 4), normal(6, channels, 3, 2)
    program = agrees(
        all_directions(stride=stride, padding=1), x, w, narrow=narrow, tolerance=3e-6 if narrow is None else 0.01
    )
    word, joined = 4 if narrow is None else 8, channels * stride**2
    read = {k.anchor.op.name: k.anchor.inputs[0].shape[-1] for k in program.kernels if k.anchor is not None}
    filled = joined + -joined % word if channels < word else channels
    assert (read["conv_last"], read["conv_filter_last"]) == (filled, filled)
    assert [o.shape for o in program.graph.outputs[1:]] == [x.shape, w.shape]


def test_of_a_network_in_mixed_precision() -> None:
    """Two convolutions of 16 bits after each other: the image has 3 channels, what is between has 5."""

    def f(x: Any, w: Any, v: Any) -> Any:
        loss = lambda w, v: (weft.conv(weft.relu(weft.conv(x, w, padding=1)), v, stride=2) ** 2).sum()  # noqa: E731
        return weft.grad(loss, argnums=(0, 1))(w, v)

    agrees(f, normal(2, 3, 5, 4), normal(5, 3, 3, 3) / 3, normal(4, 5, 2, 2) / 3, narrow="bfloat16", tolerance=0.02)


@pytest.mark.parametrize(
    "tile", [ContractionTile(16, 16, 16, 4), ContractionTile(32, 16, 32, 4), ContractionTile(16, 64, 64, 4)], ids=str
)
@pytest.mark.parametrize("channels", [3, 40])
def test_any_tile_gives_the_same(channels: int, tile: ContractionTile) -> None:
    x, w = normal(1, channels, 4, 5), normal(18, channels, 2, 2)
    program = gpu_program(weft.make_graph(lambda x, w: weft.conv(x, w, padding=1), x, w), {})
    [kernel] = [k for k in program.kernels if k.anchor is not None]
    image, filters = (weft.asarray(a) for a in (x, w))
    with weft.knobs.set(device="reference"):
        expected = weft.conv(image.astype("float64"), filters.astype("float64"), padding=1).numpy()
    source = write_contraction("kernel", kernel, tile)
    values = {kernel.views[0].base: operand(kernel, 0, x), kernel.views[1].base: operand(kernel, 1, w)}
    run_kernel(source, values)
    [written] = source.writes
    found = values[written]
    found = found if found.shape == expected.shape else np.moveaxis(found, -1, 1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 * np.abs(expected).max())
    counted()


def operand(kernel: Any, number: int, array: np.ndarray) -> np.ndarray:
    """What an anchor reads, as it lies where it was stored: channels first or last, perhaps with some more of them."""
    shape = kernel.views[number].base.shape
    if shape == array.shape:
        return array
    moved = np.moveaxis(array, 1, -1)
    return np.pad(moved, [(0, n - m) for n, m in zip(shape, moved.shape, strict=True)])


# --- the walk along what is summed over -------------------------------------------------------------------------------------------------


class Language:
    """As much of Triton's language as a walk is written in."""

    @staticmethod
    def arange(begin: int, end: int) -> np.ndarray:
        return np.arange(begin, end)


def visited(walk: _Walk) -> list[tuple[int, ...]]:
    """The places that a walk reads, step after step: values of all its loops."""
    found = []
    for step in range(walk.steps):
        names: dict[str, Any] = {"tl": Language, "step": step}
        for name, expression in walk.places.items():
            names[name] = eval(expression, names)
        for along, shape in (("along", (1, -1)), ("down", (-1, 1))):
            inside = names[along] < walk.width
            assert names[along].shape == inside.reshape(shape).shape
            values = [np.broadcast_to(eval(walk.at(along)[l], names), inside.shape)[inside] for l in walk.loops]
            places = list(zip(*(v.tolist() for v in values), strict=True))
            if along == "along":
                found += places
                first = places
            assert places == first  # both strips lie at the same places
    return found


@pytest.mark.parametrize("strip", [16, 32, 64])
@pytest.mark.parametrize("filter_gradient", [False, True])
@pytest.mark.parametrize("sizes", [(1,), (3,), (40,), (64,), (3, 3, 1), (3, 3, 7), (2, 3, 8), (3, 2, 40), (2, 2, 64), (5, 65), (2, 7, 31), (2, 7, 32)], ids=str)  # fmt: skip
def test_a_walk_comes_to_every_place_once(sizes: tuple[int, ...], filter_gradient: bool, strip: int) -> None:
    loops = tuple(Loop(n) for n in sizes)
    walk = _Walk(loops, strip, walked(loops, filter_gradient))
    assert visited(walk) == list(np.ndindex(*sizes))


def test_short_loops_are_walked_together() -> None:
    """Channels in strips of their own from 8 on, pixels from 32 on: then where a tap lies is worked out once a step."""

    def width(*sizes: int, filter_gradient: bool = False) -> int:
        return walked(tuple(Loop(n) for n in sizes), filter_gradient)

    assert [width(3, 3, n) for n in (1, 7, 8, 40)] == [9, 63, 8, 40]
    assert [width(2, 5, n, filter_gradient=True) for n in (8, 31, 32)] == [80, 310, 32]
    assert width() == 1
    assert "tap" in _Walk((Loop(3), Loop(40)), 16, 40).places
    assert "tap" not in _Walk((Loop(3), Loop(7)), 16, 21).places


# --- how tiles are arranged -------------------------------------------------------------------------------------------------------------


def tiles(batch: int, rows: int, columns: int, sides: tuple[int, int]) -> int:
    return batch * -(-rows // sides[0]) * -(-columns // sides[1])


def test_arrangements_of_any_shape() -> None:
    rng = generator("arranged")
    in_parts = 0
    for _ in range(2000):
        batch, rows, columns, length = (int(2 ** rng.uniform(0, high)) for high in (4, 16, 11, 18))
        sides, parts = arranged(batch, rows, columns, length)
        shape = (batch, rows, columns, length)
        for side, size, most in zip(sides, (rows, columns), map(max, zip(*SIDES, strict=True)), strict=True):
            assert side in (16, 32, 64, 128), shape
            assert side <= most
            assert side == 16 or side < 2 * size, shape  # no more than half of a tile is empty
        assert parts & (parts - 1) == 0
        count = tiles(batch, rows, columns, sides)
        if parts > 1:
            in_parts += 1
            assert FEWEST_PARTS <= parts <= MOST_PARTS
            assert length >= parts * LEAST_PART, shape
            assert count * parts <= 2 * BUSY, shape
            assert count < BUSY, shape  # sums are only cut where tiles alone do not keep a GPU busy
        assert arranged(batch, rows, columns, length) == (sides, parts)
    assert in_parts > 100


@pytest.mark.parametrize(("shape", "expected"), [
    ((1, 8192, 8192, 8192), ((128, 128), 1)),  # enough of the largest
    ((1, 200_704, 64, 576), ((128, 64), 1)),  # narrow: 56 x 56 pixels of 64 images, 64 filters
    ((1, 4096, 512, 512), ((64, 64), 1)),  # smaller ones, until there are enough
    ((1, 576, 64, 200_704), ((64, 64), 32)),  # a filter's gradient: 9 tiles, and a long way
    ((1, 9, 16, 1_000_000), ((16, 16), 64)),
    ((1, 77, 3136, 42_300), ((64, 64), 4)),  # 294 tiles of 32 x 32 would read twice as much
    ((1, 77, 3136, 8191), ((32, 32), 1)),  # too short for that
    ((1, 16, 16, 300), ((16, 16), 1)),  # too short to be cut
    ((1, 1, 1, 10), ((16, 16), 1)),
    ((64, 256, 128, 64), ((64, 64), 1)),
])  # fmt: skip
def test_arrangements_as_they_are(shape: tuple[int, int, int, int], expected: tuple[tuple[int, int], int]) -> None:
    assert arranged(*shape) == expected


def test_tiles_for_strips() -> None:
    assert tile_for((128, 128), 4096) == ContractionTile(128, 128, 32, 8)
    assert tile_for((64, 128), 4096) == ContractionTile(64, 128, 64, 4)
    assert tile_for((64, 64), 3) == ContractionTile(64, 64, 16, 4)
    assert tile_for((16, 16), 40) == ContractionTile(16, 16, 64, 4)


@pytest.mark.parametrize(("image", "output"), [((2, 5, 19, 17), (2, 6, 18, 15)), ((1, 5, 19, 35), (1, 6, 18, 33))])
def test_long_sums_are_cut_and_added_in_order(image: tuple[int, ...], output: tuple[int, ...]) -> None:
    """A filter's gradient of many pixels, walked together and row by row: in parts, the last of which is shorter."""
    x, g = normal(*image), normal(*output)

    def f(x: Any, g: Any) -> Any:
        return weft.vjp(lambda w: weft.conv(x, w), weft.zeros((6, 5, 2, 3), dtype=x.dtype))[1](g)

    program = agrees(f, x, g)
    assert [plan.name for plan in program.plans.values()] == ["IMPLICIT_GEMM, in parts"]
    again = [run_program(program, [x, g])[0].tobytes() for _ in range(2)]
    assert again[0] == again[1]


def test_channels_are_walked_innermost() -> None:
    """They are neighbours in memory, so a strip of them is one wide load."""
    x, w = Type((2, 40, 9, 9), weft.float32), Type((8, 40, 3, 2), weft.float32)
    program = gpu_program(weft.make_graph(weft.grad(lambda x, w: (weft.conv(x, w) ** 2).sum()), x, w), {})
    walks = {
        k.anchor.op.name: [l.size for l in ContractionWriter("kernel", k, None).depth_loops]
        for k in program.kernels
        if k.anchor is not None
    }
    assert walks == {"conv_last": [3, 2, 40], "conv_data_last": [3, 2, 8]}
