"""A parameter server and two workers: bounds on staleness, determinism without any, convergence, failures."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import weft
from pipeline_tools import difference, mesh_of
from weft import nn, optim, parallel
from weft.errors import RunError, UserError
from weft.parallel.server_report import ServerReport, ServerUpdate

WORKERS = 2


@pytest.fixture(scope="module")
def trio():
    with parallel.RankPool(1 + WORKERS, threads=1) as made:
        yield made


def network(seed):
    weft.seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def batches_of(worker, steps):
    rng = np.random.default_rng(worker)
    xs = [rng.normal(size=(12, 6)).astype(np.float32) for _ in range(steps)]
    return [(x, x[:, :3].argmax(axis=1)) for x in xs]


def momentum(parameters):
    return optim.sgd(parameters, rate=0.1, momentum=0.5)


def slow_or_fast(worker, batches, folder, lead):
    """Worker 0 takes a batch only when worker 1 has taken the one `lead` steps further, and some time after that; whatever the load."""
    deadline = time.monotonic() + 30
    for number, batch in enumerate(batches):
        if worker == 1:
            Path(folder, str(number)).touch()
        elif lead is not None:
            while not Path(folder, str(number + lead)).exists():
                assert time.monotonic() < deadline, f"worker 1 may not take batch {number + lead}"
                time.sleep(0.001)
            time.sleep(0.005)
        yield batch


def trained(staleness, steps, folder, lead=None, updates=None):
    """What one process of a run has in the end: the report and all tensors. The networks begin with different values."""
    mesh = mesh_of(data=1 + WORKERS)
    model = network(seed=mesh.index("data"))
    made = parallel.ParameterServer(model, weft.cross_entropy, momentum, staleness=staleness)
    share = [] if made.is_server else batches_of(made.worker, steps[made.worker])
    report = made.run(slow_or_fast(made.worker, share, folder, lead), updates=updates)
    return report, {name: t.numpy().copy() for name, t in model.named_tensors().items()}


def simulated(steps):
    """The same in one process, synchronously: in each round all gradients are computed with the same parameters, then applied in order."""
    model = network(seed=0)
    optimizer, losses = momentum(model.parameters()), []
    compute = weft.jit(lambda x, y: _loss_and_gradients(model, x, y))
    apply = weft.jit(optimizer.step)
    shares = [batches_of(worker, count) for worker, count in enumerate(steps)]
    state = list(model.named_state().values())
    for number in range(max(steps)):
        found = []
        for worker, share in enumerate(shares):
            if number < len(share):
                before = [t.numpy().copy() for t in state]
                loss, gradients = compute(*share[number])
                losses.append(loss.item())
                found.append(gradients)
                if worker > 0:  # running statistics are those of the first worker
                    for tensor, value in zip(state, before, strict=True):
                        tensor.assign(value)
        for gradients in found:
            apply(gradients)
    return losses, {name: t.numpy() for name, t in model.named_tensors().items()}


def _loss_and_gradients(model, x, y):
    loss = weft.cross_entropy(model(x), y)
    return loss, weft.gradients(loss, model.parameters())


def test_without_staleness_processes_give_the_bits_of_one_that_applies_the_gradients_in_order(trio, tmp_path):
    """One worker is slower and has fewer batches: neither changes the result."""
    losses, wanted = simulated((4, 6))
    for report, tensors in trio.run(trained, 0, (4, 6), tmp_path, 0):
        assert difference(tensors, wanted) == 0.0
        assert [u.loss for u in report.updates] == losses
        assert [(u.worker, u.staleness) for u in report.updates] == [(0, 0), (1, 1)] * 4 + [(1, 0)] * 2
        assert {u.ahead for u in report.updates} == {0}


@pytest.mark.parametrize("bound", [1, 3])
def test_no_worker_gets_further_ahead_of_the_slowest_than_the_bound(trio, tmp_path, bound):
    (report, tensors), *others = trio.run(trained, bound, (6, 12), tmp_path, bound)
    shared = [u for u in report.updates if u.time <= report.of(0)[-1].time]
    done = [0, 0]
    for update in shared:
        done[update.worker] += 1
        assert max(done) - min(done) <= bound + 1
    assert max(u.ahead for u in report.of(1)) == bound  # the bound is reached, so something had to hold
    assert max(u.staleness for u in report.updates) <= 2 * bound + 1
    for report_there, tensors_there in others:
        assert report_there == report
        assert difference(tensors_there, tensors) == 0.0


@pytest.mark.slow
def test_without_a_bound_the_fast_worker_never_waits_for_the_slow_one(trio, tmp_path):
    (report, _), *_ = trio.run(trained, None, (100, 100), tmp_path, 8, 40)
    assert len(report.updates) == 40
    assert max(u.ahead for u in report.of(1)) >= 8
    assert sum(report.histogram().values()) == 40


@pytest.mark.slow
def test_training_with_stale_gradients_converges(trio, tmp_path):
    (report, _), *_ = trio.run(trained, 2, (150, 150), tmp_path)
    losses = [u.loss for u in report.updates]
    assert len(losses) == 300
    assert np.mean(losses[-20:]) < 0.35 * np.mean(losses[:20])


def test_a_process_alone_is_server_and_worker():
    parallel.Mesh(data=1)
    model = network(seed=0)
    made = parallel.ParameterServer(model, weft.cross_entropy, momentum, staleness=0)
    told = []
    report = made.run(batches_of(0, 5), updates=4, listener=told.append)
    assert told == list(report.updates)
    losses, wanted = simulated((4,))
    assert [u.loss for u in report.updates] == losses
    assert difference({n: t.numpy() for n, t in model.named_tensors().items()}, wanted) == 0.0


def test_a_report_is_a_table():
    rows = [(0, 0, 0, 0, 1.0, 1.0, 0.0, 1.0), (1, 0, 1, 0, 1.0, 1.0, 0.0, 1.5), (1, 1, 0, 1, 1.0, 0.5, 1.5, 3.0)]
    report = ServerReport(1, 2, tuple(ServerUpdate(*row) for row in rows))
    assert str(report).splitlines() == [
        "staleness 1, 2 workers: 3 updates, 1 a second",
        "worker 0: waited 0%, at most 0 steps ahead; stale by 1 x 0",
        "worker 1: waited 75%, at most 1 steps ahead; stale by 1 x 0, 1 x 1",
    ]


@pytest.mark.parametrize("wrong", [-1, 1.5, True])
def test_other_bounds_are_refused(wrong):
    parallel.Mesh(data=1)
    made = parallel.ParameterServer(network(0), weft.cross_entropy, momentum)
    with pytest.raises(UserError, match="updates is 0 or more in all, or None"):
        made.run([], updates=wrong)
    with pytest.raises(UserError, match="staleness is 0 or more steps, or None"):
        parallel.ParameterServer(network(0), weft.cross_entropy, momentum, staleness=wrong)


def killed():
    mesh = mesh_of(data=1 + WORKERS)
    made = parallel.ParameterServer(network(seed=0), weft.cross_entropy, momentum, staleness=None)
    made.run(_until_killed(mesh.index("data")))


def _until_killed(rank):
    for number, batch in enumerate(batches_of(rank, 3)):
        if rank == 2 and number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


def test_a_worker_that_dies_ends_the_run(trio):
    """The last test with these processes."""
    with pytest.raises(RunError, match="rank 2 (was killed by SIGKILL|died)"):
        trio.run(killed)
