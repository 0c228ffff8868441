"""parallel="auto": which splits are possible, which one is chosen, and that all processes choose the same."""

import re

import numpy as np
import pytest

import weft
from uncompiled import uncompiled
from weft import data, nn, train, zoo
from weft.errors import UserError
from weft.mesh.mesh import current
from weft.parallel.sizes import ParallelSizes, read_sizes
from weft.plan import LayerWork, MeasuredCluster, ParallelSplit, RankMeasures, StepWork
from weft.plan.step_work import BatchLine
from weft.train import auto_split
from weft.train.auto_split import ParallelChoice, PossibleSplits, agreed_choice, choose_parallel
from weft.train.making import TrainingPlan


def machine(cores=4, all_reduce=1e-5, slower=1.0):
    """A machine whose ranks slow each other down by a factor, with all-reduces of one latency and 1 GB/s."""
    sizes = (1e3, 1e6, 1e8)

    def measures(ranks):
        reduced = tuple((n, all_reduce + n / 1e9) for n in sizes) if ranks > 1 else ()
        factor = slower if ranks > 1 else 1.0
        compute = factor * 1e-3 + (all_reduce if ranks > 1 else 0.0)
        return RankMeasures(reduced, compute, compute, tuple((n, factor * n / 1e10) for n in sizes))

    return MeasuredCluster({n: measures(n) for n in (1, 2, 4)}, "a processor", cores, 1e11)


def examples(batch=32):
    x = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)
    return data.Loader(data.Arrays(x, np.arange(64) % 10), batch, drop_last=True)


def wide():
    weft.seed(0)
    return nn.Sequential(nn.Linear(16, 64, activation="relu"), nn.Linear(64, 64, activation="relu"), nn.Linear(64, 10))


def test_possible_splits_have_equal_parts_and_settings_that_allow_them():
    def possible(model, *, refused=(), batch=32, **settings):
        fits = PossibleSplits(model, examples(batch), TrainingPlan(**settings), refused)
        tried = [
            ParallelSplit(4),
            ParallelSplit(2, 2),
            ParallelSplit(1, 4),
            ParallelSplit(2, 1, 2),
            ParallelSplit(1, 1, 4),
            ParallelSplit(4, zero=1),
        ]
        return [str(split) for split in tried if fits(split)]

    with uncompiled():
        every = [
            "data:4",
            "data:2 model:2",
            "model:4",
            "data:2 pipeline:2",
            "data:4 zero:1",
        ]  # 3 layers are not 4 stages
        assert possible(wide()) == every
        assert possible(wide(), refused=["pipeline"]) == [s for s in every if "pipeline" not in s]
        assert possible(wide(), optimizer="lars") == every[:-1]
        assert possible(wide(), optimizer="sgd", settings={"zero": 1}) == ["model:4", "data:4 zero:1"]
        assert possible(wide(), batch=6) == ["data:2 model:2", "model:4", "data:2 pipeline:2"]


def test_layers_without_a_rule_leave_data_and_pipelines():
    x = np.random.default_rng(0).integers(0, 11, (16, 6))
    loader = data.Loader(data.Arrays(x, x), 8, drop_last=True)
    with uncompiled():
        model = zoo.char_lstm(11, hidden=8)
        model(weft.asarray(x[:1]))
        fits = PossibleSplits(model, loader, TrainingPlan(loss="cross_entropy"))
        assert fits(ParallelSplit(2))
        assert not fits(ParallelSplit(1, 2))


def step_work(step, batch):
    """As if it had been profiled: three layers that take a microsecond an example each, and as long with two threads."""
    layers = [
        LayerWork(
            f"layers.{i}", BatchLine(0, 1e-6), BatchLine(0, 2e-6), 4e3, output=256.0, split_sizes=((256.0, 256.0),)
        )
        for i in range(3)
    ]
    return StepWork(tuple(layers), 1e-6, 8e3)


@pytest.fixture
def choices(monkeypatch):
    """What is chosen for two processes, and for any number, on machines that differ in what ranks cost each other."""
    monkeypatch.setattr(auto_split, "measured_work", step_work)
    model, loader, plan = wide(), examples(), TrainingPlan("sgd", 0.1)
    quick, slow = machine(), machine(all_reduce=1.0, slower=4.0)
    return {
        "two": choose_parallel(model, loader, plan, 2, cluster=quick),
        "any": choose_parallel(model, loader, plan, cluster=quick),
        "any, slow": choose_parallel(model, loader, plan, cluster=slow),
        "two, slow": choose_parallel(model, loader, plan, 2, cluster=slow),
    }


def test_the_fastest_split_is_chosen_and_the_others_are_compared(choices):
    two = choices["two"]
    assert two.parallel == "data:2"
    assert two.why.startswith("data:2 is best: ")
    assert [line.split(":")[0] for line in two.why.splitlines()[1:]] == ["- data", "- data", "- model", "- pipeline"]
    assert choices["any"].sizes.processes >= 2
    assert "one process with" in choices["any"].why


def test_one_process_is_chosen_where_several_would_wait_for_each_other(choices):
    alone = choices["any, slow"]
    assert alone.sizes == ParallelSizes()
    assert re.fullmatch(r"one process with \d+ threads? takes .* a step, measured, and .* predicted", alone.why)
    assert choices["two, slow"].sizes.processes == 2, "processes that are there are used"


def test_only_cpus_of_one_machine_are_known():
    with uncompiled(), pytest.raises(UserError, match="parallel=auto is for CPUs, got reference"):
        choose_parallel(wide(), examples(), TrainingPlan(), 2, cluster=machine())


# --- several processes ------------------------------------------------------------------------------------------------------------


def chosen_together():
    def choose():
        assert weft.parallel.world().rank == 0, "the first process decides"
        return ParallelChoice(ParallelSizes(1, 2, 1), 0, "because")

    return agreed_choice(choose)


def fitted():
    """A training with parallel="auto"; the cost model is that of a test."""
    weft.seed(1)
    found = []
    auto_split.here_or_measured = lambda counts, tell: machine(cores=2)
    model = wide()
    train.fit(model, examples(), epochs=1, rate=1e-2, parallel="auto", on_split=found.append)
    return (
        found,
        {name: t.numpy().copy() for name, t in model.named_tensors().items()},
        current().axes,
    )


def test_all_processes_use_what_the_first_one_chooses(shared_pools):
    assert shared_pools[2].run(chosen_together) == [ParallelChoice(ParallelSizes(1, 2, 1), 0, "because")] * 2
    (told, weights, axes), (nothing, same, others) = shared_pools[2].run(fitted)
    assert told[0].startswith("parallel=")
    assert "was chosen: " in told[0]
    assert nothing == []
    assert axes == others
    assert all(np.array_equal(weights[name], same[name]) for name in weights)


def test_sizes_are_read_and_written():
    assert read_sizes("model:2,data:4", 1) == ParallelSizes(data=4, model=2)
    assert str(ParallelSizes(data=2, pipeline=3)) == "data:2,pipeline:3"
    assert read_sizes("data", 6).data == 6
    for text in ("data:2,data:2", "rows:2", "data:0", "model:x", ""):
        with pytest.raises(UserError, match="parallel is data:4, model:2, pipeline:2, several of them"):
            read_sizes(text, 4)
