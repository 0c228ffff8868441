"""Sorts, scatters and running totals as kernels for NVIDIA GPUs, run under Triton's interpreter: they agree with NumPy, bit by bit alike."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import weft
from triton_build import SPECIALS, special_sources
from weft import nn, optim
from weft.compiler.gpu.program import commands, gpu_program
from weft.compiler.gpu.special import cumulative as cumulate
from weft.compiler.gpu.special import scatter, sort
from weft.compiler.thresholds import thresholds
from weft.dtypes import DTYPES, bfloat16, bool_
from weft.errors import RunError
from weft.graph.graph import close as close_graph
from weft.graph.node import Type, placeholder
from weft.ops.indexing import scatter as scatter_op
from weft.ops.reduce import _CUMPROD, _CUMSUM
from weft.runtime.reference import interpret
from weft.testing import close, counted
from weft.testing.checks import _define

pytest.importorskip("triton")
import triton_runner
from triton_runner import run_graph, run_program, training_step

RNG = np.random.default_rng(11)
CUMULATIVE = {"cumsum": _CUMSUM, "cumprod": _CUMPROD}


def made(f, *arrays):
    return run_graph(weft.make_graph(f, *arrays), [np.asarray(a) for a in arrays])


def numbers(shape, dtype, spread=4.0):
    """Numbers of a dtype, many of them equal."""
    found = np.round(RNG.normal(size=shape) * spread)
    if dtype is bool_:
        return found > 0
    return (np.abs(found) if dtype.kind == "uint" else found).astype(dtype.numpy)


@pytest.fixture
def small(monkeypatch):
    """Small runs, tiles and blocks: small tensors go the ways of large ones."""
    for module, sizes in {
        sort: {"RUN": 16, "SORTED": 32, "COMPARED": 8, "MERGED": 64},
        scatter: {
            "FLAT": 64,
            "LANES": 16,
            "ROW_LANES": 16,
            "STRIP": 4,
            "BLOCK": 8,
            "TILE": 32,
            "CLEARED": 32,
            "MERGED": 64,
            "SORTED": 32,
        },
        cumulate: {"TILE": 32, "SIDE": 4, "BUSY": 12},
    }.items():
        for name, value in sizes.items():
            monkeypatch.setattr(module, name, value)


# --- argsort --------------------------------------------------------------------------------------------------------------------


def sorts(x, axis=-1, descending=False):
    [found] = made(lambda x: weft.argsort(x, axis=axis, descending=descending), x)
    with weft.knobs.set(device="reference"):
        expected = weft.argsort(weft.asarray(x), axis=axis, descending=descending).numpy()
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, expected)
    counted()


@pytest.mark.sweep("dtype", share=0.3)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_all_types_sort(dtype, descending):
    x = numbers((5, 37), dtype)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        x[0, :6] = limits.min, limits.max, 0, limits.max, limits.min, 1
    if dtype.is_float:
        x[0, :9] = np.nan, np.inf, -0.0, 0.0, -np.inf, -np.nan, -0.0, 1e-3, -1e-3
    sorts(x, descending=descending)


@pytest.mark.parametrize(
    ("shape", "axis"), [((7,), 0), ((1,), 0), ((3, 1, 4), 1), ((70, 3), 0), ((2, 33, 5), 1), ((0, 4), 1)]
)
def test_any_axis_sorts(shape, axis):
    sorts(RNG.normal(size=shape).astype(np.float32), axis)


@pytest.mark.sweep("dtype", share=0.3)
@pytest.mark.parametrize("dtype", ["int8", "float32", "uint64"])
@pytest.mark.parametrize(("shape", "axis"), [((2, 33), 1), ((3, 64), 1), ((65,), 0), ((2, 150), 1)])
def test_long_lines_are_merged(small, dtype, shape, axis):
    dtype = weft.dtypes.as_dtype(dtype)
    sorts(numbers(shape, dtype, spread=30.0), axis)
    assert len(sort.merges(shape[axis])) >= 1


def test_runs_are_merged_again_and_again(small):
    sorts(RNG.normal(size=300).astype(np.float32))
    assert sort.merges(300) == [16, 64, 256]


def test_wide_keys_sort_by_both_halves(small):
    few = np.array([3, -(1 << 40), 1 << 33, (1 << 33) + 5, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, -1, 0])
    sorts(RNG.choice(few, 50))
    sorts(RNG.choice(few, 50), descending=True)
    sorts(RNG.choice(few, 90).astype(np.float64) * 1.000000001)


def test_lines_of_real_size_sort():
    sorts(RNG.normal(size=(2, 600)).astype(np.float32))
    sorts(RNG.integers(0, 50, 1500).astype(np.int32))


# --- cumsum and cumprod -----------------------------------------------------------------------------------------------------------


def totals(op, x, axis):
    here = placeholder(object(), Type(x.shape, weft.asarray(x).dtype))
    graph = close_graph([here], [weft.graph.make(CUMULATIVE[op], (here,), (axis,))])
    [found] = run_graph(graph, [x])
    assert found.dtype == x.dtype
    with np.errstate(all="ignore"):
        expected = _define(CUMULATIVE[op], [x], (axis,))
    if not here.dtype.is_float:
        expected = getattr(np, op)(x, axis=axis, dtype=x.dtype)  # integers wrap, bools stay bools
    close(found, expected, here.dtype)
    return found


SHAPES = [
    ((5,), 0), ((1,), 0), ((3, 40), 1), ((40, 3), 0), ((2, 70, 3), 1), ((9, 33), 1), ((33, 9), 0), ((200,), 0), ((150, 2), 0),
]  # fmt: skip


@pytest.mark.sweep("op", share=0.3)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("op", CUMULATIVE)
def test_any_shape_is_totalled(small, op, shape, axis):
    totals(op, RNG.uniform(0.9, 1.1, shape).astype(np.float32), axis)
    totals(op, RNG.integers(-5, 6, shape), axis)


@pytest.mark.sweep("dtype", share=0.3)
@pytest.mark.parametrize("op", CUMULATIVE)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_all_types_are_totalled(small, op, dtype):
    x = numbers((3, 70), dtype) if not dtype.is_float else RNG.uniform(-1.2, 1.2, (3, 70)).astype(dtype.numpy)
    totals(op, x, 1)
    totals(op, np.ascontiguousarray(x.T), 0)


def test_few_long_lines_are_cut(small):
    graph = weft.make_graph(lambda x: weft.cumulative_sum(x, axis=1), np.zeros((2, 999), np.float32))
    [launch, second] = commands(gpu_program(graph, {}))
    assert "tl.sum(total" in launch.kernel.body
    assert "tl.cumsum" in second.kernel.body
    assert launch.kernel.programs > 4


def test_lines_of_real_size_are_totalled():
    totals("cumsum", RNG.normal(size=(20_000,)).astype(np.float32), 0)
    totals("cumsum", RNG.normal(size=(300, 50)).astype(bfloat16.numpy), 0)


def test_products_do_not_overflow_on_the_way():
    x = np.array([0.0, 1e200, 1e200, 3.0, 1e200, 1e-200, 1e-200, 1e-200])
    assert not totals("cumprod", x, 0).any()
    assert np.signbit(totals("cumsum", np.array([-0.0, -0.0, 1.0], np.float32), 0)).tolist() == [True, True, False]


# --- scatter ----------------------------------------------------------------------------------------------------------------------


def scatters(x, values, indices, axes, how):
    def f(x, values, *indices):
        return scatter_op(x, values, list(indices), axes, how)

    graph = weft.make_graph(f, x, values, *indices)
    [found] = run_graph(graph, [x, values, *indices])
    assert found.dtype == x.dtype
    with np.errstate(all="ignore"):
        expected = _define(graph.outputs[0].op, [x, values, *indices], (axes, how))
    dtype = weft.asarray(x).dtype
    close(found, expected if dtype.is_float else expected.astype(x.dtype), dtype)


WAYS = [
    ((50, 7), (120,), (0,)), ((6, 5), (4, 3), (1,)), ((9,), (100,), (0,)), ((3, 4, 5), (60,), (2, 0)), ((3, 4, 5), (40,), (1,)),
    ((4, 3), (30,), (0, 1)), ((1, 1), (9,), (0,)), ((200, 3), (2,), (0,)), ((5, 33), (64,), (0,)), ((2, 3), (1,), (1,)), ((7, 2), (), (0,)),
]  # fmt: skip


def some_indices(shape, index, axes):
    return [np.asarray(RNG.integers(-shape[a], shape[a], index)) for a in axes]


@pytest.mark.sweep("how", share=0.3)
@pytest.mark.parametrize("how", ["set", "add"])
@pytest.mark.parametrize(("shape", "index", "axes"), WAYS)
def test_any_shape_is_scattered(small, shape, index, axes, how):
    rest = tuple(n for a, n in enumerate(shape) if a not in axes)
    x, values = (RNG.normal(size=s).astype(np.float32) for s in (shape, (*index, *rest)))
    scatters(x, values, some_indices(shape, index, axes), axes, how)


@pytest.mark.sweep("dtype", share=0.3)
@pytest.mark.parametrize("how", ["set", "add"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_all_types_are_scattered(small, dtype, how):
    x, values = numbers((5, 3), dtype), numbers((40, 3), dtype, spread=30.0)
    scatters(x, values, [RNG.integers(0, 5, 40)], (0,), how)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.is_integer], ids=lambda d: d.name)
def test_indices_of_all_types(small, dtype):
    index = RNG.integers(0, 6, 40).astype(dtype.numpy)
    if dtype.kind == "int":
        index[::3] -= 6
    scatters(np.zeros((6, 2), np.float32), RNG.normal(size=(40, 2)).astype(np.float32), [index], (0,), "add")


@pytest.mark.parametrize("how", ["set", "add"])
def test_many_indices_for_one_row(small, how):
    """Ranges of the list that begin and end within blocks, cover many, or fill them exactly."""
    for counts in [(100,), (8, 16, 8), (3, 29, 1, 15), (7, 8, 9), (1,) * 20, (0, 32, 0, 5)]:
        index = RNG.permutation(np.repeat(np.arange(len(counts)), counts))
        values = RNG.normal(size=(index.size, 3)).astype(np.float32)
        scatters(np.ones((len(counts), 3), np.float32), values, [index], (0,), how)


@pytest.mark.sweep(share=1.0)
@pytest.mark.parametrize("kind", [weft.float32, bfloat16, weft.int32, bool_], ids=lambda d: d.name)
def test_few_indices_for_many_rows(small, kind):
    """As in an embedding: programs belong to indices. Rows of one tile and of several, named once, by whole blocks, and by more."""
    for counts, columns in (((1, 0, 1), 5), ((3, 29, 1, 15), 37), ((40,), 16), ((8, 16, 8), 3)):
        index = RNG.permutation(np.repeat(RNG.permutation(50)[: len(counts)], counts))
        x, values = numbers((50, columns), kind), numbers((index.size, columns), kind)
        assert len(x) > index.size
        scatters(x, values, [index], (0,), "add")
        scatters(np.zeros_like(x), values, [index], (0,), "add")


@pytest.fixture
def chunked(small, monkeypatch):
    """Small chunks of the indices: a few dozen go the way of many that name few rows."""
    for name, value in {"CHUNK": 8, "GROUP": 4, "COMBINED": 4}.items():
        monkeypatch.setattr(scatter, name, value)
    with thresholds.set(gpu_scatter_rows=9, gpu_scatter_indices=24, gpu_scatter_bytes=3 * 9 * 20 * 4):
        yield


@pytest.mark.sweep("dtype", share=0.3)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize(("shape", "index", "axes"), [
    ((9, 16), (24,), (0,)), ((5, 37), (13, 3), (0,)), ((3, 4, 2), (50,), (2,)), ((4, 3, 2), (31,), (2, 0)), ((1,), (100,), (0,)),
])  # fmt: skip
def test_many_indices_for_few_rows(chunked, shape, index, axes, dtype):
    """Each chunk of the indices has a sum for every row: whole chunks and a last one that is not, one tile of columns and several."""
    rest = tuple(n for a, n in enumerate(shape) if a not in axes)
    x, values = numbers(shape, dtype), numbers((*index, *rest), dtype)
    with thresholds.set(gpu_scatter_bytes=1 << 20):
        scatters(x, values, some_indices(shape, index, axes), axes, "add")
        scatters(np.zeros_like(x), values, some_indices(shape, index, axes), axes, "add")


@pytest.mark.parametrize(
    ("rows", "count", "columns"), [(9, 24, 20), (9, 23, 20), (10, 24, 2), (9, 24, 21), (9, 25, 20)]
)
def test_which_rows_are_few(chunked, rows, count, columns):
    """Few rows, many indices, and sums that take little memory."""
    x, values = np.zeros((rows, columns), np.float32), np.ones((count, columns), np.float32)
    sources = special_sources(lambda x, v, i: scatter_op(x, v, [i], (0,), "add"), x, values, np.arange(count) % rows)
    assert (len(sources) == 2) == ((rows, count, columns) == (9, 24, 20))


def test_sums_of_few_rows_take_little_memory():
    """The gradient of an embedding of 128 wide rows: a sum for every row of every chunk would take half a gigabyte."""
    for count, columns, limit in ((65_536, 1024, 16 << 20), (16_384, 64, 16 << 20)):
        types = Type((128, columns), weft.float32), Type((count, columns), weft.float32), Type((count,), weft.int32)
        program = gpu_program(weft.make_graph(lambda x, v, i: scatter_op(x, v, [i], (0,), "add"), *types), {})
        assert program.memory.arena <= limit


def test_what_is_not_finite_stays_in_its_row(chunked):
    index, values = np.arange(48) % 6, RNG.normal(size=(48, 3)).astype(np.float32)
    values[[7, 14, 20]] = np.nan, np.inf, -np.inf
    scatters(np.ones((6, 3), np.float32), values, [index], (0,), "add")


@pytest.mark.parametrize("place", [0, 5, 26])
def test_wrong_indices_for_few_rows_are_reported(chunked, place):
    index = np.arange(27) % 6
    index[place] = 6
    with pytest.raises(RunError, match="index 6 is out of range for axis 0 of size 6"):
        scatters(np.zeros((6, 2), np.float32), np.ones((27, 2), np.float32), [index], (0,), "add")


def test_no_index_and_no_element():
    x, none = np.ones((3, 2), np.float32), np.zeros(0, np.int64)
    scatters(x, np.zeros((0, 2), np.float32), [none], (0,), "add")
    scatters(x, np.zeros((0, 2), np.float32), [none], (0,), "set")
    scatters(x[:, :0], np.zeros((4, 0), np.float32), [np.array([1, 2, 0, 1])], (0,), "add")


@pytest.mark.parametrize("how", ["set", "add"])
@pytest.mark.parametrize("wrong", [6, -7, 1 << 40])
def test_wrong_indices_are_reported(how, wrong):
    x, values, index = np.zeros((2, 6), np.float32), np.ones((4, 2), np.float32), np.array([0, 5, wrong, -6])
    with pytest.raises(RunError, match=rf"index {wrong} is out of range for axis 1 of size 6"):
        scatters(x, values, [index], (1,), how)
    with pytest.raises(RunError, match=rf"index {wrong} is out of range for axis 1 of size 6"):
        made(lambda x, v, i: scatter_op(x, v, [i], (1,), how), x[:0], values[:, :0], index)
    with pytest.raises(RunError, match="index 200 is out of range"):
        made(lambda x, v, i: scatter_op(x, v, [i], (1,), how), x, values, np.array([0, 5, 200, 1], np.uint8))


def test_zeros_are_not_read():
    f, *arrays = PROGRAMS["the gradient of an embedding"]
    written = special_sources(f, *arrays)[-1]
    assert TABLE.shape not in [n.shape for n in written.arguments if n not in written.writes]
    kept = special_sources(lambda t, v, i: scatter_op(t, v, [i], (0,), "add"), TABLE, TABLE, np.arange(30))[-1]
    assert [n.shape for n in kept.arguments if n not in kept.writes].count(TABLE.shape) == 2


def test_a_scatter_of_real_size():
    index = np.minimum(RNG.integers(0, 400, 1100), 299)  # a quarter of them the same
    scatters(np.zeros((300, 20), np.float32), RNG.normal(size=(1100, 20)).astype(np.float32), [index], (0,), "add")
    values = RNG.normal(size=(2100, 20)).astype(np.float32)
    scatters(np.zeros((65, 20), np.float32), values, [RNG.integers(0, 65, 2100)], (0,), "add")


# --- the same bits, whatever comes first ---------------------------------------------------------------------------------------------


def backwards(source):
    last = source.programs - 1
    return replace(source, body=source.body.replace("tl.program_id(0)", f"({last} - tl.program_id(0))"))


@pytest.mark.parametrize("name", ["set", "add", "add few", "argsort", "wide argsort", "cumsum"])
def test_programs_may_run_in_any_order(small, monkeypatch, name):
    x, index = RNG.normal(size=(3, 40)).astype(np.float32), RNG.integers(0, 3, 50)
    values = RNG.normal(size=(50, 40)).astype(np.float32)
    if name == "add few":
        name = "add"
        monkeypatch.setattr(thresholds, "gpu_scatter_indices", 24)
        for constant, value in {"CHUNK": 8, "GROUP": 4}.items():
            monkeypatch.setattr(scatter, constant, value)
    ways = {
        "argsort": (lambda x: weft.argsort(x), x), "wide argsort": (lambda x: weft.argsort(x), x.astype(np.float64)),
        "cumsum": (lambda x: weft.cumulative_sum(x, axis=0), x.reshape(60, 2)),
    }  # fmt: skip
    f, *arrays = ways.get(name) or (lambda x, v, i: scatter_op(x, v, [i], (0,), name), x, values, index)
    [found] = made(f, *arrays)
    run = triton_runner.run_kernel
    monkeypatch.setattr(triton_runner, "run_kernel", lambda source, given: run(backwards(source), given))
    [again] = made(f, *arrays)
    assert found.tobytes() == again.tobytes()
    counted()


def test_floats_are_never_added_by_atomics():
    bodies = [source.body for case in SPECIALS for source in special_sources(*case)]
    assert not any("atomic_add" in body for body in bodies)
    assert sum("atomic_max" in body for body in bodies) == 1


# --- whole programs -----------------------------------------------------------------------------------------------------------------


TABLE, WORDS = RNG.normal(size=(30, 6)).astype(np.float32), RNG.integers(0, 30, (4, 50))
PROGRAMS = {
    "the gradient of an embedding": (weft.grad(lambda t, i: (weft.embedding(t, i) ** 2).sum()), TABLE, WORDS),
    "elements written by index": (lambda t, i: t.at[i[0], i[1] % 6].set(2.0) * 2.0, TABLE, WORDS),
    "sorted, twice": (lambda t: weft.sort(weft.sort(t, axis=0) + 1.0, axis=1, descending=True), TABLE),
    "the greatest few": (lambda t: weft.top_k(t * 3.0, 2).values.sum(axis=1), TABLE),
    "running totals of a part": (lambda t: weft.cumulative_sum(t[3:], axis=0) - weft.cumulative_prod(t[:, :4], axis=1)[3:, :1], TABLE),
    "the gradient of running totals": (weft.grad(lambda t: (weft.cumulative_sum(t, axis=1) ** 2).sum()), TABLE),
    "the gradient of a sort": (weft.grad(lambda t: (weft.sort(t, axis=0) * weft.arange(30)[:, None]).sum()), TABLE),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(small, name):
    f, *arrays = PROGRAMS[name]
    graph = weft.make_graph(f, *arrays)
    expected = interpret(graph)(*arrays)
    for actual, e, node in zip(run_program(gpu_program(graph, {}), arrays), expected, graph.outputs, strict=True):
        close(actual, e, node.dtype, slack=4.0)


def test_an_embedding_is_trained(small):
    """Words become vectors, and a step of an optimizer reaches exactly those of the batch."""
    weft.seed(3)
    model = nn.Sequential(nn.Embedding(20, 5), nn.Flatten(), nn.Linear(None, 3))
    words, classes = RNG.integers(0, 20, (6, 4)), RNG.integers(0, 3, 6)
    model(weft.asarray(words[:1]))
    graph, updates, arrays = training_step(model, optim.sgd(model, 0.1), words, classes)
    expected = interpret(graph)(*arrays)
    found = run_program(gpu_program(graph, updates), arrays)
    for actual, e, node in zip(found, expected, graph.outputs, strict=True):
        close(actual, e, node.dtype, slack=4.0)


# --- code for GPUs, without one -----------------------------------------------------------------------------------------------------


def test_they_compile_for_gpus():
    """In a process of its own: interpreting is for a whole process."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    script = Path(__file__).parent / "triton_build.py"
    command = [sys.executable, str(script), "special"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("built") >= 40
    counted(40)
