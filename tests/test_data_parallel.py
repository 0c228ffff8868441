"""Data-parallel training: several processes give the bits of one that accumulates the same micro-batches."""

import itertools
from typing import ClassVar

import numpy as np
import pytest

import weft
from rank_tools import mesh_of
from uncompiled import uncompiled
from weft import data, metrics, nn, optim, train
from weft.data.loader import Loader, Shard
from weft.errors import UserError
from weft.parallel import synchronize_batch_norms


def network():
    weft.seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4 * 6 * 6, 10)
    )


def fitted(parallel=None, micro_batches=4, epochs=2, device="reference", **settings):
    """The weights after a training, and its history. Without compiling, which would take most of the time."""
    with uncompiled() if device == "reference" else weft.knobs.set(device=device):
        return trained(parallel, micro_batches, epochs, **settings)


def trained(parallel, micro_batches, epochs, **settings):
    model, splits = network(), data.open_dataset("digits")
    some = data.Subset(splits.train, np.arange(144))
    result = train.fit(
        model, some, data.Subset(splits.test, np.arange(90)), batch=48, epochs=epochs, rate=1e-2, seed=1,
        prepare=data.ToFloat(), parallel=parallel, micro_batches=micro_batches, **settings,
    )  # fmt: skip
    return {name: t.numpy().copy() for name, t in model.named_tensors().items()}, result.history


def equal(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def alone():
    """What one process gives, by its device."""
    return {device: fitted(device=device) for device in ("reference", "cpu")}


@pytest.mark.parametrize(
    ("size", "zero", "device"),
    [
        (2, 0, "reference"),
        (2, 2, "cpu"),
        (4, 1, "reference"),
        *(
            pytest.param(*more, marks=pytest.mark.slow)
            for more in itertools.product((2, 4), (0, 1, 2), ("cpu",))
            if more[:2] != (2, 2)
        ),
    ],
)
def test_processes_give_the_bits_of_one_that_accumulates(shared_pools, alone, size, zero, device):
    pool = shared_pools[size]
    weights, history = alone[device]
    for mine, told in pool.run(fitted_with, pool.size, {"zero": zero, "device": device}):
        assert equal(weights, mine)  # running statistics too: they see the micro-batches in their order
        assert told[-1]["train_accuracy"] == pytest.approx(history[-1]["train_accuracy"], abs=1e-6)
        assert told[-1]["validation_loss"] == pytest.approx(history[-1]["validation_loss"], rel=1e-3)


def fitted_with(size, settings):
    return fitted(f"data:{size}", **settings)


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_a_checkpoint_is_whole_and_goes_on_with_another_number_of_processes(shared_pools, size, tmp_path, alone):
    pool = shared_pools[size]
    first = pool.run(fitted_with, pool.size, {"epochs": 1, "zero": 2, "folder": str(tmp_path / "run")})
    weights, history = fitted(epochs=2, folder=str(tmp_path / "run"), resume=True, micro_batches=None)
    assert len(first[0][1]) == 1
    assert len(history) == 2
    assert equal(weights, alone["reference"][0])
    again = pool.run(fitted_with, pool.size, {"epochs": 3, "zero": 1, "folder": str(tmp_path / "run"), "resume": True})
    assert equal(again[0][0], again[-1][0])
    assert [row["epoch"] for row in again[0][1]] == [1, 2, 3]


class Largest(metrics.Metric):
    """The largest logit: not a sum over examples."""

    combine: ClassVar = {"most": "max"}

    def __init__(self):
        self.most = weft.asarray(0.0).realize()

    def update(self, prediction, target):
        self.most.assign(weft.maximum(self.most, prediction.max()))

    def value(self):
        return self.most + 0.0


class Positives(metrics.AUC):
    def update(self, prediction, target):
        super().update(weft.softmax(prediction)[:, 3], target == 3)


def measured(parallel=None):
    found = fitted(parallel, epochs=1, metrics={"most": Largest, "auc": Positives})[1][0]
    return {name: found[name] for name in ("train_most", "validation_most", "train_auc", "validation_auc")}


def test_metrics_that_are_no_means_are_those_of_all_examples(shared_pools):
    wanted = measured()
    for found in shared_pools[2].run(measured, "data:2"):
        assert found == pytest.approx(wanted, rel=1e-6)


class Stopped(Exception):
    pass


def stopped(size, folder):
    """A training that ends without a warning in its second batch; there is a checkpoint of the first one."""

    def count(now):
        if now.step == 2 * 4 // size:
            raise Stopped

    with pytest.raises(Stopped):
        fitted(f"data:{size}", on_step=count, folder=folder, save_seconds=0.0)


@pytest.mark.parametrize(("size", "then"), [(2, 4), (4, 1)])
def test_an_epoch_goes_on_with_another_number_of_processes(shared_pools, tmp_path, alone, size, then):
    """With the micro-batches that it began with, unless others are asked for."""
    folder = str(tmp_path / "run")
    shared_pools[size].run(stopped, size, folder)
    again = {"folder": folder, "resume": True, "micro_batches": None}
    found = fitted(**again) if then == 1 else shared_pools[then].run(fitted_with, then, again)[0]
    assert equal(found[0], alone["reference"][0])
    assert [row["train_accuracy"] for row in found[1]] == pytest.approx([row["train_accuracy"] for row in alone["reference"][1]])  # fmt: skip


def clipped(size):
    """A step with each optimizer that has state, and a limit on the norm."""
    with weft.knobs.set(device="reference"):
        return clipped_steps(mesh_of(data=size) if size > 1 else None)


def clipped_steps(mesh):
    rank = mesh.index("data") if mesh else 0
    results = {}
    for name in ("sgd", "adamw", "lion", "rmsprop"):
        for zero in (0, 2):
            weft.seed(1)
            model = nn.Linear(5, 3)
            model(weft.zeros((1, 5)))
            axis = {"axis": "data", "zero": zero} if mesh else {"accumulate": 2}
            optimizer = getattr(optim, name)(model, rate=0.1, clip_norm=0.5, **axis)
            step = weft.jit(lambda x, model=model, optimizer=optimizer: optimizer.minimize((model(x) ** 2).mean()))
            rng = np.random.default_rng(0)
            for _ in range(3):
                batches = rng.normal(size=(2, 4, 5)).astype(np.float32)
                for x in batches[rank : rank + 1] if mesh else batches:
                    step(x)
            results[name, zero] = [p.numpy().copy() for p in model.parameters()]
    return results


def test_every_optimizer_averages_and_clips_alike(shared_pools):
    wanted = clipped(1)
    for found in shared_pools[2].run(clipped, 2):
        for key, weights in found.items():
            assert all(np.allclose(a, b, rtol=1e-6, atol=1e-7) for a, b in zip(weights, wanted[key], strict=True))


def overflowing(size, zero):
    """Parameters and counts after steps with a loss scale. In two of them one of four micro-batches overflows."""
    with weft.knobs.set(device="reference"):
        mesh = mesh_of(data=size) if size > 1 else None
        weft.seed(1)
        model, scale, own = nn.Linear(5, 3), weft.LossScale(grow_after=3), 4 // size
        optimizer = optim.adam(
            model, rate=0.1, clip_norm=0.5, accumulate=own, **({"axis": "data", "zero": zero} if mesh else {})
        )
        step = weft.jit(lambda x: optimizer.minimize((model(x) ** 2).mean(), scale))
        batches = np.random.default_rng(0).normal(size=(8, 4, 4, 5)).astype(np.float32)
        batches[2, 1] = batches[5, 3] = 1e30
        first = own * mesh.index("data") if mesh else 0
        for batch in batches:
            for x in batch[first : first + own]:
                step(x)
        counts = (optimizer.steps, optimizer.calls, scale.scale, scale.good_steps)
        return [p.numpy().copy() for p in model.parameters()], [t.item() for t in counts]


@pytest.mark.parametrize(("size", "zero"), [(2, 0), (2, 2), (4, 1)])
def test_an_overflow_in_one_micro_batch_skips_the_whole_update(shared_pools, size, zero):
    """As it does with one process that accumulates; clipping by the norm has its bits, too, whoever has which part of the gradients."""
    wanted, counts = overflowing(1, 0)
    assert counts == [6, 0, 8192.0, 2]  # of 8 updates; 2^15 doubled once, halved three times
    for weights, found in shared_pools[size].run(overflowing, size, zero):
        assert found == counts
        assert all(np.array_equal(a, b) for a, b in zip(weights, wanted, strict=True))


def collectives(size, settings):
    """The collectives of a step that is one of four, outside and inside of what runs at the last one only."""
    mesh_of(data=size)
    weft.seed(1)
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2))
    optimizer = optim.adam(model, rate=0.1, accumulate=4, axis="data", **settings)
    step = weft.jit(lambda x: optimizer.minimize((model(x) ** 2).mean()))
    outside = [n.op.name for n in step.lower(np.ones((4, 5), np.float32)).nodes if n.op.name in ("cond", *COLLECTIVES)]
    return outside, {name for name in COLLECTIVES if f"{name}(" in step.text(np.ones((4, 5), np.float32))}


COLLECTIVES = ("all_gather", "all_reduce", "all_reduce_bucket", "reduce_scatter")


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({}, {"all_reduce_bucket"}),
        ({"zero": 1, "clip_norm": 1.0}, {"all_reduce", "all_reduce_bucket", "all_gather"}),
        ({"zero": 2}, {"reduce_scatter", "all_gather"}),
    ],
)
def test_processes_that_accumulate_exchange_nothing_until_the_update(shared_pools, settings, sent):
    for outside, inside in shared_pools[2].run(collectives, 2, settings):
        assert set(outside) == {"cond"}
        assert inside == sent


def alone_and_apart(size):
    """Local SGD, and a batch norm over all processes, beside what they should give."""
    mesh = mesh_of(data=size)
    rng = np.random.default_rng(5)
    batches = rng.normal(size=(4, size, 3, 2)).astype(np.float32)
    mine = batches[:, mesh.index("data")]
    w = weft.parameter(np.ones(2, np.float32))
    optimizer = optim.sgd([w], rate=0.1, axis="data", local_steps=2)
    step = weft.jit(lambda x: optimizer.minimize(((x @ w) ** 2).mean()))
    for x in mine:
        step(x)
    return w.numpy().copy(), normalized(batches[:, :, :, :, None], mesh)


def normalized(batches, mesh=None):
    """A network with a batch norm after two steps: over all processes, or of one process with whole batches."""
    weft.seed(1)
    model = nn.Sequential(nn.Conv1d(2, 4, 1), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 1))
    model(weft.zeros((2, 2, 1)))
    if mesh is not None:
        synchronize_batch_norms(model)
    optimizer = optim.sgd(model, rate=0.1, momentum=0.9, axis=None if mesh is None else "data")
    step = weft.jit(lambda x: optimizer.minimize((model(x) ** 2).mean()))
    for batch in batches[:2]:
        step(batch[mesh.index("data")] if mesh is not None else batch.reshape(-1, 2, 1))
    return [t.numpy().copy() for t in model.named_tensors().values()]


def test_local_sgd_and_synchronized_batch_norm(shared_pools):
    pool = shared_pools[2]
    rng = np.random.default_rng(5)
    batches = rng.normal(size=(4, pool.size, 3, 2)).astype(np.float32)
    ws = np.ones((pool.size, 2), np.float32)
    for number, each in enumerate(batches.astype(np.float64), 1):
        ws = np.stack([w - 0.1 * 2 * (x * (x @ w)[:, None]).mean(0) for w, x in zip(ws, each, strict=True)])
        ws = np.broadcast_to(ws.mean(0), ws.shape) if number % 2 == 0 else ws
    whole = normalized(batches[:, :, :, :, None])
    for w, tensors in pool.run(alone_and_apart, pool.size):
        assert np.allclose(w, ws[0], rtol=1e-5)
        assert all(np.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(tensors, whole, strict=True))


def test_micro_batches_follow_the_order_of_the_epoch():
    class Numbers:
        labels = np.arange(26)

        def __len__(self):
            return 26

        def inputs(self, indices):
            return np.asarray(indices)

    def seen(*shard):
        return [
            x.tolist() for x, _ in Loader(Numbers(), 8, shuffle=False, drop_last=True, shard=Shard(*shard)).arrays()
        ]

    assert seen(4, 0, 4) == [[2 * i, 2 * i + 1] for i in range(12)]
    assert seen(4, 2, 2) == [[4, 5], [6, 7], [12, 13], [14, 15], [20, 21], [22, 23]]
    assert seen(2, 1, 1) == [[4, 5, 6, 7], [12, 13, 14, 15], [20, 21, 22, 23]]
    with pytest.raises(UserError, match="cut into 3 equal micro-batches"):
        Loader(Numbers(), 8, drop_last=True, shard=Shard(3, 0, 1))


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"parallel is data:4, model:2, .* got 'modle:2'. Did you mean model?"):
        fitted(parallel="modle:2")
    with pytest.raises(
        UserError, match="accumulate=2 is for one rank.* use micro_batches=4 and a batch 2 times as large"
    ):
        fitted(micro_batches=2, accumulate=2)
    with pytest.raises(
        UserError, match="a batch of 48 examples cannot be divided into 5 equal .* Use batch=45 or batch=50"
    ):
        fitted(micro_batches=5)
    with pytest.raises(UserError, match="3 examples .all of the training data. cannot be divided into 4 .* Use fewer"):
        x = np.zeros((3, 1, 8, 8), np.float32)
        train.fit(network(), (x, np.arange(3)), micro_batches=4)
    with pytest.raises(UserError, match="needs 2 ranks, got 1"):
        fitted(parallel="data:2")
    with pytest.raises(UserError, match="zero is 0, 1 or 2"):
        optim.sgd(nn.Linear(2, 2), rate=0.1, zero=3)
