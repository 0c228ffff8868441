"""Trainings whose network is split between processes (model:N, pipeline:N, and with data:N) against one process."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import weft
from uncompiled import uncompiled
from weft import data, nn, train, zoo
from weft.errors import RunError, UserError
from weft.graph.node import Type
from weft.jobs.schema import validated
from weft.jobs.settings import SETTINGS
from weft.jobs.training import resume
from weft.jobs.training import train as jobs_train
from weft.parallel.pipeline_cuts import trace_network
from weft.train import stage_times


def network():
    weft.seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4 * 6 * 6, 16, activation="relu"),
        nn.Linear(16, 10),
    )  # fmt: skip


def fitted(parallel=None, micro_batches=4, epochs=2, device="reference", **settings):
    """The weights after a training, its history, and how it was split."""
    with uncompiled() if device == "reference" else weft.knobs.set(device=device):
        model, splits, told = network(), data.open_dataset("digits"), []
        settings = {**({} if "optimizer" in settings else {"optimizer": "sgd", "momentum": 0.9}), **settings}
        result = train.fit(
            model, data.Subset(splits.train, np.arange(144)), data.Subset(splits.test, np.arange(90)), epochs=epochs,
            **{"batch": 48, "rate": 5e-2, "seed": 1, "prepare": data.ToFloat(), **made(settings)},
            parallel=parallel, micro_batches=micro_batches, on_split=told.append,
        )  # fmt: skip
        return {name: t.numpy().copy() for name, t in model.named_tensors().items()}, result.history, told


def made(settings):
    """Settings that are objects, of what a process can be told."""
    objects = {"prepare": lambda: nn.Sequential(data.ToFloat(), data.augmentation("light", (8, 8), flip=False)), "mix": lambda: data.MixUp(0.2, 10)}  # fmt: skip
    return {name: objects[name]() if name in objects else value for name, value in settings.items()}


def fitted_as(parallel, settings):
    return fitted(parallel, **settings)


def check(found, wanted, most=1e-6):
    """All processes have the whole network of one process, and its metrics."""
    for weights, history, _ in found:
        assert list(weights) == list(wanted[0])
        assert max(float(np.abs(weights[n] - wanted[0][n]).max()) for n in weights) <= most
        for mine, other in zip(history, wanted[1], strict=True):
            assert {*mine} == {*other}
            for name in {"train_accuracy", "validation_accuracy", "train_loss", "validation_loss"}.intersection(mine):
                assert mine[name] == pytest.approx(other[name], rel=1e-5), name


# --- against one process --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone():
    return fitted()


@pytest.mark.parametrize(
    ("size", "parallel"),
    [
        (2, "model:2"), (2, "pipeline:2"), (4, "data:2,model:2"), (4, "data:2,pipeline:2"), (4, "pipeline:2,model:2"),
        pytest.param(4, "model:4", marks=pytest.mark.slow), pytest.param(4, "pipeline:4", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_processes_that_share_a_network_train_like_one(shared_pools, alone, size, parallel):
    found = shared_pools[size].run(fitted_as, parallel, {})
    check(found, alone)
    texts = 2 * ("pipeline" in parallel) + ("model" in parallel)  # its stages and its idle time; what is split
    assert [len(told) for _, _, told in found] == [texts, *[0] * (size - 1)]


WAYS = {  # of training, that must not depend on how the network is split
    "augment": {"prepare": None, "mix": None, "label_smoothing": 0.1},
    "clip": {"clip_norm": 0.3, "average": 0.9},
    "body": {"body": ("layers.0.weight", "layers.5.weight", "layers.5.bias"), "body_rate": 0.5},
    "half": {"precision": "float16"},
    "overfit": {"overfit": 2},
    "adam": {"optimizer": "adamw", "rate": 1e-3, "clip_value": 0.01},
}


@pytest.mark.parametrize(
    ("size", "parallel", "name", "zero"),
    [
        (2, "pipeline:2", "augment", 0), (2, "pipeline:2", "half", 0), (4, "data:2,pipeline:2", "overfit", 0), (2, "model:2", "clip", 0), (2, "pipeline:2", "body", 0), (4, "data:2,pipeline:2", "clip", 2),
        (4, "data:2,model:2", "adam", 1),
        *(pytest.param(4, parallel, name, zero, marks=pytest.mark.slow)
          for parallel in ("data:2,model:2", "data:2,pipeline:2", "pipeline:2,model:2") for name in WAYS for zero in (0, 1, 2) if "data" in parallel or not zero),
    ],
)  # fmt: skip
def test_every_way_of_training_can_be_split(shared_pools, size, parallel, name, zero):
    given = {**WAYS[name], "epochs": 1}
    check(shared_pools[size].run(fitted_as, parallel, {**given, **({"zero": zero} if zero else {})}), fitted(**given))


def test_compiled_programs_of_splits(shared_pools):
    wanted = fitted(epochs=1, device="cpu")
    for parallel in ("model:2", "pipeline:2"):
        check(shared_pools[2].run(fitted_as, parallel, {"epochs": 1, "device": "cpu"}), wanted)


# --- settings of pipelines ------------------------------------------------------------------------------------------------------


def stored_bytes(report):
    return [int(line.split()[-1].replace(",", "")) for line in report.splitlines()[2:]]


def test_the_schedule_and_recomputation_of_a_pipeline_change_what_it_stores_and_nothing_else(shared_pools, alone):
    stored = {}
    for name, given in {
        "usual": {},
        "gpipe": {"pipeline_schedule": "gpipe"},
        "recompute": {"recompute": True},
    }.items():
        found = shared_pools[2].run(fitted_as, "pipeline:2", given)
        check(found, alone)
        stages, report = found[0][2]
        assert stages.partition(", balanced")[0].endswith(
            {"usual": "1f1b", "gpipe": "gpipe", "recompute": "1f1b, activations recomputed"}[name]
        )
        assert report.startswith("gpipe" if name == "gpipe" else "1f1b")
        stored[name] = stored_bytes(report)
    assert stored["gpipe"] == [2 * stored["usual"][0], 4 * stored["usual"][1]]  # of 4 micro-batches, not of at most 2
    assert stored["recompute"][0] < stored["usual"][0]


def continued(folder):
    """Epochs with cuts that are given, then with those of the checkpoint, with others, and with another number of stages."""
    run, told = {"folder": folder, "resume": True}, []
    fitted("pipeline:2", epochs=1, cuts=["layers.0"], folder=folder)
    for epochs, given in enumerate(({}, {"cuts": "counted"}, {"cuts": ("layers.5",)}, {}), 2):
        told += fitted("pipeline:2", epochs=epochs, **run, **given)[2][:1]
    return told


def test_a_run_that_goes_on_keeps_its_cut_unless_it_is_told_another(shared_pools, tmp_path):
    told, _ = shared_pools[2].run(continued, str(tmp_path / "run"))
    found = [
        re.search(r"(cut as \w+|balanced by [\w -]+):.* to (layers\.\d) ", text, re.DOTALL).groups() for text in told
    ]
    assert found[0] == ("cut as before", "layers.0")
    assert found[1][0] == "balanced by counted multiply-adds"
    assert found[1][1] not in ("layers.0", "layers.5")
    assert found[2:] == [("cut as given", "layers.5"), ("cut as before", "layers.5")]


def test_the_cut_follows_times_that_are_measured(monkeypatch):
    """Layers that compute the same are measured once; the rest, when time is up, in proportion to their multiply-adds."""
    weft.seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8, activation="relu") for _ in range(6)), nn.Linear(8, 400), nn.ReLU())
    seen = []

    def seconds(network, model, begin, end, precision):
        seen.append((begin and begin.path, end and end.path))
        return 6.0 if end is None else 1.0

    monkeypatch.setattr(stage_times, "_seconds", seconds)
    found = stage_times._measured(model, Type((4, 8), weft.float32), 2, None)
    assert found.after == ["layers.5"]
    assert found.seconds == pytest.approx([6.0, 6.0])
    assert sorted(seen, key=str) == [
        ("layers.0", "layers.1"),
        ("layers.5", None),
        (None, "layers.0"),
    ]  # the first has no gradient of its input
    counted = trace_network(model, Type((4, 8), weft.float32)).costs
    monkeypatch.setattr(stage_times, "SECONDS", -1.0)
    found = stage_times._measured(model, Type((4, 8), weft.float32), 2, None)
    assert "(0 of 3 different layers, the rest in proportion to multiply-adds)" in found.text
    assert sum(found.seconds) == pytest.approx(sum(counted))


def measured(parallel):
    """A training whose cut was measured, compiled, and one that is told the same cut."""
    given = {"device": "cpu", "epochs": 1}
    weights, _, told = fitted(parallel, **given)
    names = re.findall(r" to (layers\.\d)", told[0]) if told else []
    names = weft.parallel.all_gather(weft.asarray([int(n[-1]) for n in names] or [0]), "pipeline").numpy()[0]
    same = fitted(parallel, cuts=[f"layers.{n}" for n in names], **given)
    return weights, same[0], told


def test_measuring_changes_nothing_but_the_cut(shared_pools):
    """Neither running statistics nor random numbers: the network has both."""
    found = shared_pools[2].run(measured, "pipeline:2")
    assert re.search(r"balanced by times of layers, measured in [\d.]+ s:\n.*% of the time\)", found[0][2][0])
    for weights, same, _ in found:
        assert all(np.array_equal(weights[name], same[name]) for name in same)


@pytest.mark.parametrize(
    ("parallel", "given", "text"),
    [
        (None, {"pipeline_schedule": "gpipe"}, "pipeline_schedule= requires a pipeline, such as parallel=pipeline:2"),
        ("data:1", {"recompute": True}, "recompute= requires a pipeline"),
        (None, {"cuts": "measured"}, "cuts= requires a pipeline"),
        ("pipeline:2", {"pipeline_schedule": "1b1f"}, "pipeline_schedule is gpipe or 1f1b, got '1b1f'."),
        ("pipeline:2", {"recompute": 1}, "recompute is True or False, got 1"),
        ("pipeline:2", {"cuts": "middle"}, "cuts is measured, counted, or the last layer of each stage but the last, got 'middle'"),
        ("pipeline:3", {"cuts": ["layers.0"]}, "2 for 3 stages, got 1"),
    ],
)  # fmt: skip
def test_settings_of_pipelines_are_checked_before_anything_else(parallel, given, text):
    assert text in message(fitted_as, parallel, given)


# --- checkpoints ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "meshes",
    [
        ("model:2", "data:2,pipeline:2"),
        pytest.param(("data:2,pipeline:2", None, "pipeline:2,model:2", "model:2"), marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_is_whole_and_goes_on_with_another_mesh(shared_pools, tmp_path, meshes):
    """An epoch with each of them, as one process would have done them all."""
    run = {"folder": str(tmp_path / "run"), "clip_norm": 0.3, "average": 0.9}
    wanted = fitted(epochs=len(meshes), clip_norm=0.3, average=0.9)
    for number, parallel in enumerate(meshes):
        given = {**run, "epochs": number + 1, "resume": number > 0}
        if parallel is None:
            fitted(**given)
        else:
            zero = {"zero": 1} if "data" in parallel else {}
            found = shared_pools[4 if "," in parallel else 2].run(fitted_as, parallel, {**given, **zero})
    check(found, wanted)
    saved = weft.io.load(tmp_path / "run" / "weights" / "last.safetensors")
    assert {name: t.shape for name, t in saved.items()} == {name: t.shape for name, t in wanted[0].items()}


class Stopped(Exception):
    pass


def interrupted(parallel, folder):
    """A training that ends without a warning in the middle of its second epoch, with a checkpoint of the step before; then resumed."""
    seen = []

    def count(now):
        seen.append(now)
        if now.epoch == 2 and now.step == now.steps:
            raise Stopped

    run = {"folder": folder, "save_seconds": 0.0, "micro_batches": 2}
    with pytest.raises(Stopped):
        fitted(parallel, on_step=count, **run)
    return fitted(parallel, resume=True, **run)[:2]


@pytest.mark.parametrize("parallel", ["data:2", pytest.param("model:2", marks=pytest.mark.slow), "pipeline:2"])
def test_a_training_that_was_interrupted_ends_with_the_same_bits(shared_pools, tmp_path, parallel):
    """Metrics of the epoch that was interrupted count the examples of all processes, also those before it."""
    wanted = shared_pools[2].run(fitted_as, parallel, {"micro_batches": 2})
    found = shared_pools[2].run(interrupted, parallel, str(tmp_path / "run"))
    for (weights, history), (same, told, _) in zip(found, wanted, strict=True):
        assert all(np.array_equal(weights[name], same[name]) for name in same)
        for row, other in zip(history, told, strict=True):
            assert {n: row[n] for n in row if "loss" in n or "accuracy" in n} == pytest.approx(
                {n: other[n] for n in other if "loss" in n or "accuracy" in n}, rel=1e-12
            )


def local_sgd(folder):
    """Local SGD whose epochs of 6 batches are no multiple of the steps between averages: uninterrupted, and interrupted."""
    run = {"batch": 24, "micro_batches": 2, "local_steps": 4, "average": 0.9}
    whole = fitted("data:2", **run, folder=f"{folder}/whole")[:2]
    seen = []

    def count(now):
        seen.append(now)
        if now.epoch == 2 and now.step == 4:  # the checkpoint is that of step 2 of this epoch, the eighth of all
            raise Stopped

    run |= {"folder": f"{folder}/run", "save_seconds": 0.0}
    with pytest.raises(Stopped):
        fitted("data:2", on_step=count, **run)
    return whole, fitted("data:2", resume=True, **run)[:2]


def test_local_sgd_can_be_interrupted_and_ends_with_the_same_weights_in_all_processes(shared_pools, tmp_path):
    """Averages have the state of the optimizer and the running statistics, too, so that a checkpoint has all that goes on."""
    [(weights, history), (resumed, _)], *others = shared_pools[2].run(local_sgd, str(tmp_path))
    for found in (resumed, *(weights for pair in others for weights, _ in pair)):
        assert all(np.array_equal(weights[name], found[name]) for name in weights)
    for (_, rows), _ in others:
        assert rows[-1]["validation_loss"] == history[-1]["validation_loss"]


def message(function, *args):
    """What a training is rejected with."""
    try:
        function(*args)
    except (UserError, RunError) as error:
        return str(error)
    return ""


def of_other_optimizers(folder):
    run = {"folder": folder, "epochs": 2, "resume": True, "optimizer": "adam"}
    return [message(fitted_as, parallel, run) for parallel in ("model:2", "pipeline:2")]


def test_a_checkpoint_of_other_settings_is_refused_by_every_split(shared_pools, tmp_path):
    fitted(folder=str(tmp_path / "run"), epochs=1)
    for found in shared_pools[2].run(of_other_optimizers, str(tmp_path / "run")):
        assert all("belongs to another network or other settings. missing: ['optimizer." in text for text in found)


# --- what cannot be split ---------------------------------------------------------------------------------------------------------


def tokens(parallel):
    weft.seed(0)
    with uncompiled():
        model = zoo.char_lstm(11, hidden=8)
        x = np.random.default_rng(0).integers(0, 11, (16, 6))
        train.fit(model, (x, x), batch=8, epochs=1, loss="cross_entropy", metrics=(), parallel=parallel)


def narrow(parallel):
    with uncompiled():
        x = np.ones((16, 5), np.float32)
        train.fit(nn.Sequential(nn.Linear(5, 3)), (x, x[:, :3]), batch=5, epochs=1, parallel=parallel)


def refusals():
    return [
        message(tokens, "model:2"), message(narrow, "model:2"), message(narrow, "pipeline:2"), message(fitted_as, "pipeline:2", {"freeze": 1}),
        message(fitted_as, "model:2", {"local_steps": 2}), message(fitted_as, "pipeline:2", {"freeze_layers": 1}), message(fitted_as, "data,model", {}),
    ]  # fmt: skip


def test_what_cannot_be_split_is_refused(shared_pools):
    wanted = [
        r"lstm \(LSTM\) has no rule by which .* What can be split: .*Linear.* Use parallel=data:2 or parallel=pipeline:2",
        "no layer of the network can be cut into 2 equal parts",
        "can be cut into 1 stages with parameters, 2 are required",
        "freeze= cannot be used with parallel=pipeline:2. Use data:2",
        "local_steps= cannot be used with parallel=model:2. Use data:2",
        "freeze_layers= cannot be used with parallel=pipeline:2",
        "An axis without a number takes the remaining ranks, and 2 ranks do not divide so",
    ]
    for found in shared_pools[2].run(refusals):
        for text, pattern in zip(found, wanted, strict=True):
            assert re.search(pattern, text), text


# --- jobs -------------------------------------------------------------------------------------------------------------------------


def job(folder, **given):
    """A training by its settings in processes that are there, then the same run with another split."""
    settings = {
        "data": "digits",
        "model": "mlp",
        "epochs": 1,
        "batch": 32,
        "overfit": 0,
        "micro_batches": 4,
        "runs": folder,
        "name": "run",
        **given,
    }
    with uncompiled():
        path = jobs_train(validated("test", settings, SETTINGS))
        return path and str(path)


def again(folder, parallel):
    with uncompiled():
        resume(Path(folder), {"epochs": 2, "parallel": parallel})


def test_a_run_of_one_split_goes_on_with_another(shared_pools, tmp_path):
    """As the command line does: weft train parallel=model:2, weft resume RUN parallel=pipeline:2."""
    folder = Path(shared_pools[2].run(job_of_rank, str(tmp_path), "model:2")[0])
    assert 'parallel: "model:2"' in (folder / "args.yaml").read_text()
    assert "layers are split between 2 processes" in (folder / "events.jsonl").read_text()
    shared_pools[2].run(again, str(folder), "pipeline:2")
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [e["rank"] for e in events if e["type"] == "rank"] == [0, 1, 0, 1]
    log = (folder / "events.jsonl").read_text()
    assert "a pipeline of 2 stages and 4 micro-batches, 1f1b" in log
    assert re.search(r"1f1b, 2 stages, 4 micro-batches: [\d.]+ ms, idle [\d.]+% measured, 20\.0% for equal stages", log)
    assert [e["epoch"] for e in events if e["type"] == "epoch"] == [1, 2]


def test_a_run_goes_on_without_the_settings_that_its_new_split_has_no_use_for(shared_pools, tmp_path):
    given = {"parallel": "pipeline:2", "pipeline_schedule": "gpipe", "recompute": "true", "cuts": "layers.1.layers.1"}
    folder = Path(shared_pools[2].run(job_as, str(tmp_path), given)[0])
    args = (folder / "args.yaml").read_text()
    assert 'pipeline_schedule: "gpipe"' in args
    assert 'cuts: ["layers.1.layers.1"]' in args
    assert "gpipe, activations recomputed, cut as given:" in (folder / "events.jsonl").read_text()
    shared_pools[2].run(again, str(folder), "data:2")
    assert "pipeline_schedule= of the run is for pipelines, and is left out" in (folder / "events.jsonl").read_text()
    assert "pipeline_schedule: null" in (folder / "args.yaml").read_text()


def job_as(folder, given):
    return job(folder, **given)


def job_of_rank(folder, parallel):
    return job(folder, parallel=parallel)


def killed(command, folder, parallel, after):
    """Run a command until so many epochs are done, then kill -9 the last of its processes."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    log = folder / "events.jsonl"
    while process.poll() is None and (not log.exists() or log.read_text().count('"type": "epoch"') < after):
        time.sleep(0.02)
    ranks = [json.loads(line)["pid"] for line in log.read_text().splitlines() if '"type": "rank"' in line]
    os.kill(ranks[-1], signal.SIGKILL)
    return process.communicate(timeout=60)[0], process.returncode


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["model:2", "pipeline:2"])
def test_kill_of_a_rank_ends_all_and_the_run_goes_on_exactly(tmp_path, parallel):
    settings = [
        "digits",
        "model=mlp",
        "epochs=6",
        "batch=32",
        "micro_batches=4",
        f"parallel={parallel}",
        f"runs={tmp_path}",
    ]
    settings += ["cuts=counted"] if "pipeline" in parallel else []  # measured ones may differ between two runs
    weft_ = [sys.executable, "-m", "weft"]
    subprocess.run([*weft_, "train", *settings, "name=whole"], check=True, capture_output=True)
    folder = tmp_path / "classify" / "killed"
    said, status = killed([*weft_, "train", *settings, "name=killed"], folder, parallel, 2)
    assert "rank 1 was killed by SIGKILL" in said
    assert status == 1
    subprocess.run([*weft_, "resume", str(folder)], check=True, capture_output=True)
    found, wanted = (
        weft.io.load(f / "weights" / "last.safetensors") for f in (folder, tmp_path / "classify" / "whole")
    )
    assert all(np.array_equal(found[name].numpy(), wanted[name].numpy()) for name in wanted)
