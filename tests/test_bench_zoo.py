"""The sweep over the zoo: random networks stay the same, and every network of the catalogue has a twin where torch is installed."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.zoo.catalogue import FACTS

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [BENCHMARKS, *sys.path])


def test_random_networks_run_and_stay_the_same() -> None:
    from cases.random_networks import random_network

    for seed in range(10):
        network, shape = random_network(seed)
        assert str(network) == str(random_network(seed)[0])
        assert network.eval()(weft.zeros((1, *shape[1:]))).ndim == 2
    assert len({random_network(seed)[1] for seed in range(10)}) > 5


def test_the_sweep_holds_the_whole_catalogue() -> None:
    from cases import zoo_networks

    names = [n.name for n in zoo_networks.networks()]
    assert set(FACTS) <= set(names)
    assert len(names) == len(set(names)) >= len(FACTS) + zoo_networks.RANDOM


def test_twins_compute_the_same() -> None:
    pytest.importorskip("torch")
    from cases import zoo_contestants, zoo_networks
    from cases.measure import difference

    found = {n.name: n for n in zoo_networks.networks(batch=2)}
    for name in ("lenet5", "resnet20", "gru", "random 2"):
        place = zoo_contestants.Place()
        theirs = zoo_contestants.contestants(found[name], False, place, False)["torch"]().values()
        made = zoo_contestants.WeftInference(found[name], place)
        assert difference(theirs, made.work().values()) < 1e-5
        assert made.sensitivity() > 1e-2  # or else any two networks would agree


def test_batch_norms_begin_with_statistics_that_normalize() -> None:
    from cases import zoo_networks

    [network] = [n for n in zoo_networks.networks(batch=4) if n.name == "resnet20"]
    model, again = network.model().eval(), network.model().eval()
    x, other = (weft.asarray(network.batch(seed)[0]) for seed in (0, 1))
    before, after = model(x).numpy(), model(other).numpy()
    assert np.abs(before - after).max() > 0.1 * np.abs(before).max()
    np.testing.assert_allclose(again(x).numpy(), before, rtol=0, atol=1e-5 * np.abs(before).max())


def test_the_roof_is_measured_by_code_that_computes_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from cases import roof

    monkeypatch.setattr(roof, "ELEMENTS", 1 << 14)
    found = roof.measure(1)
    assert min(found.flops, found.read, found.triad) > 0
    code, count = roof.load(roof._module()), 1 << 12
    source, total = np.arange(2 * count, dtype=np.float32), np.zeros(count, np.float32)
    pointers = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    code.function("triad_loop", pointers)(count, total.ctypes.data, source.ctypes.data)
    assert (total == source[:count] + 3 * source[count:]).all()
    source[:] = 1
    code.function("read_loop", pointers)(count, total.ctypes.data, source.ctypes.data)
    assert total[: roof.host().lanes(32)].sum() == count


def test_a_busy_process_runs_beside_what_is_timed_and_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from cases import contended, measure

    psutil = pytest.importorskip("psutil")
    earlier = set(psutil.Process().children())  # of tests before, in this process
    beside: list[int] = []

    def call() -> None:
        beside.append(len(set(psutil.Process().children()) - earlier))

    def never(layers: object) -> float:
        raise AssertionError

    case = measure.Case("work", "name", {"weft": lambda: measure.Ready(call, list)}, beside=contended.busy)
    row = measure.run(case, measure.Effort(0.1, 2, 1), never)
    assert row.best_weft == "weft"
    assert set(beside) == {contended.BUSY}
    assert not set(psutil.Process().children()) - earlier
    monkeypatch.setattr(contended, "PRODUCTS", {"512 square"})
    monkeypatch.setattr(contended, "STEPS", set())
    assert [c.group for c in contended.cases(quick=True)] == ["matrix product beside a busy process"]
