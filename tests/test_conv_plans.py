"""Convolutions as plans of native functions: every algorithm in every direction against a float64 reference.

Operands end where a page begins that may not be read, results and workspace have margins that must stay as they are,
the epilogue must be called once for each element after it was written, and the bits must not depend on the threads.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from guarded import Guarded
from sampling import sampled
from weft.compiler.cpu.conv import algorithms as conv
from weft.compiler.cpu.conv import few_channels as conv_row
from weft.compiler.cpu.conv import filter_gradient_plan as conv_filter_plan
from weft.compiler.cpu.conv import filter_gradient_tiles as conv_filter_tiles
from weft.compiler.cpu.conv.col2im import scatter_plan
from weft.compiler.cpu.conv.shape import data_sweep, forward_sweep
from weft.compiler.cpu.conv.sweep_plan import SweepOperands
from weft.compiler.cpu.library import run
from weft.compiler.cpu.target import CpuTarget, host
from weft.compiler.cpu.winograd import filter_gradient_plan as winograd_gradient_plan
from weft.compiler.ir.conv_shape import ConvShape, Direction
from weft.compiler.ir.plan import Plan

EPILOGUE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 5)
MARGIN = 64  # floats
POISON = np.float32(-1234.5)
DIRECTIONS: tuple[Direction, ...] = ("forward", "data_gradient", "filter_gradient")


def out_size(size: int, kernel: int, stride: int, before: int, after: int, dilation: int) -> int:
    return (size + before + after - (kernel - 1) * dilation - 1) // stride + 1


def conv_shape(
    spatial: tuple[int, ...], kernel: tuple[int, ...], channels: tuple[int, int], *, batch: int = 1, groups: int = 1,
    stride: tuple[int, ...] = (1, 1, 1), before: tuple[int, ...] = (0, 0, 0), after: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] = (1, 1, 1),
) -> ConvShape:  # fmt: skip
    dims = len(spatial)
    stride, before, after, dilation = (t[:dims] for t in (stride, before, before if after is None else after, dilation))
    out = tuple(map(out_size, spatial, kernel, stride, before, after, dilation))
    return ConvShape(batch, *channels, groups, spatial, kernel, stride, before, dilation, out)


# --- the reference --------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """Operands in the layout of the mathematics (channels first), in float64."""

    shape: ConvShape
    x: np.ndarray
    w: np.ndarray
    g: np.ndarray

    def taps(self) -> Iterator[tuple[Any, Any]]:
        s = self.shape
        for tap in itertools.product(*map(range, s.kernel)):
            facts = zip(tap, s.dilation, s.out, s.stride, strict=True)
            yield (..., *tap), (..., *(slice(t * d, t * d + (o - 1) * st + 1, st) for t, d, o, st in facts))

    def padded(self, x: np.ndarray | None) -> tuple[np.ndarray, Any]:
        """x in enough zeros for all taps, cut in groups, and where it is in them."""
        s = self.shape
        facts = list(zip(s.out, s.stride, s.kernel, s.dilation, s.spatial, s.padding, strict=True))
        size = [max((o - 1) * st + (k - 1) * d + 1, i + p) for o, st, k, d, i, p in facts]
        middle: Any = (..., *(slice(p, p + i) for _, _, _, _, i, p in facts))
        result = np.zeros((s.batch, s.channels, *size))
        if x is not None:
            result[middle] = x
        return result.reshape(s.batch, s.groups, s.channels // s.groups, *size), middle

    def forward(self) -> np.ndarray:
        s, (x, _) = self.shape, self.padded(self.x)
        y = np.zeros((s.batch, s.groups, s.filters // s.groups, *s.out))
        w = self.w.reshape(s.groups, -1, *self.w.shape[1:])
        for tap, view in self.taps():
            y += np.einsum("ngc...,goc->ngo...", x[view], w[tap])
        return y.reshape(s.batch, s.filters, *s.out)

    def data_gradient(self) -> np.ndarray:
        s, (x, middle) = self.shape, self.padded(None)
        g, w = (
            self.g.reshape(s.batch, s.groups, s.filters // s.groups, *s.out),
            self.w.reshape(s.groups, -1, *self.w.shape[1:]),
        )
        for tap, view in self.taps():
            x[view] += np.einsum("ngo...,goc->ngc...", g, w[tap])
        return np.asarray(x.reshape(s.batch, s.channels, *x.shape[3:])[middle])

    def filter_gradient(self) -> np.ndarray:
        s, (x, _) = self.shape, self.padded(self.x)
        g, w = (
            self.g.reshape(s.batch, s.groups, s.filters // s.groups, *s.out),
            np.zeros((s.groups, s.filters // s.groups, *self.w.shape[1:])),
        )
        dims = "xyz"[: len(s.out)]
        for tap, view in self.taps():
            w[tap] = np.einsum(f"ngc{dims},ngo{dims}->goc", x[view], g)
        return w.reshape(self.w.shape)

    def sizes(self) -> Case:
        """The case whose results bound the rounding errors of this one."""
        return Case(self.shape, abs(self.x), abs(self.w), abs(self.g))


def make_case(shape: ConvShape, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((shape.batch, shape.channels, *shape.spatial), dtype=np.float32)
    w = rng.standard_normal((shape.filters, shape.channels // shape.groups, *shape.kernel), dtype=np.float32)
    g = rng.standard_normal((shape.batch, shape.filters, *shape.out), dtype=np.float32)
    return Case(shape, *(a.astype(np.float64) for a in (x, w, g)))


# --- memory that notices ----------------------------------------------------------------------------------------------------


class Fenced:
    """Floats between two poisoned margins, aligned to a cache line."""

    def __init__(self, count: int) -> None:
        whole = np.full(count + 2 * MARGIN + 16, POISON)
        skip = (-whole.ctypes.data % 64) // 4
        self.all = whole[skip : skip + count + 2 * MARGIN]
        self.inside = self.all[MARGIN : MARGIN + count]
        self.inside[:] = np.nan
        self.address = self.inside.ctypes.data

    def check(self) -> None:
        assert (self.all[:MARGIN] == POISON).all()
        assert (self.all[MARGIN + self.inside.size :] == POISON).all()


class Watcher:
    """An epilogue that counts its calls for each element and keeps what it saw."""

    def __init__(self, result: np.ndarray) -> None:
        self.calls, self.seen = np.zeros(result.shape, int), np.full(result.shape, np.nan, np.float32)

        def called(context: int, batch: int, row: int, row_end: int, column: int, column_end: int) -> None:
            assert context == 77
            assert batch == 0
            part = slice(row, row_end), slice(column, column_end)
            self.calls[part] += 1
            self.seen[part] = result[part]

        self.function = EPILOGUE(called)
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value


def channels_last(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(a, 1, -1), np.float32)


def sums_wait_for_chunks(plan: Plan) -> None:
    """A barrier stands where a phase reads what another writes. Phases run one by one here, and would not miss it."""
    written: set[str] = set()
    for phase in plan.phases:
        if phase.symbol == "conv_sum":
            assert "work" in written & phase.reads
        written |= phase.writes


def execute(
    plan: Plan, case: Case, w: np.ndarray, direction: str, threads: int, more: dict[str, int] | None = None
) -> np.ndarray:
    """Run a plan with all the watchers; gives the result as a matrix."""
    sums_wait_for_chunks(plan)
    s = case.shape
    operands = {"x": channels_last(case.x), "g": channels_last(case.g), "w": w}
    shapes = {
        "forward": ("y", int(s.batch * np.prod(s.out)), s.filters),
        "data_gradient": ("x", int(s.batch * np.prod(s.spatial)), s.channels),
        "filter_gradient": ("w", int(np.prod(s.kernel) * (s.channels // s.groups)), s.filters),
    }
    name, rows, columns = shapes[direction]
    memory = {n: Guarded(a) for n, a in operands.items() if n != name}
    result, work = Fenced(rows * columns), Fenced(-(-plan.workspace // 4))
    matrix = result.inside.reshape(rows, columns)
    watcher = Watcher(matrix)
    pointers = {n: m.address for n, m in memory.items()} | {name: result.address, "work": work.address} | (more or {})
    run(plan, {**pointers, "epilogue": watcher.address, "context": 77}, threads)
    result.check()
    work.check()
    assert (watcher.calls == 1).all()
    np.testing.assert_array_equal(watcher.seen, matrix)
    return matrix


def expected(case: Case, direction: str) -> np.ndarray:
    value = getattr(case, direction)()
    if direction == "filter_gradient":
        return np.moveaxis(value, (0, 1), (-1, -2)).reshape(-1, value.shape[0])
    return np.moveaxis(value, 1, -1).reshape(-1, value.shape[1])


def element_strides(w: np.ndarray) -> tuple[int, ...]:
    return tuple(s // w.itemsize for s in w.strides)


def layouts(case: Case, seed: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """The filter in one of several layouts: the memory, and the strides of (o, i, taps)."""
    w = case.w.astype(np.float32)
    order = list(range(w.ndim))
    if seed % 3 == 1:
        order = [*range(2, w.ndim), 1, 0]
    elif seed % 3 == 2:
        order = [1, *range(2, w.ndim), 0]
    memory = np.ascontiguousarray(w.transpose(order))
    strides = element_strides(memory)
    return memory, tuple(strides[order.index(axis)] for axis in range(w.ndim))


WINOGRAD = {"WINOGRAD": 4e-6, "WINOGRAD_2X2": 1e-6}
FFT = {"FFT": 1e-6, "FFT_TILED": 1e-6}
TRANSFORMING = WINOGRAD | FFT


def check(shape: ConvShape, direction: str, seed: int = 0, only: str | None = None) -> None:
    case = make_case(shape, seed)
    w, strides = layouts(case, seed)
    want, size = expected(case, direction), expected(case.sizes(), direction)
    candidates = getattr(conv, direction)
    names = list(candidates(shape, strides, 1))
    assert names
    for name in names:
        if only is not None and name != only:
            continue
        results = [execute(candidates(shape, strides, t)[name], case, w, direction, t) for t in (1, 2, 16)]
        # A transform mixes pixels, so its errors come from the neighbours as well.
        bound = TRANSFORMING[name] * size.max(initial=0) if name in TRANSFORMING else 1e-6 * size
        error = abs(results[0] - want) - bound
        assert error.max(initial=0) <= 1e-30, (name, shape, error.max(initial=0))
        for other in results[1:]:
            np.testing.assert_array_equal(results[0].view(np.uint32), other.view(np.uint32))


# --- the tests ----------------------------------------------------------------------------------------------------------------


def random_shape(rng: np.random.Generator) -> ConvShape:
    dims = int(rng.integers(1, 4))

    def draw(low: int, high: int) -> tuple[int, ...]:
        return tuple(int(n) for n in rng.integers(low, high + 1, dims))

    while True:
        groups = int(rng.choice([1, 1, 1, 2, 3]))
        channels = groups * int(rng.integers(1, 12)), groups * int(rng.integers(1, 22))
        if rng.random() < 0.15:
            groups = int(rng.integers(2, 22))
            channels = groups, groups
        shape = conv_shape(
            draw(1, 9), draw(1, 4), channels, batch=int(rng.integers(1, 4)), groups=groups, stride=draw(1, 3),
            before=draw(0, 4), after=draw(0, 4), dilation=draw(1, 3),
        )  # fmt: skip
        if min(shape.out) >= 1:
            return shape


@pytest.mark.sweep("direction", share=0.25)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("seed", range(16))
def test_random_shapes(direction: str, seed: int) -> None:
    check(random_shape(np.random.default_rng(seed)), direction, seed)


LAYERS = {
    "3x3 wide": conv_shape((6, 5), (3, 3), (64, 70), batch=2, before=(1, 1)),
    "1x1 wide": conv_shape((5, 7), (1, 1), (150, 230), batch=2),
    "1x1 long": conv_shape((40, 60), (1, 1), (20, 30), batch=2),
    "3x3": conv_shape((12, 11), (3, 3), (32, 48), batch=2, before=(1, 1)),
    "3x3 stride 2": conv_shape((13, 12), (3, 3), (16, 32), batch=2, before=(1, 1), stride=(2, 2)),
    "3x3 odd": conv_shape((15, 9), (3, 3), (21, 37), batch=3, before=(2, 0), after=(0, 1)),
    "1x1": conv_shape((9, 9), (1, 1), (20, 36)),
    "1x1 stride 2": conv_shape((9, 10), (1, 1), (16, 20), stride=(2, 2)),
    "1 channel": conv_shape((12, 12), (5, 5), (1, 6), batch=2, before=(2, 2)),
    "11x11 stride 4": conv_shape((39, 39), (11, 11), (3, 16), stride=(4, 4)),
    "few pixels": conv_shape((2, 2), (3, 3), (40, 72), before=(1, 1)),
    "depthwise": conv_shape((10, 9), (3, 3), (37, 37), batch=2, groups=37, before=(1, 1)),
    "depthwise stride 2": conv_shape((10, 9), (3, 3), (24, 24), groups=24, before=(1, 1), stride=(2, 2)),
    "groups": conv_shape((8, 7), (3, 3), (24, 32), groups=4, before=(1, 1)),
    "causal": conv_shape((30,), (3,), (8, 9), before=(4,), after=(0,), dilation=(2,)),
    "volume": conv_shape((5, 6, 7), (3, 2, 3), (5, 7), before=(1, 0, 1)),
    "stride beyond the kernel": conv_shape((11, 11), (2, 2), (5, 6), stride=(3, 3)),
    "stride and dilation": conv_shape((17, 16), (3, 4), (5, 6), stride=(4, 3), dilation=(2, 3), before=(3, 2)),
    "all padding": conv_shape((1, 1), (3, 3), (4, 4), before=(4, 4)),
}


@pytest.mark.sweep("layer", share=0.25)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_layers(direction: str, layer: str) -> None:
    check(LAYERS[layer], direction)


def rowed(shape: ConvShape, direction: str, seed: int = 0) -> bool:
    """A sweep with pixels in the vectors, whether or not it pays; False if it cannot be done so."""
    case = make_case(shape, seed)
    w, strides = layouts(case, seed)
    sweep = (forward_sweep if direction == "forward" else data_sweep)(shape, strides)
    if not conv_row.can_by_rows(sweep):
        return False
    names = SweepOperands("x", "y") if direction == "forward" else SweepOperands("g", "x")
    want, size = expected(case, direction), expected(case.sizes(), direction)
    plans = {threads: conv_row.row_plan("DIRECT", sweep, threads, host(), names, False) for threads in (1, 2, 16)}
    results = [execute(plan, case, w, direction, threads) for threads, plan in plans.items()]
    assert (abs(results[0] - want) <= 1e-6 * size + 1e-30).all()
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].view(np.uint32), other.view(np.uint32))
    return True


def test_rows_of_pixels() -> None:
    """Random shapes of one group, mostly with few channels; some longer than a tile, some with more taps than are unrolled."""
    done = {"forward": 0, "data_gradient": 0}
    for seed in range(60):
        rng = np.random.default_rng(seed + 2000)
        shape = random_shape(rng)
        wide = int(rng.choice([1, 5, 17, 70])), int(rng.choice([1, 1, 3, 9]))
        channels = int(rng.integers(1, 5)), int(rng.integers(1, 40)) if seed % 4 else 70
        stride = (*shape.stride[:-1], 1) if seed % 2 else (1, 1, 1)
        spatial, kernel = (*shape.spatial[:-1], shape.spatial[-1] + wide[0]), (*shape.kernel[:-1], wide[1])
        shape = conv_shape(spatial, kernel, channels, batch=shape.batch, stride=stride, before=(0, 2, 3), after=(2, 0, 30), dilation=shape.dilation)  # fmt: skip
        for direction in done:
            done[direction] += min(shape.out) >= 1 and rowed(shape, direction, seed)
    assert min(done.values()) >= 15, done


@pytest.mark.parametrize(("channels", "chosen"), [((1, 6), True), ((3, 8), True), ((64, 64), False)])
def test_few_channels_are_done_by_rows(channels: tuple[int, int], chosen: bool) -> None:
    """On every CPU, and whoever asks for the direct algorithm gets them."""
    shape = conv_shape((28, 28), (5, 5), channels, batch=8, before=(2, 2))
    strides = layouts(make_case(shape), 0)[1]
    for target in (host(), CpuTarget("x86_64", "x", "", 256, 16), CpuTarget("x86_64", "x", "", 512, 32), CpuTarget("aarch64", "x", "", 128, 32)):  # fmt: skip
        plan = conv.forward(shape, strides, 2, target)["DIRECT"]
        assert any(phase.symbol.startswith("conv_row.") for phase in plan.phases) is chosen


def scattered(shape: ConvShape, seed: int = 0) -> None:
    """The data gradient as products that are added up, on any CPU and for any number of channels."""
    case = make_case(shape, seed)
    w, strides = layouts(case, seed)
    sweep, names = data_sweep(shape, strides), SweepOperands("g", "x")
    want, size = expected(case, "data_gradient"), expected(case.sizes(), "data_gradient")
    plans = {threads: scatter_plan("GEMM", sweep, threads, host(), names) for threads in (1, 2, 16)}
    results = [execute(plan, case, w, "data_gradient", threads) for threads, plan in plans.items()]
    assert (abs(results[0] - want) <= 1e-6 * size + 1e-30).all()
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].view(np.uint32), other.view(np.uint32))


@pytest.mark.sweep(share=0.25)
@pytest.mark.parametrize("seed", range(16))
def test_scattered_products(seed: int) -> None:
    shape = random_shape(np.random.default_rng(seed + 1000))
    filters = shape.filters // shape.groups
    channels = shape.channels // shape.groups
    dilation = shape.dilation if seed % 2 else (*shape.dilation[:-1], 1)
    before, stride = shape.padding, shape.stride
    scattered(
        conv_shape(
            shape.spatial,
            shape.kernel,
            (channels, filters),
            batch=shape.batch,
            stride=stride,
            before=before,
            after=tuple(b + d * k for b, d, k in zip(before, dilation, shape.kernel, strict=True)),
            dilation=dilation,
        ),
        seed,
    )


@pytest.mark.parametrize(
    "shape",
    [
        conv_shape((29, 31), (7, 7), (3, 16), stride=(2, 2), before=(3, 3)),
        conv_shape((14, 14), (5, 5), (6, 16), batch=3),
        conv_shape((129, 40), (11, 11), (3, 20), stride=(4, 4), before=(2, 2)),  # more lines than bands of one height
    ],
)
def test_scattered_layers(shape: ConvShape) -> None:
    scattered(shape)


@pytest.fixture(params=[False, True], ids=["near", "far"])
def far(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether filter gradients are cut as if x could be read from the second cache, whatever is best on this CPU."""
    monkeypatch.setattr(conv_filter_plan, "_reads_far", lambda target: request.param)
    return bool(request.param)


def test_filter_gradient_of_many_pixels(far: bool) -> None:
    """Chunks of pixels, whose sums are added in order."""
    check(conv_shape((40, 40), (3, 3), (3, 5), batch=2, before=(1, 1)), "filter_gradient")


def test_filter_gradients_packed_and_in_place(far: bool) -> None:
    """Parts of runs, whole runs, several of them; lines that slabs cut; runs that only a block of one row divides."""
    shapes = [*LAYERS.values(), *(random_shape(np.random.default_rng(seed + 4000)) for seed in range(24))]
    shapes.append(conv_shape((28, 28), (5, 5), (6, 16), batch=3))
    shapes.append(conv_shape((23, 300), (3, 3), (4, 80), before=(1, 1)))
    shapes.append(conv_shape((9, 8), (2, 1), (37, 20)))
    for seed, shape in sampled("filter gradients", list(enumerate(shapes)), share=1.0):
        check(shape, "filter_gradient", seed)
    tiles = {conv_filter_tiles.in_place_tile(shape, host()) for shape in shapes if not shape.depthwise}
    assert len({tile.runs for tile in tiles}) > 1
    assert 1 in {tile.rows for tile in tiles}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("groups", [1, 16])
def test_no_images(direction: str, groups: int) -> None:
    """Nothing to compute, but the gradient of the filter is 0. As many channels as any vector has lanes: all algorithms apply."""
    check(conv_shape((6, 6), (3, 3), (16, 16), batch=0, groups=groups, before=(1, 1)), direction)


@pytest.mark.parametrize("direction", ["forward", "data_gradient"])
def test_packed_filter(direction: Any) -> None:
    """A filter packed beforehand gives the same bits."""
    shape = LAYERS["3x3 stride 2"] if direction == "data_gradient" else LAYERS["3x3"]
    case = make_case(shape)
    w = case.w.astype(np.float32)
    strides = element_strides(w)
    for name, plan in getattr(conv, direction)(shape, strides, 2, packed=True).items():
        pack, size = conv.packing(direction, name, shape, strides)
        packed = Fenced(size // 4)
        source = Guarded(w)
        run(pack, {"w": source.address, "w_packed": packed.address}, 2)
        packed.check()
        got = execute(plan, case, w, direction, 2, {"w_packed": packed.address, "w": 0})
        usual = execute(getattr(conv, direction)(shape, strides, 2)[name], case, w, direction, 2)
        np.testing.assert_array_equal(got.view(np.uint32), usual.view(np.uint32))


def test_gradients_of_filters_by_winograd() -> None:
    """Blocks of channels that do not divide them, tiles that reach over the edge, more tiles than a slab, chunks, several at once."""
    shapes = [
        conv_shape((7, 7), (3, 3), (80, 150), batch=2, before=(1, 1)),
        conv_shape((30, 34), (3, 3), (16, 16), batch=3, before=(2, 0), after=(0, 1)),
        conv_shape((9, 50), (3, 3), (33, 64), before=(0, 2)),
        conv_shape((5, 5), (3, 3), (130, 20), batch=70, before=(1, 1)),
    ]
    for seed, shape in enumerate(shapes):
        assert winograd_gradient_plan.gradient_applies(shape, host())
        for name in WINOGRAD:
            check(shape, "filter_gradient", seed, only=name)


@pytest.mark.parametrize("target", [CpuTarget("aarch64", "x", "", 128, 32), CpuTarget("x86_64", "x", "", 512, 32)])
def test_where_winograd_is_chosen(target: CpuTarget) -> None:
    """For 3 x 3 filters of common layers, in every direction; not for few channels, and not with a stride."""
    strides = (576, 9, 3, 1)
    for direction in DIRECTIONS:
        for channels in (64, 256):
            shape = conv_shape((32, 32), (3, 3), (channels, channels), batch=8, before=(1, 1))
            assert conv.choose(direction, shape, strides, 2, target).name.startswith("WINOGRAD")
        few = conv_shape((32, 32), (3, 3), (3, 64), batch=8, before=(1, 1))
        strided = conv_shape((32, 32), (3, 3), (64, 64), batch=8, before=(1, 1), stride=(2, 2))
        for shape in (few, strided):
            assert not conv.choose(direction, shape, strides, 2, target).name.startswith("WINOGRAD")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_choice(direction: Any) -> None:
    shape = LAYERS["3x3"]
    strides = (288, 9, 3, 1)
    plans = getattr(conv, direction)(shape, strides, 2)
    free = conv.choose(direction, shape, strides, 2)
    assert free.name in plans
    tight = conv.choose(direction, shape, strides, 2, workspace_limit=0)
    assert tight.workspace == min(p.workspace for p in plans.values())
    if len(plans) > 1:
        assert conv.choose(direction, shape, strides, 2, forbid=frozenset({free.name})).name != free.name
