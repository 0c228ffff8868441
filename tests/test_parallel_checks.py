"""What processes that share a training would all reject is rejected once, before any of them is started."""

import json
from pathlib import Path

import numpy as np
import pytest

from uncompiled import uncompiled
from weft import nn, optim, train
from weft.cli import main
from weft.errors import UserError
from weft.jobs.parallel_checks import left_out
from weft.jobs.schema import validated
from weft.jobs.settings import SETTINGS
from weft.jobs.training import resume
from weft.jobs.training import train as jobs_train


class Started(Exception):
    pass


@pytest.fixture(autouse=True)
def started(monkeypatch, tmp_path):
    """What starts processes raises an error here."""

    def start(*args, **kwargs):
        raise Started

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("weft.jobs.parallel_training.RankPool", start)
    monkeypatch.setattr("weft.cli.launch.run_launch", start)


def run(folder, **given):
    """A short training in this process; its folder."""
    settings = {"data": "digits", "model": "mlp", "epochs": 1, "steps": 2, "batch": 32, "runs": str(folder), **given}
    with uncompiled():
        return jobs_train(validated("test", {**settings, "name": "run"}, SETTINGS))


REJECTED = {
    "train digits parallel=data:4 batch=62": "a batch of 62 examples cannot be divided into 4 equal micro-batches, one or more for each of 4 ranks. Use batch=60 or batch=64.",
    "train digits parallel=data:4 batch=5000": "a batch of 1,293 examples (all of the training data) cannot be divided into 4 equal",
    "train digits parallel=data:3": "a batch of 64 examples cannot be divided into 3 equal",
    "train digits parallel=data:2 micro_batches=3": "2 ranks cannot share 3 micro-batches evenly. Use micro_batches=4.",
    "train digits parallel=pipeline:2 micro_batches=5 batch=62": "a batch of 62 examples cannot be divided into 5 equal micro-batches. Use batch=60 or batch=65.",
    "train digits parallel=data:2,pipeline:2 batch=63": "a batch of 63 examples cannot be divided into 2 equal micro-batches, one or more for each of 2 ranks.",
    "train digits zero=1": "[fit] zero=1 shards the optimizer's state over ranks that share every batch, got one rank. Use parallel=data:2 or more, or leave zero= out.",
    "train digits zero=2 parallel=model:2": "zero=2 shards the optimizer's state over ranks that share every batch, got one rank.",
    "train digits zero=3 parallel=data:2": "[weft train] zero=3 cannot be used: it must be 0, 1 or 2.",
    "launch -n 3 weft train digits": "a batch of 64 examples cannot be divided into 3 equal",
    "launch -n 3 -m weft train digits": "a batch of 64 examples cannot be divided into 3 equal",
    "launch -n 3 weft train digits parallel=data:4,model:2": "[weft train] parallel=data:4,model:2 is for 8 ranks, got 3. Use -n 8, or parallel=data:3.",
    "launch -n 3 weft train digits parallel=data,model:2": "An axis without a number takes the remaining ranks, and 3 ranks do not divide so.",
    "launch -n 2 weft train digits parallel=model:2 zero=1": "zero=1 shards the optimizer's state over ranks that share every batch",
    "launch -n 2 weft train digits device=cuda:0": "device=cuda:0 is one GPU, and each process needs its own.",
    "launch -n 2 weft train digits bach=3": "there is no setting 'bach'. Did you mean batch?",
    "launch -n 2 weft train digits recompute=true": "recompute= requires a pipeline",
    "launch -n 2 weft resume nothing": "nothing is no folder of a run",
}  # fmt: skip


@pytest.mark.parametrize("command", REJECTED)
def test_a_training_is_rejected_before_its_processes_are_started(command, capsys):
    assert main(command.split()) == 2
    assert REJECTED[command] in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "command",
    [
        "train digits parallel=data:3 batch=5000",  # all 1,293 examples
        "train digits parallel=data:4 zero=2 batch=auto",
        "train digits parallel=data:2 micro_batches=4",
        "train digits parallel=data:2,pipeline:2 batch=62 pipeline_schedule=gpipe cuts=layers.1",
        "launch -n 2 weft train digits zero=1",
        "launch -n 4 weft train digits parallel=data,model:2 zero=2",
        "launch -n 4 weft train digits parallel=data,pipeline:2 recompute=true",
        "launch -n 3 weft runs list",
    ],
)
def test_what_is_possible_is_started(command):
    with pytest.raises(Started):
        main(command.split())


def test_a_run_that_goes_on_is_checked_with_its_own_settings(tmp_path, capsys):
    folder = run(tmp_path, micro_batches=4)
    for command, text in {
        f"resume {folder} parallel=data:3": "3 ranks cannot share 4 micro-batches evenly",
        f"resume {folder} parallel=data:2 batch=34": "a batch of 34 examples cannot be divided into 4 equal",
        f"launch -n 3 weft resume {folder}": "3 ranks cannot share 4 micro-batches evenly",
        f"launch -n 2 weft resume {folder} parallel=data:4": "parallel=data:4 is for 4 ranks, got 2",
        f"resume {folder} zero=2": "zero=2 shards the optimizer's state over ranks",
    }.items():
        assert main(command.split()) == 2
        assert text in capsys.readouterr().err
    for command in (f"resume {folder} parallel=data:2", f"launch -n 2 weft resume {folder}"):
        with pytest.raises(Started):
            main(command.split())


def test_the_micro_batches_of_a_checkpoint_count_unless_others_are_given(tmp_path, capsys):
    """A run of two ranks keeps its two micro-batches, which three ranks cannot share."""
    folder = run(tmp_path, micro_batches=2)
    args = (folder / "args.yaml").read_text()
    (folder / "args.yaml").write_text(args.replace("micro_batches: 2", "micro_batches: null"))
    assert main(["resume", str(folder), "parallel=data:3", "batch=33"]) == 2
    assert "3 ranks cannot share 2 micro-batches evenly. Use micro_batches=3." in capsys.readouterr().err
    with pytest.raises(Started):
        main(["resume", str(folder), "parallel=data:3", "batch=33", "micro_batches=3"])


def test_settings_that_another_split_has_no_use_for_are_left_out_unless_they_are_given():
    told = validated("test", {"parallel": "data:2,pipeline:3", "zero": 1, "recompute": "true", "cuts": "a,b"}, SETTINGS)
    found = left_out(told, {"parallel": "data:4"})
    assert found.settings == {"recompute": False, "cuts": None}
    assert found.notes[1] == "cuts= of the run is for pipelines, and is left out"
    assert left_out(told, {"parallel": None}).settings == {"recompute": False, "cuts": None, "zero": 0}
    assert left_out(told, {"parallel": None, "zero": 1}).settings == {"recompute": False, "cuts": None}
    assert left_out(told, {"parallel": "pipeline:2"}).settings == {"zero": 0, "cuts": None}
    assert left_out(told, {"parallel": "data,pipeline:3"}, 6).settings == {}


def test_zero_is_for_ranks_in_fit_too():
    arrays = (np.zeros((32, 4), np.float32), np.arange(32) % 2)
    for settings, text in (
        ({"zero": 1}, r"\[fit\] zero=1 shards the optimizer's state over ranks that share every batch, got one rank"),
        ({"zero": 3}, r"\[fit\] zero is 0, 1 or 2, got 3"),
        ({"zero": 1, "optimizer": optim.sgd, "rate": 0.1}, r"\[fit\] zero=1 shards"),
    ):
        with pytest.raises(UserError, match=text):
            train.fit(nn.Linear(4, 2), arrays, epochs=1, **settings)


def resumed(folder):
    with uncompiled():
        resume(Path(folder), {"epochs": 2})


def test_processes_that_resume_a_run_of_one_share_it(shared_pools, tmp_path):
    """They trained it twice side by side."""
    folder = run(tmp_path)
    shared_pools[2].run(resumed, str(folder))
    assert 'parallel: "data:2"' in (folder / "args.yaml").read_text()
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [e["rank"] for e in events if e["type"] == "rank"] == [0, 1]
    assert [e["epoch"] for e in events if e["type"] == "epoch"] == [1, 2]
