"""The textbook comparison: synchronous all-reduce against a parameter server with staleness 0, 4 and without a bound, with one slow worker.

python benchmarks/parameter_server.py [updates]

All train the same network on the digits, by plain SGD, for as many gradients of 32 examples. A step takes a worker 4 ms. "One slow worker": the first
takes 16 ms for each. "Slow now and then": one step in ten, of any worker and at random, takes 40 ms. They sleep for that long, so that the figures depend little on the number of
cores. All-reduce averages the gradients of a round, so it makes fewer updates, with a learning rate that is larger by the number of workers.
"""

import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

import weft
from weft import data, nn, optim, parallel

WORKERS, BATCH, RATE = 3, 32, 0.3
SCENARIOS = ("one slow worker", "slow now and then")


class Row(NamedTuple):
    method: str
    loss: float  # of the test set
    accuracy: float
    gradients_per_second: float
    waiting: tuple[float, ...]  # the share of its time that each worker waited
    note: str


def network() -> nn.Sequential:
    weft.seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    source = getattr(data.open_dataset("digits"), split)
    x = np.asarray(source.x, np.float32)
    return x / x.max(), np.asarray(source.labels)


def step_seconds(scenario: str, worker: int) -> Iterator[float]:
    rng = np.random.default_rng([7, worker])
    while True:
        if scenario == "one slow worker":
            yield 0.016 if worker == 0 else 0.004
        else:
            yield 0.040 if rng.random() < 0.1 else 0.004


def endless_batches(scenario: str, worker: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of a worker, each after the time that a step takes it."""
    x, y = digits("train")
    rng = np.random.default_rng(worker)
    for seconds in step_seconds(scenario, worker):
        chosen = rng.choice(len(x), BATCH, replace=False)
        time.sleep(seconds)
        yield x[chosen], y[chosen]


def tested(model: nn.Module) -> tuple[float, float]:
    x, y = digits("test")
    scores = model.eval()(x)
    return weft.cross_entropy(scores, y).item(), float((scores.numpy().argmax(axis=1) == y).mean())


def with_server(scenario: str, staleness: int | None, updates: int) -> Row:
    """One of the processes: the first is the server."""
    parallel.Mesh(data=1 + WORKERS)
    model = network()
    training = parallel.ParameterServer(model, weft.cross_entropy, partial(optim.sgd, rate=RATE), staleness=staleness)
    batches = [] if training.worker is None else endless_batches(scenario, training.worker)
    report = training.run(batches, updates=updates)
    stale = [u.staleness for u in report.updates]
    note = f"mean staleness {np.mean(stale):.1f}, most {max(stale)}; ahead by at most {max(u.ahead for u in report.updates)}"
    name = f"server, {'unbounded' if staleness is None else f'staleness {staleness}'}"
    waiting = tuple(report.waiting(worker) for worker in range(WORKERS))
    return Row(name, *tested(model), report.updates_per_second, waiting, note)


def with_all_reduce(scenario: str, updates: int) -> Row:
    """One of the processes: all are workers."""
    mesh = parallel.Mesh(data=WORKERS)
    model = network()
    optimizer = optim.sgd(model, rate=RATE * WORKERS, axis="data")

    @weft.jit
    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    rounds, worker, waiting, begin = updates // WORKERS, mesh.index("data"), 0.0, 0.0
    batches = zip(range(rounds), endless_batches(scenario, worker), strict=False)
    for number, (x, y) in batches:
        computed = time.perf_counter()
        step(x, y).item()
        now = time.perf_counter()
        if number == 0:
            begin = now  # after compilation
        else:
            waiting += now - computed  # for the slowest: the step itself takes well below a millisecond
    seconds = time.perf_counter() - begin
    shares = parallel.all_gather(weft.asarray([waiting / seconds]), "data").numpy().ravel().tolist()
    return Row("all-reduce", *tested(model), (rounds - 1) * WORKERS / seconds, tuple(shares), "")


def main(updates: int) -> None:
    with parallel.RankPool(WORKERS, threads=1) as workers, parallel.RankPool(1 + WORKERS, threads=1) as all_processes:
        for scenario in SCENARIOS:
            rows = workers.run(with_all_reduce, scenario, updates)[:1]
            rows += [all_processes.run(with_server, scenario, bound, updates)[0] for bound in (0, 4, None)]
            print(
                f"\n| {scenario} | test loss | accuracy | gradients/s | the workers waited | |\n|---|---|---|---|---|---|"
            )
            for row in rows:
                waited = ", ".join(f"{share:.0%}" for share in row.waiting)
                figures = f"{row.loss:.3f} | {row.accuracy:.1%} | {row.gradients_per_second:.0f}"
                print(f"| {row.method} | {figures} | {waited} | {row.note} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 900)
