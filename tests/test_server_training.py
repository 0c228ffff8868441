"""Trainings with a parameter server: against one process where they are deterministic, interrupted, killed, and what they refuse."""

import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

import weft
from rank_tools import call
from uncompiled import uncompiled
from weft import data, nn, parallel, train
from weft.errors import RunError, UserError
from weft.jobs.parallel_checks import left_out
from weft.jobs.schema import validated
from weft.jobs.settings import SETTINGS
from weft.jobs.training import resume
from weft.jobs.training import train as jobs_train

EXAMPLES, BATCH = 144, 24
PER_EPOCH = EXAMPLES // BATCH


def network(dropout):
    weft.seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout), nn.Linear(4 * 6 * 6, 10)
    )  # fmt: skip


class Deadly(data.Subset):
    """Examples that kill a rank when it has read so many batches."""

    rank, left = -1, 0

    def inputs(self, indices):
        if parallel.world().rank == self.rank and len(indices) == BATCH:
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().inputs(indices)


def fitted(parallel=None, epochs=2, device="reference", kills=None, dropout=0.0, **settings):
    """The weights after a training, its history, how it ended, and what was told of the split."""
    with uncompiled() if device == "reference" else weft.knobs.set(device=device):
        model, splits, told = network(dropout), data.open_dataset("digits"), []
        examples = Deadly(splits.train, np.arange(EXAMPLES))
        if kills is not None:
            examples.rank, examples.left = kills
        result = train.fit(
            model, examples, data.Subset(splits.test, np.arange(90)), epochs=epochs, parallel=parallel, on_split=told.append,
            **{"batch": BATCH, "optimizer": "sgd", "momentum": 0.9, "rate": 1e-2, "seed": 1, "prepare": data.ToFloat(), **settings},
        )  # fmt: skip
        return {n: t.numpy().copy() for n, t in model.named_tensors().items()}, result.history, result.ended, told


def fitted_as(parallel, settings):
    return fitted(parallel, **settings)


def metrics_of(history):
    return [
        {n: v for n, v in row.items() if "loss" in n or "accuracy" in n or n in ("steps", "rate")} for row in history
    ]


@pytest.mark.parametrize("settings", [{}, {"bias_rate": 4.0, "clip_norm": 0.5}, {"device": "cpu", "epochs": 1}])
def test_a_server_with_one_worker_that_waits_is_one_process(shared_pools, settings):
    """The same gradients in the same order: also running statistics, metrics, and groups of parameters with rates of their own."""
    wanted = fitted(**settings)
    found = shared_pools[2].run(fitted_as, "server:2", {"staleness": 0, **settings})
    most = 1e-6 if "device" in settings else 0.0  # compiled, gradients and update are one program there, and two here
    for weights, history, _, _ in found:
        assert max(float(np.abs(weights[n] - wanted[0][n]).max()) for n in wanted[0]) <= most
        for mine, other in zip(metrics_of(history)[-1:], metrics_of(wanted[1])[-1:], strict=True):
            assert {n: v for n, v in mine.items() if n != "rate"} == pytest.approx({n: other[n] for n in mine if n != "rate"}, rel=1e-5)  # fmt: skip
    assert found[0][1][-1]["rate"] == wanted[1][-1]["rate"]
    assert found[0][3][0] == "a parameter server and 1 worker, staleness 0"
    assert re.match(rf"staleness 0, 1 workers: {PER_EPOCH} updates", found[0][3][1])
    assert found[1][3] == []


def test_workers_share_the_batches_of_an_epoch_and_all_ranks_end_alike(shared_pools, tmp_path):
    run = {"folder": str(tmp_path / "run"), "staleness": 1, "dropout": 0.3, "epochs": 6, "rate": 3e-2}
    (weights, history, ended, told), *others = shared_pools[4].run(fitted_as, "server:4", run)
    assert ended == "all epochs are done"
    assert told[0] == "a parameter server and 3 workers, staleness 1"
    assert [row["steps"] for row in history] == [PER_EPOCH * n for n in range(1, 7)]
    assert history[-1]["train_loss"] < 0.7 * history[0]["train_loss"]
    assert all((row["train_accuracy"] * EXAMPLES) == pytest.approx(round(row["train_accuracy"] * EXAMPLES), abs=1e-4) for row in history)  # fmt: skip
    saved = weft.io.load(tmp_path / "run" / "weights" / "last.safetensors")
    for other in (saved, *(o[0] for o in others)):
        assert all(np.array_equal(np.asarray(other[n]), weights[n]) for n in weights)
    for _, rows, _, _ in others:
        assert [r["validation_loss"] for r in rows] == [r["validation_loss"] for r in history]


def test_a_checkpoint_goes_on_with_any_split(shared_pools, tmp_path):
    run = {"folder": str(tmp_path / "run")}
    shared_pools[4].run(fitted_as, "server:4", {**run, "epochs": 1, "staleness": "unbounded"})
    alone = fitted(epochs=2, resume=True, **run)
    assert [row["steps"] for row in alone[1]] == [PER_EPOCH, 2 * PER_EPOCH]
    shared_pools[2].run(fitted_as, "data:2", {**run, "epochs": 3, "resume": True})
    found = shared_pools[2].run(fitted_as, "server:2", {**run, "epochs": 4, "resume": True, "staleness": 0})
    wanted = fitted_from(tmp_path, 4)
    assert [row["steps"] for row in found[0][1]] == [PER_EPOCH * n for n in range(1, 5)]
    assert all(np.array_equal(found[1][0][n], wanted[0][n]) for n in wanted[0])


def fitted_from(folder, epochs):
    """The same last epoch in one process, from the checkpoint before it."""
    previous, last = (folder / "run" / "state" / f"{name}.safetensors" for name in ("previous", "last"))
    last.write_bytes(previous.read_bytes())
    return fitted(epochs=epochs, resume=True, folder=str(folder / "run"), micro_batches=1)


def test_a_training_that_is_out_of_time_stops_within_an_epoch_and_goes_on_there(shared_pools, tmp_path):
    run = {"folder": str(tmp_path / "run"), "staleness": 0}
    found = shared_pools[2].run(fitted_as, "server:2", {**run, "max_seconds": 0.0})
    assert {(ended, len(history)) for _, history, ended, _ in found} == {("the time is over", 0)}
    content = weft.io.safetensors.read(tmp_path / "run" / "state" / "last.safetensors")
    facts = json.loads(content.metadata["training"])
    assert 1 <= facts["batches"] < PER_EPOCH
    assert facts["loader"] == {"epoch": 0, "position": facts["batches"]}
    (weights, history, _, _), _ = shared_pools[2].run(fitted_as, "server:2", {**run, "resume": True})
    wanted = fitted()
    assert all(
        np.array_equal(weights[n], wanted[0][n]) for n in weights
    )  # one worker that waits, and no dropout: exact
    assert [row["train_loss"] for row in history] == pytest.approx([row["train_loss"] for row in wanted[1]])


def test_a_checkpoint_is_written_after_each_update_if_it_is_due(shared_pools, tmp_path):
    run = {"folder": str(tmp_path / "run"), "staleness": 0, "save_seconds": 0.0}
    found = shared_pools[2].run(fitted_as, "server:2", run)
    wanted = fitted()
    assert all(np.array_equal(found[0][0][n], wanted[0][n]) for n in wanted[0])


def test_a_worker_that_is_killed_ends_all_and_the_run_goes_on(tmp_path):
    """Worker 1 of 2 dies in the second epoch: what the checkpoint of the first one holds is not lost."""
    run = {"folder": str(tmp_path / "run"), "epochs": 3}
    with parallel.RankPool(3, threads=1) as pool, pytest.raises(RunError, match="rank 2 was killed by SIGKILL"):
        pool.run(call, 0, fitted_as, "server:3", {**run, "kills": (2, PER_EPOCH // 2)})
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e["epoch"] for e in events if e["type"] == "epoch"] == [1]
    history = fitted(resume=True, **run)[1]
    assert [row["steps"] for row in history] == [PER_EPOCH * n for n in (1, 2, 3)]


def test_a_loss_that_is_not_finite_ends_all(shared_pools):
    with pytest.raises(
        RunError, match=r"rank 0 failed: \[fit\] the loss was nan or infinite at update \d+, of worker 0. Use a smaller"
    ):
        shared_pools[2].run(fitted_as, "server:2", {"rate": 1e38})


@pytest.mark.parametrize(
    ("parallel", "given", "text"),
    [
        ("server:4", {"micro_batches": 4}, "micro_batches=4 cannot be used with parallel=server:4. Leave it out, or use data:4."),
        ("server:4", {"zero": 1}, "zero=1 cannot be used with parallel=server:4"),
        ("server:4", {"local_steps": 2}, "local_steps=2 cannot be used"),
        ("server:4", {"accumulate": 2}, "accumulate=2 cannot be used"),
        ("server:4", {"average": 0.9}, "average=0.9 cannot be used"),
        ("server:4", {"precision": "float16"}, "precision=float16 cannot be used"),
        ("server:4", {"resident": True}, "resident=True cannot be used"),
        ("server:4", {"freeze": 1}, "freeze=1 cannot be used"),
        ("server:4", {"memory": "1GiB"}, "memory=1GiB cannot be used"),
        ("server:4", {"recompute": True}, "recompute= requires a pipeline"),
        ("server:4", {"staleness": -1}, "staleness is a number of steps from 0, or unbounded, got -1"),
        ("server:4", {"staleness": "many"}, "staleness is a number of steps from 0, or unbounded, got 'many'"),
        ("data:4", {"staleness": 2}, "staleness= requires a parameter server, such as parallel=server:4"),
        ("server:1", {}, "A parameter server has 1 worker or more, and is combined with nothing else"),
        ("server:2,data:2", {}, "is combined with nothing else"),
        ("server", {}, "A parameter server has 1 worker or more: use server:2 or more ranks"),
        ("server:2", {}, "needs 2 ranks, got 1"),
    ],
)  # fmt: skip
def test_what_a_server_cannot_do_is_refused(parallel, given, text):
    with pytest.raises(UserError, match=re.escape(text)):
        fitted(parallel, **given)


# --- jobs -------------------------------------------------------------------------------------------------------------------------


def job(folder):
    settings = {"data": "digits", "model": "mlp", "epochs": 1, "steps": 6, "parallel": "server", "staleness": 2}
    with uncompiled():
        return str(jobs_train(validated("test", {**settings, "runs": folder, "name": "run"}, SETTINGS)))


def again(folder, given):
    with uncompiled():
        resume(Path(folder), given)


def test_a_job_with_a_server_goes_on_with_another_split(shared_pools, tmp_path):
    folder = Path(shared_pools[2].run(job, str(tmp_path))[0])
    log = (folder / "events.jsonl").read_text()
    assert "a parameter server and 1 worker, staleness 2" in log
    assert 'parallel: "server"' in (folder / "args.yaml").read_text()
    shared_pools[2].run(again, str(folder), {"epochs": 2, "parallel": "data:2"})
    assert "staleness= of the run is for parameter servers, and is left out" in (folder / "events.jsonl").read_text()
    shared_pools[2].run(again, str(folder), {"epochs": 3, "parallel": "server:2"})
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [(e["epoch"], e["steps"]) for e in events if e["type"] == "epoch"] == [(1, 6), (2, 12), (3, 18)]


def test_settings_that_a_server_has_no_use_for_are_left_out():
    told = validated("test", {"parallel": "data:2", "zero": 1, "micro_batches": 4}, SETTINGS)
    assert left_out(told, {"parallel": "server:3"}).settings == {"zero": 0, "micro_batches": None}
