"""Collectives on GPUs: several processes, each with a fake GPU of its own, and a fake NCCL between them (see fake_nccl.py)."""

import sys
import time
from types import ModuleType

import numpy as np
import pytest

import weft
from rank_tools import mesh_of
from test_collectives import collectives_of_one_process, every_collective, expected, values
from test_split_layers import one_process, split_case
from uncompiled import uncompiled
from weft import data, nn, optim, parallel, train
from weft.compiler.thresholds import thresholds
from weft.errors import RunError, UserError
from weft.jobs.parallel_training import with_ranks
from weft.jobs.queue.needs import needs_of
from weft.mesh.world import World, read_world
from weft.ops.collective import all_reduce_many
from weft.optim import sharing

pytest.importorskip("triton")
import fake_nccl
from weft.runtime.cuda import nccl as nccl_module
from weft.runtime.cuda.device import own_gpu

# Whole, in parts, of every kind that is combined in its own way, and without elements.
CASES = {
    2: [((33, 29), "float32"), ((1000,), "bfloat16"), ((9,), "int64"), ((0,), "float32")],
    4: [((203,), "float16"), ((7, 5), "float32")],
}


@pytest.fixture(params=[2, 4])
def pool(request, shared_pools):
    return shared_pools[request.param]


def on_gpus(function, *args, late=True):
    with fake_nccl.installed(late) as (gpu, nccl):
        return function(*args), nccl.calls, gpu.replayed


def collectives_of(size):
    """All collectives on all cases, in one program that runs as it is, is recorded, and replayed."""
    rank = mesh_of(data=size).index("data")
    xs = [weft.asarray(values(rank, shape, dtype)).astype(dtype) for shape, dtype in CASES[size]]
    partss = [weft.asarray(values(rank, (size, *s), dtype)).astype(dtype) for s, dtype in CASES[size]]

    @weft.jit
    def f(xs, partss):
        return [every_collective(x, parts, size) for x, parts in zip(xs, partss, strict=True)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thresholds, "gpu_gathered_sum", 100)
        runs = [[[y.numpy().astype(np.float64) for y in case] for case in f(xs, partss)] for _ in range(4)]
    for again in runs[1:]:
        assert all(np.array_equal(a, b) for x, y in zip(runs[0], again, strict=True) for a, b in zip(x, y, strict=True))
    return runs[0]


@pytest.mark.parametrize("late", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_collective_gives_what_numpy_gives(pool, late):
    """NumPy sums in weft's tree: so do GPUs, to the bit, and so do CPUs (test_collectives.py)."""
    found = pool.run(on_gpus_late if late else on_gpus_early, collectives_of, pool.size)
    assert len({tuple("messages" if "recv" in c or "send" in c else c for c in calls) for _, calls, _ in found}) == 1
    assert all(replayed >= 2 for *_, replayed in found)
    for number, (shape, dtype) in enumerate(CASES[pool.size]):
        for rank, wanted in enumerate(expected(pool.size, shape, dtype)):
            for got, want in zip(found[rank][0][number], wanted, strict=True):
                assert np.array_equal(got, np.asarray(want, np.float64)), (shape, dtype, rank)


def on_gpus_late(function, *args):
    return on_gpus(function, *args)


def on_gpus_early(function, *args):
    return on_gpus(function, *args, late=False)


def eager(size):
    """Outside of compiled functions: operands may depend on the rank."""
    rank = mesh_of(data=size).index("data")
    total = parallel.all_reduce(weft.ones(3) * (1 + rank), "data")
    several = [parallel.all_gather(weft.ones(2) * rank, "data").numpy().tolist() for _ in range(3)]
    pair = all_reduce_many([weft.ones(2) * (1 + rank), weft.ones(1) * (2 + 2 * rank)], "data")
    parallel.barrier("data")
    return total.tolist(), several[-1], [x.tolist() for x in pair]


def test_collectives_run_when_they_are_called(shared_pools):
    for (total, gathered, pair), calls, _ in shared_pools[2].run(on_gpus_late, eager, 2):
        assert total == [3.0] * 3
        assert gathered == [[0.0, 0.0], [1.0, 1.0]]
        assert pair == [[3.0, 3.0], [6.0]]
        assert calls == ["all_reduce", "all_gather", "all_gather", "all_gather", "all_reduce+all_reduce", "all_reduce"]


def two_axes():
    mesh = mesh_of(data=2, model=2)
    f = weft.jit(lambda x: (parallel.all_reduce(x, "data"), parallel.all_reduce(x, "model")))
    return [y.item() for y in f(weft.asarray(float(mesh.world.rank)))]


def test_each_axis_of_a_mesh_has_a_communicator(shared_pools):
    found = [result for result, *_ in shared_pools[4].run(on_gpus_late, two_axes)]
    assert found == [[2.0, 1.0], [4.0, 1.0], [2.0, 5.0], [4.0, 5.0]]


# --- training -----------------------------------------------------------------------------------------------------------------------


def trained(size, steps=4, **settings):
    """The weights after some steps of a perceptron, every process with examples of its own."""
    if size > 1:
        settings["axis"] = "data"
    rank = mesh_of(data=size).index("data") if size > 1 else 0
    weft.seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 3))
    optimizer = optim.adam(model, rate=1e-2, **settings)

    @weft.jit
    def step(x, y):
        with optimizer.in_micro_batch():
            loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    parts = settings.get("accumulate", 1)
    for number in range(steps):
        for part in range(parts):
            rng = np.random.default_rng(100 * number + rank * parts + part)
            step(rng.normal(size=(8, 6)).astype(np.float32), rng.integers(0, 3, 8))
    return [p.numpy().copy() for p in model.parameters()]


def with_small_buckets(size, **settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "BUCKET_BYTES", 1000)
        return trained(size, **settings)


@pytest.mark.parametrize(
    ("size", "zero"),
    [(2, 0), *(pytest.param(n, z, marks=pytest.mark.slow) for n, z in [(2, 1), (2, 2), (4, 0), (4, 1), (4, 2)])],
)
def test_processes_give_the_bits_of_one_that_accumulates(shared_pools, size, zero):
    with fake_nccl.installed():
        wanted = trained(1, accumulate=size)
    with uncompiled():
        defined = trained(1, accumulate=size)
    for mine, calls, replayed in shared_pools[size].run(on_gpus_late, with_zero, size, zero):
        assert all(map(np.array_equal, mine, wanted))
        for a, b in zip(mine, defined, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        assert replayed >= 2
        assert len(calls) >= 4 * 3  # several buckets a step


def with_zero(size, zero):
    return with_small_buckets(size, zero=zero)


def no_waiting(size):
    """Steps from the third on: the recorded graph is replayed, and nothing else happens."""
    mesh_of(data=size)
    model = nn.Linear(6, 3)
    optimizer = optim.sgd(model, rate=0.1, axis="data")

    @weft.jit
    def step(x, y):
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    gpu = weft.device("cuda").gpu
    x, y = np.ones((4, 6), np.float32), np.zeros(4, np.int64)
    first = step(x, y).item()
    for _ in range(5):
        step(x, y)
    before = gpu.replayed, gpu.downloads
    for _ in range(6):
        last = step(x, y)
    return (gpu.replayed - before[0], gpu.downloads - before[1]), last.item() < first


def test_no_host_waits_in_a_step(shared_pools):
    assert [result for result, *_ in shared_pools[2].run(on_gpus_late, no_waiting, 2)] == [((6, 0), True)] * 2


def fitted(size):
    """`fit` on the digits. The weights, and what it reports."""
    weft.seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    splits = data.open_dataset("digits")
    some, held_out = data.Subset(splits.train, np.arange(96)), data.Subset(splits.test, np.arange(30))
    result = train.fit(
        model, some, held_out, batch=48, epochs=1, rate=1e-2, seed=1, prepare=data.ToFloat(), micro_batches=2,
        parallel=f"data:{size}",
    )  # fmt: skip
    return [p.numpy().copy() for p in model.parameters()], result.history[-1]["train_accuracy"]


def test_fit_trains_on_the_gpus_of_all_processes(shared_pools):
    with fake_nccl.installed():
        weights, accuracy = fitted(1)
    for (mine, told), calls, _ in shared_pools[2].run(on_gpus_late, fitted, 2):
        assert all(map(np.array_equal, mine, weights))
        assert told == pytest.approx(accuracy, abs=1e-6)
        assert any("all_reduce" in call for call in calls)


def split_layers(case):
    mesh_of(model=2)
    losses, result, *_ = split_case(case, "float32", False)
    return losses, result


@pytest.mark.parametrize(
    "case",
    [
        "mlp by output and input",
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for case in ("transformer", "lenet by region", "residual by batch")
        ),
    ],
)
def test_layers_are_split_between_gpus(shared_pools, case):
    with uncompiled():
        losses, result, *_ = one_process(case, "float32", False)
    for (mine, got), calls, _ in shared_pools[2].run(on_gpus_late, split_layers, case):
        np.testing.assert_allclose(mine, losses, rtol=1e-4)
        np.testing.assert_allclose(got, result, rtol=1e-3, atol=1e-4)
        assert calls


def test_collectives_of_one_process_can_be_kept():
    (kept, calls, _), (left_out, no_calls, _) = (on_gpus(collectives_of_one_process, kept) for kept in (True, False))
    assert all(map(np.array_equal, kept, left_out))
    assert not no_calls
    assert {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "send+recv"} <= set(calls)


# --- what goes wrong ------------------------------------------------------------------------------------------------------------------


def one_ends_in_a_step():
    """The other one waits for it on its GPU: the control page tells it why that will never end."""
    mesh = mesh_of(data=2)
    with fake_nccl.installed():
        step = weft.jit(lambda x: parallel.all_reduce(x * 2, "data"))
        for _ in range(3):
            step(weft.ones(3)).numpy()
        if mesh.index("data"):
            raise ValueError("no luck")
        step(weft.ones(3)).numpy()


@pytest.mark.slow
def test_a_process_that_fails_ends_what_waits_on_gpus():
    start = time.monotonic()
    with pytest.raises(RunError, match=r"rank 1 failed: ValueError: no luck \(test_nccl.py"):
        parallel.run(one_ends_in_a_step, 2)
    assert time.monotonic() - start < 60


def told_of_failure(path):
    """Rank 0 says that rank 1 has failed, and leaves; rank 1 waits for it on its GPU, and notes what it is told."""
    mesh = mesh_of(data=2)
    with fake_nccl.installed():
        step = weft.jit(lambda x: parallel.all_reduce(x * 2, "data"))
        step(weft.ones(3)).numpy()
        if mesh.index("data") == 0:
            time.sleep(1.0)
            weft.mesh.connection.control_page().give_up(1, "is out of luck.")
            return ""
        try:
            step(weft.ones(3)).numpy()
        except RunError as error:
            path.write_text(str(error))
        return ""


def test_who_waits_for_a_gpu_is_told_why(tmp_path):
    with parallel.RankPool(2) as pool, pytest.raises(RunError, match="rank 1 is out of luck"):
        pool.run(told_of_failure, tmp_path / "told")
    assert "[parallel] rank 1 is out of luck." in (tmp_path / "told").read_text()


def other_order():
    mesh = mesh_of(data=2)
    with fake_nccl.installed():
        first = weft.jit(lambda x: parallel.all_reduce(x, "data"))
        second = weft.jit(lambda x: parallel.all_gather(x, "data"))
        for f in (first, second):
            f(weft.ones(3)).numpy()
        for f in (first, second) if mesh.index("data") else (second, first):
            f(weft.ones(3)).numpy()


def test_another_order_of_programs_ends_the_processes():
    with pytest.raises(RunError, match="runs another program than the other ranks, or runs it in another order"):
        parallel.run(other_order, 2)


def same_gpu():
    mesh_of(data=2)
    with fake_nccl.installed() as (gpu, _):
        gpu.bus = lambda: "0000:3b:00.0"
        with pytest.raises(UserError, match="NCCL needs a GPU for each process, and the ranks 0, 1 share one") as error:
            weft.jit(lambda x: parallel.all_reduce(x, "data"))(weft.ones(3))
        return str(error.value)


def test_two_processes_cannot_share_a_gpu(shared_pools):
    assert all("Start as many processes as there are GPUs" in told for told in shared_pools[2].run(same_gpu))


def test_users_without_nccl_are_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "nccl.bindings.nccl", None)
    hint = r"need NCCL and the package nccl4py .*pip install '\.\[cuda\]'"
    with pytest.raises(UserError, match=hint):
        nccl_module.bindings()
    without_library = ModuleType("nccl.bindings.nccl")
    without_library.get_version = raising(RuntimeError('Failure finding "libnccl.so.2"\nand more'))
    monkeypatch.setitem(sys.modules, "nccl.bindings.nccl", without_library)
    with pytest.raises(UserError, match=r'\(Failure finding "libnccl.so.2"\)\. Install'):
        nccl_module.bindings()


def raising(error):
    def raise_it():
        raise error

    return raise_it


def test_each_process_has_the_gpu_of_its_number_on_its_machine():
    told = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    assert own_gpu(read_world(told), 4) == 1
    assert own_gpu(World(5, 8), 4) == 1  # nobody told it: machines have as many processes as GPUs
    assert own_gpu(World(5, 8, local_rank=3), 1) == 0  # the only one that it may see
    with pytest.raises(
        UserError, match="there are 2, and rank 5 is number 3 on this machine. Start 2 processes or fewer"
    ):
        own_gpu(World(5, 8, local_rank=3), 2)


def test_a_training_over_processes_has_a_gpu_for_each_of_them():
    told = {"device": "cuda", "parallel": "data:2"}
    assert (needs_of("train", told).gpus, needs_of("train", {**told, "parallel": None}).gpus) == (2, 1)
    with pytest.raises(UserError, match="device=cuda:1 is one GPU, and each process needs its own"):
        with_ranks({**told, "device": "cuda:1"})
