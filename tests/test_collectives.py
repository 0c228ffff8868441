"""Collectives between processes, against NumPy: every op, eager and compiled, with its derivative."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import weft
from rank_tools import mesh_of
from weft import parallel
from weft.compiler.cpu.collective.layout import Context
from weft.errors import RunError
from weft.mesh.channels import SLOT_BYTES, waiting_words
from weft.mesh.world import read_world


@pytest.fixture(params=[2, 4])
def pool(request, shared_pools):
    return shared_pools[request.param]


def values(rank, shape, dtype):
    rng = np.random.default_rng(100 + rank)
    return (
        (rng.normal(size=shape) * 8).astype(np.float32)
        if dtype in ("bfloat16", "float16")
        else (rng.normal(size=shape) * 8).astype(dtype)
    )


def tree(parts):
    while len(parts) > 1:
        parts = [sum(parts[i : i + 2][1:], parts[i]) for i in range(0, len(parts), 2)]
    return parts[0]


CASES = [
    ((), "float32"), ((0,), "float32"), ((7,), "float32"), ((33, 129), "float32"), ((SLOT_BYTES // 4 + 3,), "float32"),
    ((5, 3), "float64"), ((2, 3, 5), "int32"), ((9,), "int64"), ((1000,), "float16"), ((1000,), "bfloat16"),
]  # fmt: skip


def cases_of(size, compiled):
    """All dtypes with 2 processes; with more, those that are summed in different ways. Without `jit`, each op of each case is a program."""
    if not compiled:
        return [((33, 129), "float32"), ((9,), "int64")] if size == 4 else [((), "float32"), ((1000,), "float16")]
    return [(shape, dtype) for shape, dtype in CASES if size == 2 or dtype in ("float32", "int64", "float16")]


def every_collective(x, parts, size):
    return (
        parallel.all_reduce(x, "data"),
        parallel.all_reduce(x, "data", "max"),
        parallel.all_gather(x, "data"),
        parallel.reduce_scatter(parts, "data"),
        parallel.all_to_all(parts, "data"),
        parallel.broadcast(x, "data", size - 1),
        parallel.shift(x, "data", 1),
        parallel.shift(x, "data", -1),
        parallel.axis_index("data"),
    )


def collectives_of_one_process(kept):
    """One process: its collectives are left out, or kept to see what they cost."""
    mesh = mesh_of(data=1)
    mesh.keeps_single = kept
    x, parts = weft.asarray(values(0, (7,), "float32")), weft.asarray(values(0, (1, 7), "float32"))
    f = weft.jit(lambda x, parts: every_collective(x, parts, 1))
    try:
        return [[y.numpy() for y in f(x, parts)] for _ in range(3)][-1]
    finally:
        mesh.keeps_single = False


def apply_all(size, compiled):
    """All collectives on all cases: compiled, in one program."""
    rank = mesh_of(data=size).index("data")
    xs = [weft.asarray(values(rank, shape, dtype)).astype(dtype) for shape, dtype in cases_of(size, compiled)]
    partss = [weft.asarray(values(rank, (size, *s), dtype)).astype(dtype) for s, dtype in cases_of(size, compiled)]

    def f(xs, partss):
        return [every_collective(x, parts, size) for x, parts in zip(xs, partss, strict=True)]

    call = weft.jit(f) if compiled else f
    first, again = ([[y.astype("float64").numpy() for y in case] for case in call(xs, partss)] for _ in range(2))
    assert all(
        np.array_equal(a, b) for one, two in zip(first, again, strict=True) for a, b in zip(one, two, strict=True)
    )
    return first


def expected(size, shape, dtype):
    def rounded(a):
        return weft.asarray(a).astype(dtype).astype("float64").numpy()

    xs = [values(r, shape, dtype) for r in range(size)]
    partss = [values(r, (size, *shape), dtype) for r in range(size)]
    if dtype in ("bfloat16", "float16"):
        xs, partss = (
            [weft.asarray(a).astype(dtype).astype("float32").numpy() for a in group] for group in (xs, partss)
        )
    zeros = np.zeros(shape)
    for r in range(size):
        yield [
            rounded(tree(xs)),
            np.max(xs, axis=0),
            np.stack(xs),
            rounded(tree([p[r] for p in partss])),
            np.stack([p[r] for p in partss]),
            xs[-1],
            xs[r - 1] if r else zeros,
            xs[r + 1] if r + 1 < size else zeros,
            r,
        ]


@pytest.mark.parametrize("compiled", [False, True])
def test_every_collective_gives_what_numpy_gives(pool, compiled):
    found = pool.run(apply_all, pool.size, compiled)
    for number, (shape, dtype) in enumerate(cases_of(pool.size, compiled)):
        for rank, wanted in enumerate(expected(pool.size, shape, dtype)):
            for got, want in zip(found[rank][number], wanted, strict=True):
                assert np.array_equal(got, np.asarray(want, np.float64)), (shape, dtype, rank)


GRADIENTS = {
    "all_reduce": lambda x: parallel.all_reduce(x, "data"),
    "max": lambda x: parallel.all_reduce(x, "data", "max"),
    "all_gather": lambda x: parallel.all_gather(x, "data"),
    "reduce_scatter": lambda x: parallel.reduce_scatter(x, "data"),
    "all_to_all": lambda x: parallel.all_to_all(x, "data"),
    "broadcast": lambda x: parallel.broadcast(x, "data", 1),
    "shift": lambda x: parallel.shift(x, "data", 1),
}  # fmt: skip


def gradients_of_all(size):
    """The gradient of a loss of each collective, all in one program."""
    rank = mesh_of(data=size).index("data")
    weights = weft.asarray(values(rank, (size, 3), "float64"))
    x = weft.asarray(values(rank + 10, (size, 3), "float64"))

    def loss(x, op):
        y = GRADIENTS[op](x)
        return (y * (weights if y.ndim > 1 else weights[0])).sum()

    found = weft.jit(lambda x: {op: weft.grad(partial(loss, op=op))(x) for op in GRADIENTS})(x)
    return {op: gradient.numpy() for op, gradient in found.items()}


def test_derivatives_are_those_of_the_sum_of_all_losses(pool):
    """Each process has a loss of its own; the gradient is that of their sum, so it is found by differences over all of them at once."""
    n = pool.size
    weights = [values(r, (n, 3), "float64") for r in range(n)]
    xs = np.stack([values(r + 10, (n, 3), "float64") for r in range(n)])

    def losses(xs, op):
        results = {
            "all_reduce": lambda r: xs.sum(0), "max": lambda r: xs.max(0), "all_gather": lambda r: xs,
            "reduce_scatter": lambda r: xs[:, r].sum(0), "all_to_all": lambda r: xs[:, r], "broadcast": lambda r: xs[1],
            "shift": lambda r: xs[r - 1] if r else np.zeros_like(xs[0]),
        }  # fmt: skip
        ys = [results[op](r) for r in range(n)]
        return sum((y * (w if y.ndim > 1 else w[0])).sum() for y, w in zip(ys, weights, strict=True))

    found = pool.run(gradients_of_all, n)
    for op in GRADIENTS:
        wanted = np.zeros_like(xs)
        for place in np.ndindex(xs.shape):
            moved = xs.copy()
            moved[place] += 1e-6
            wanted[place] = (losses(moved, op) - losses(xs, op)) / 1e-6
        assert np.allclose([mine[op] for mine in found], wanted, atol=1e-5), op


def transformed_outside_of_compiled_functions(size):
    """Sums of several examples at once, and two gradients that each rank reads in an order of its own."""
    rank = mesh_of(data=size).index("data")
    xs = weft.asarray(np.arange(4.0).reshape(2, 2) + rank)
    together = weft.vmap(lambda x: parallel.all_reduce(x, "data"))(xs)
    gradients = [weft.grad(lambda x: (parallel.all_reduce(x, "data") ** 2).sum())(x) for x in xs]
    read = {i: gradients[i].tolist() for i in ((0, 1) if rank else (1, 0))}
    return together.tolist(), [read[0], read[1]]


def test_transforms_of_collectives_run_in_the_order_of_their_calls(shared_pools):
    sums = [[1.0, 3.0], [5.0, 7.0]]
    found = shared_pools[2].run(transformed_outside_of_compiled_functions, 2)
    assert found == [(sums, [[4 * y for y in row] for row in sums])] * 2


def other_programs(size):
    x = weft.ones(3 + mesh_of(data=size).index("data"))
    with pytest.raises(RunError) as error:
        weft.jit(lambda x: parallel.all_reduce(x, "data"))(x)
    return str(error.value)


def test_ranks_that_run_other_programs_are_told(pool):
    others = [i for i in range(pool.size) if i != 1]
    message = f"all ranks must run the same program, got one on rank 1 of the axis 'data' that differs from that of ranks {others}"
    assert message in pool.run(other_programs, pool.size)[1]


def two_axes():
    mesh = mesh_of(data=2, model=2)
    here = float(mesh.world.rank)
    f = weft.jit(lambda x: (parallel.all_reduce(x, "data"), parallel.all_reduce(x, "model")))
    return [y.item() for y in f(weft.asarray(here))]


def test_collectives_run_along_one_axis_of_a_mesh(pool):
    if pool.size == 4:
        assert pool.run(two_axes) == [[2.0, 1.0], [4.0, 1.0], [2.0, 5.0], [4.0, 5.0]]


def many_threads():
    mesh_of(data=2)
    x = weft.asarray(np.arange(20_003, dtype=np.float32))
    f = weft.jit(lambda x: parallel.all_reduce(weft.sin(x) @ weft.ones((20_003, 64)), "data"))
    return f(x).numpy().tobytes(), parallel.all_reduce(x, "data").numpy()[-1]


# --- what goes wrong ------------------------------------------------------------------------------------------------------------


def other_order():
    mesh = mesh_of(data=2)
    calls = [lambda: parallel.all_reduce(weft.ones(3), "data"), lambda: parallel.all_gather(weft.ones(3), "data")]
    for call in calls if mesh.index("data") else reversed(calls):
        call()


def one_fails():
    mesh = mesh_of(data=2)
    if mesh.index("data"):
        raise ValueError("no luck")
    parallel.all_reduce(weft.ones(3), "data")


def one_ends():
    import os

    mesh = mesh_of(data=2)
    if mesh.index("data"):
        os._exit(3)
    parallel.all_reduce(weft.ones(3), "data")


def other_mesh():
    """Without a check, each waits in a group of its own."""
    mesh = parallel.Mesh(a=2) if parallel.world().rank else parallel.Mesh(a=1, b=2)
    parallel.all_reduce(weft.ones(3), next(axis for axis, size in mesh.axes if size == 2))


def test_processes_may_have_several_threads_and_another_order_ends_them(shared_pools):
    with parallel.RankPool(2, threads=3) as threaded:
        results = [shared_pools[2].run(many_threads), threaded.run(many_threads)]
        assert len({part for result in results for part, _ in result}) == 1
        assert results[0][0][1] == 40_004.0
        with pytest.raises(RunError, match="runs another program than the other ranks, or runs it in another order"):
            threaded.run(other_order)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (one_fails, r"rank 1 failed: ValueError: no luck \(test_collectives.py"),
        (other_mesh, r"all ranks must create the same mesh, got Mesh\(a=2\) on rank 1"),
        (one_ends, "rank 1 (died|ended with exit status 3)"),
    ],
)
def test_a_failure_ends_all_processes_with_its_reason(function, message):
    with pytest.raises(RunError, match=message):
        parallel.run(function, 2)


def test_ranks_are_read_from_the_variables_of_launchers():
    world = read_world({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"})
    assert (world.rank, world.size, world.launcher) == (1, 4, "Open MPI")
    with pytest.raises(
        weft.errors.UserError, match="below the number of ranks is required, got RANK=4 and WORLD_SIZE=4"
    ):
        read_world({"RANK": "4", "WORLD_SIZE": "4"})


@pytest.mark.parametrize(("lanes", "yields"), [(1, False), (1 << 20, True)])
def test_only_processes_that_share_cores_yield_them(lanes, yields):
    """Other programs would have a core that is yielded for milliseconds."""
    words = waiting_words(SimpleNamespace(size=1, stop_address=0), lanes)
    assert (words[Context.YIELDS] > 0, words[Context.SPINS] == 0) == (yields, yields)


def test_one_process_needs_no_launcher():
    parallel.Mesh(data=1)
    assert parallel.all_reduce([1.0, 2.0], "data").tolist() == [1.0, 2.0]
    assert parallel.all_gather([1.0], "data").shape == (1, 1)
    with pytest.raises(weft.errors.UserError, match="needs 4 ranks, got 1. Start them with: weft launch -n 4"):
        parallel.Mesh(data=4)


def different_histories(size):
    """Eager collectives of values that only some processes have to compute first."""
    mesh = mesh_of(data=size)
    found = []
    for step in range(2 * weft.knobs.compile_after + 2):
        x = weft.ones(3) * float(step)
        if mesh.index("data") == 0:
            x = weft.exp(x * 0.0) * x
        found.append(parallel.all_reduce(x, "data").tolist())
    return found


def test_collectives_outside_of_compiled_functions_need_no_equal_programs(shared_pools):
    """Code that recurs is compiled; what recurs in one process need not recur in another."""
    for found in shared_pools[2].run(different_histories, 2):
        assert found == [[2.0 * step] * 3 for step in range(len(found))]


def reduced_arrays(size):
    """Prepared all-reduces of arrays, called several times, with other collectives in between."""
    rank = mesh_of(data=size).index("data")
    sums, most = values(rank, (SLOT_BYTES // 4 + 3,), "float32"), values(rank, (2, 3), "int64")
    add, highest = parallel.ArrayReduction(sums, "data"), parallel.ArrayReduction(most, "data", "max")
    for _ in range(2):
        assert add() is sums
        parallel.barrier("data")
        highest()
    return sums, most


def test_arrays_are_reduced_in_place_without_a_graph(pool):
    size = len(pool.run(identity, 0))
    parts = [values(rank, (SLOT_BYTES // 4 + 3,), "float32") for rank in range(size)]
    for sums, most in pool.run(reduced_arrays, size):
        np.testing.assert_array_equal(sums, size * tree(parts))
        np.testing.assert_array_equal(most, np.max([values(rank, (2, 3), "int64") for rank in range(size)], axis=0))


@pytest.mark.parametrize("array", [[1.0], np.ones((4, 3), np.float32).T, np.broadcast_to(np.float32(1), 3)])
def test_arrays_that_cannot_be_reduced_in_place(array):
    parallel.Mesh(data=1)
    with pytest.raises(weft.errors.UserError, match="a contiguous NumPy array that can be written is required, got"):
        parallel.ArrayReduction(array, "data")


def identity(x):
    return x
