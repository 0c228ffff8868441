"""Trainings on a cluster, with the small part of Ray that weft uses: files and events come back, lost nodes cost nothing but time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_ray import FakeActor, FakeRay, InProcess
from uncompiled import uncompiled
from weft import locks
from weft.cli import main
from weft.errors import RunError, UserError
from weft.io import load
from weft.jobs.annotations import read_annotations
from weft.jobs.cluster import remote_training
from weft.jobs.cluster import runner as cluster_runner
from weft.jobs.cluster.file_copies import changed_files, file_stamps, packed_input, unpacked_input, update_run
from weft.jobs.cluster.remote_training import RemoteTraining, remove_left_folders
from weft.jobs.cluster.runner import ClusterQueue, ClusterRunner, local_inputs, remote_work
from weft.jobs.cluster.settings import SHARED, ClusterPlan
from weft.jobs.folds.cross_validation import cross_validate, fold_runs
from weft.jobs.queue.record import CANCELLED, DONE, FAILED, PRUNED, STOPPED, WAITING, JobRecord
from weft.jobs.queue.schedule import read_schedule
from weft.jobs.queue.submission import submit
from weft.jobs.recipes import with_recipe
from weft.jobs.sweeps.record import find_sweep
from weft.jobs.training import train
from weft.locks import one_writer
from weft.signals import Terminated, handling


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeRay]:
    made = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setattr(RemoteTraining, "_start", lambda self: setattr(self, "process", InProcess(self.job)))
    monkeypatch.setattr(cluster_runner, "RETRY", 0.0)
    monkeypatch.setattr(cluster_runner, "POLL", 0.0)
    monkeypatch.setattr(cluster_runner, "SYNC", 0.0)
    monkeypatch.setattr("weft.jobs.sweeps.search.POLL", 0.0)
    monkeypatch.setattr(InProcess, "stops_after", [])
    monkeypatch.setattr(InProcess, "trained", [])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node"))
    (tmp_path / "node").mkdir()
    monkeypatch.chdir(tmp_path)
    with uncompiled():
        yield made


def blobs(path: Path) -> Path:
    random = np.random.default_rng(0)
    true = np.arange(90) % 3
    x = (np.eye(3, 6)[true] * 3 + random.normal(size=(90, 6))).astype(np.float32)
    np.savez(path, x_train=x, y_train=true, x_test=x[:20], y_test=true[:20])
    return path


def settings(folder: Path, **given: Any) -> dict[str, Any]:
    data = str(blobs(folder / "blobs.npz"))
    return {"data": data, "model": "mlp", "epochs": 3, "rate": 0.01, "runs": str(folder / "runs"), **given}


def queued(folder: Path, *names: str, **given: Any) -> tuple[ClusterQueue, list[JobRecord]]:
    queue = ClusterQueue(folder / "runs", folder / "queue")
    return queue, [submit(queue, settings(folder, name=name, **given)) for name in names]


def weights(run: str | Path) -> dict[str, np.ndarray]:
    return {name: np.asarray(one.numpy()) for name, one in load(Path(run) / "weights" / "last.safetensors").items()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def epochs(job: JobRecord) -> list[int]:
    return [event["epoch"] for event in job.events() if event.type == "epoch"]


# --- a training -----------------------------------------------------------------------------------------------------------------


def test_a_run_comes_back_as_if_it_had_been_trained_here(ray: FakeRay, tmp_path: Path) -> None:
    queue, (job,) = queued(tmp_path, "there", group="both", seed=3)
    seen: list[tuple[str, str]] = []
    ClusterRunner(queue, ClusterPlan("ray://head:10001", cpus=1), watcher=lambda one, what: seen.append((what, one.state.state))).run()  # fmt: skip
    run = tmp_path / "runs" / "classify" / "there"
    assert job.state.state == DONE
    assert job.state.run == str(run)
    assert seen == [("started", "running"), ("ended", DONE)]
    here = train(with_recipe("test", settings(tmp_path, name="here", group="both", seed=3)))
    assert here is not None
    assert same(weights(run), weights(here))
    names = {one for one in file_stamps(here) if "tfevents" not in one}
    assert {one for one in file_stamps(run) if "tfevents" not in one} == names
    there, at_home = ((place / "args.yaml").read_text().splitlines() for place in (run, here))
    assert [a for a, b in zip(there, at_home, strict=True) if a != b] == ['name: "there"', "exist_ok: false"][:1]
    assert read_annotations(run).group == "both"
    assert ray.options == [{"num_cpus": 1, "num_gpus": 0.0, "max_restarts": 0, "scheduling_strategy": "SPREAD"}]
    assert ray.addresses == ["ray://head:10001"]
    assert not list((tmp_path / "node").glob("weft-training-*")), "nothing is left on the node"
    assert main(["eval", str(run)]) == 0


def test_a_training_that_is_lost_with_its_node_continues_on_another(ray: FakeRay, tmp_path: Path) -> None:
    queue, (job,) = queued(tmp_path, "moved")
    InProcess.stops_after = [2]
    copy, there = tmp_path / "runs" / "classify" / "moved", list[str]()

    def lose(actor: FakeActor, method: str) -> bool:
        if actor is not ray.actors[0] and method == "report":
            there.extend((actor.made.folder / "runs" / "classify" / "moved" / "args.yaml").read_text().splitlines())
        return actor is ray.actors[0] and (copy / "state" / "last.safetensors").exists()

    ray.lose = lose
    ClusterRunner(queue, ClusterPlan()).run()
    assert job.state.state == DONE
    assert len(ray.actors) == 2
    assert InProcess.trained == epochs(job) == [1, 2, 3], "nothing is trained twice"
    reasons = [event["why"] for event in job.events() if event.type == "state"]
    assert any(why.startswith("its node was lost (The actor died because its node has died.)") for why in reasons)
    here = train(with_recipe("test", settings(tmp_path, name="here")))
    assert here is not None
    assert same(weights(str(job.state.run)), weights(here))
    assert ray.stored == 1, "the data is sent once"
    data = next(line for line in there if line.startswith("data: "))
    assert data.startswith(f'data: "{tmp_path / "node"}/weft-inputs-'), "the node reads its own copy"
    assert f'data: "{tmp_path / "blobs.npz"}"' in (copy / "args.yaml").read_text().splitlines()


@pytest.mark.slow
def test_a_node_that_is_lost_before_the_first_checkpoint_costs_only_time(ray: FakeRay, tmp_path: Path) -> None:
    queue, (job,) = queued(tmp_path, "again")
    ray.lose = lambda actor, method: len(ray.actors) < 2 and method == "report"
    ClusterRunner(queue, ClusterPlan()).run()
    assert job.state.state == DONE
    assert epochs(job) == [1, 2, 3]


@pytest.mark.slow
def test_a_training_that_never_gets_anywhere_fails(ray: FakeRay, tmp_path: Path) -> None:
    queue, (job,) = queued(tmp_path, "never")
    ray.lose = lambda actor, method: method == "begin"
    ClusterRunner(queue, ClusterPlan()).run()
    assert job.state.state == FAILED
    assert "for the 5. time" in job.state.why
    assert len(ray.actors) == 5


@pytest.mark.slow
def test_losses_count_since_the_last_checkpoint(ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long training on nodes that come and go must not end after a few of them."""
    queue, (job,) = queued(tmp_path, "long", epochs=3)
    monkeypatch.setattr(cluster_runner, "ATTEMPTS", 2)
    InProcess.stops_after = [1, 2]
    ray.lose = lambda actor, method: actor.called.count("report") > 3
    ClusterRunner(queue, ClusterPlan()).run()
    assert job.state.state == DONE
    assert epochs(job) == [1, 2, 3]
    assert len(ray.actors) == 3


@pytest.mark.slow
def test_a_lost_training_waits_before_it_is_started_again(ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Ray may choose the same node again before it has noticed that it is gone."""
    queue, (job,) = queued(tmp_path, "soon")
    monkeypatch.setattr(cluster_runner, "RETRY", 100.0)
    ray.lose = lambda actor, method: method == "begin"
    runner = ClusterRunner(queue, ClusterPlan())
    with runner.serving():
        for _ in range(5):
            assert runner.step()
        assert (job.state.state, len(ray.actors)) == (WAITING, 1)
        monkeypatch.setattr(cluster_runner, "RETRY", 0.0)
        runner.step()
        assert len(ray.actors) == 2


@pytest.mark.slow
def test_a_process_that_is_killed_on_its_node_continues(ray: FakeRay, tmp_path: Path) -> None:
    queue, (job,) = queued(tmp_path, "killed")
    InProcess.stops_after = [1]
    runner = ClusterRunner(queue, ClusterPlan())
    with runner.serving():
        while not (tmp_path / "runs" / "classify" / "killed" / "state" / "last.safetensors").exists():
            runner.step()
        ray.actors[0].made.process.kill()
        while runner.step():
            pass
    assert job.state.state == DONE
    assert any("its process ended with SIGKILL" in one["why"] for one in job.events() if one.type == "state")
    assert epochs(job) == [1, 2, 3]


@pytest.mark.slow
def test_a_request_to_stop_reaches_the_node_and_not_the_driver(ray: FakeRay, tmp_path: Path) -> None:
    queue, (job,) = queued(tmp_path, "pruned")
    InProcess.stops_after = [1]
    runner, received = ClusterRunner(queue, ClusterPlan()), list[int]()

    def on_signal(number: int, frame: Any) -> None:  # what the process of the node does
        received.append(number)
        process = ray.actors[0].made.process
        process.end(STOPPED, process.job.request)

    with runner.serving(), handling(signal.SIGTERM, on_signal, (signal.SIG_DFL,)):
        while not epochs(job):
            runner.step()
        assert read_schedule(job.folder).is_remote
        job.stop(PRUNED)
        assert not received, "the process that holds the lock is this one"
        while runner.step():
            pass
    assert len(received) == 1
    assert (job.state.state, job.state.why) == (STOPPED, PRUNED)
    assert (Path(str(job.state.run)) / "state" / "last.safetensors").exists()


@pytest.mark.slow
def test_a_job_that_waits_for_a_node_can_be_cancelled(ray: FakeRay, tmp_path: Path) -> None:
    queue, (job,) = queued(tmp_path, "waiting")
    ray.is_full = True
    runner = ClusterRunner(queue, ClusterPlan())
    with runner.serving():
        for _ in range(3):
            assert runner.step()
        assert job.state.state == WAITING
        job.stop(CANCELLED)
        assert not runner.step()
    assert not ray.actors[0].is_alive
    assert (job.state.state, job.state.why) == (STOPPED, CANCELLED)


@pytest.mark.slow
def test_a_driver_that_is_stopped_leaves_checkpoints_and_the_next_one_continues(ray: FakeRay, tmp_path: Path) -> None:
    queue, (job, later) = queued(tmp_path, "first", "second")
    InProcess.stops_after = [2]
    runner = ClusterRunner(queue, ClusterPlan())

    def on_signal(number: int, frame: Any) -> None:
        process = ray.actors[0].made.process
        process.end(WAITING, process.job.request)

    with (
        handling(signal.SIGTERM, on_signal, (signal.SIG_DFL,)),
        pytest.raises(Terminated),
        runner.serving(),
    ):
        while len(epochs(job)) < 2:
            runner.step()
        raise Terminated
    assert [one.state.state for one in (job, later)] == [WAITING, WAITING]
    assert not any(actor.is_alive for actor in ray.actors)
    ClusterRunner(queue, ClusterPlan()).run()
    assert [one.state.state for one in (job, later)] == [DONE, DONE]
    assert epochs(job) == [1, 2, 3]


@pytest.mark.slow
def test_a_driver_that_is_stopped_does_not_wait_for_nodes(ray: FakeRay, tmp_path: Path) -> None:
    queue, (job,) = queued(tmp_path, "pending")
    ray.is_full = True
    runner = ClusterRunner(queue, ClusterPlan())
    with pytest.raises(Terminated), runner.serving():
        runner.step()
        raise Terminated
    assert job.state.state == WAITING
    assert not ray.actors[0].is_alive


@pytest.mark.slow
def test_the_jobs_of_a_killed_driver_continue(ray: FakeRay, tmp_path: Path) -> None:
    queue, (job,) = queued(tmp_path, "orphan")
    InProcess.stops_after = [2]
    runner = ClusterRunner(queue, ClusterPlan())
    serving = runner.serving()
    serving.__enter__()
    while not (tmp_path / "runs" / "classify" / "orphan" / "state" / "last.safetensors").exists():
        runner.step()
    runner.active.pop(job.folder).held.close()  # as kill -9 does
    locks._held.pop(os.path.realpath(queue.folder))
    (queue.folder / ".lock").unlink()
    ClusterRunner(queue, ClusterPlan()).run()
    assert job.state.state == DONE
    assert epochs(job) == [1, 2, 3]


# --- commands -------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sweep_on_a_cluster(ray: FakeRay, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    given = settings(tmp_path, rate="log:1e-3..1e-1", trials=2, jobs=2, name="wide", cluster="ray", epochs=2)
    InProcess.stops_after = [1]
    ray.lose = lambda actor, method: actor is ray.actors[0] and actor.called.count("report") > 4
    words = [f"{name}={value}" for name, value in given.items()]
    assert main(["sweep", *words]) == 0
    record = find_sweep(tmp_path / "runs", "wide")
    assert [one.state for one in record.trials()] == ["finished"] * 2
    assert record.plan.cluster == ClusterPlan("ray")
    assert len(ray.actors) == 3, "one trial was continued"
    assert ray.addresses == ["auto"]
    assert not (tmp_path / "runs" / ".jobs").exists(), "no runner of this machine may start them"
    assert main(["sweep", "wide", "trials=3", f"runs={tmp_path / 'runs'}", "cluster=head:6379"]) == 0
    assert ray.addresses == ["auto", "head:6379"]
    assert len(find_sweep(tmp_path / "runs", "wide").trials()) == 3
    capsys.readouterr()
    assert main(["sweep", *[word for word in words if not word.startswith("cluster")]]) == 2
    assert "was started on a cluster. Add cluster=head:6379, or give another name=." in capsys.readouterr().err


@pytest.mark.slow
def test_folds_on_a_cluster_and_here(ray: FakeRay, tmp_path: Path) -> None:
    given = with_recipe("test", settings(tmp_path, name="cv", epochs=1))
    folder = cross_validate(given, 2, 2, cluster=ClusterPlan())
    assert [run.name for run in fold_runs(folder)] == ["cv-fold1", "cv-fold2"]
    assert len(ray.actors) == 2
    with np.load(folder / "out_of_fold.npz") as found:
        assert sorted(found["index"]) == list(range(90))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "digits", "cluster=ray"], "got one training. Add folds=5, or use weft sweep."),
        (["train", "digits", "folds=3", "cpus=2"], "cpus= is for clusters, got no cluster. Add cluster=ray"),
        (["train", "digits", "folds=3", "cluster=slurm"], "it must be ray, ray://HOST:PORT or HOST:PORT"),
        (["train", "digits", "folds=3", "cluster=ray", "device=cuda:1"], "device=cuda is required on a cluster"),
        (["train", "digits", "folds=3", "cluster=ray", "gpus=1"], "gpus= must suit the device"),
        (["sweep", "digits", "batch=8,16", "cluster=ray", "device=cuda", "gpus=2"], "a training uses one GPU, got gpus=2"),
        (["train", "digits", "folds=3", "cluster=ray", "cpus=8"], "a node with cpus=8 and gpus=0 is required, got nodes with 1 CPUs and 0 GPUs."),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(words: list[str], said: str, ray: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["sweep", "digits", "batch=8,16"], ["train", "digits", "folds=3"]])
def test_without_ray_there_is_one_sentence(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    assert main([*words, "cluster=ray"]) == 2
    said = capsys.readouterr().err
    assert (
        "clusters require the package ray, which is not installed. Run in the checkout of weft: pip install '.[ray]'."
        in said
    )
    assert not list(tmp_path.iterdir())


def test_a_cluster_that_cannot_be_reached_and_a_node_with_another_version(ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    queue, (job,) = queued(tmp_path, "old")
    monkeypatch.setattr(remote_training, "__version__", "0.0.9")
    ClusterRunner(queue, ClusterPlan()).run()
    assert job.state.state == FAILED
    assert "weft 0.1.0 is required on all nodes, got 0.0.9" in job.state.why

    def refuse(address: str, **more: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(RunError, match="the Ray cluster 'auto' cannot be reached: Could not find any running Ray"):
        ClusterRunner(queue, ClusterPlan()).run()


def test_a_node_without_weft_is_no_lost_node(ray: FakeRay, tmp_path: Path) -> None:
    queue, (job,) = queued(tmp_path, "bare")
    ray.lose, ray.death = lambda actor, method: True, "The actor died\nRuntimeError: The actor with name RemoteTraining failed to import on the worker.\nModuleNotFoundError: No module named 'weft'"  # fmt: skip
    ClusterRunner(queue, ClusterPlan()).run()
    assert job.state.state == FAILED
    assert (
        "is required on all nodes, and one of them has: ModuleNotFoundError: No module named 'weft'. Run in the checkout of weft: pip install '.[ray]'."
        in job.state.why
    )
    assert len(ray.actors) == 1


# --- files ----------------------------------------------------------------------------------------------------------------------


def test_what_has_changed_is_copied_and_annotations_stay(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for name in ("state/last.safetensors", "weights/epoch-0001.safetensors", "metrics.csv", "annotations.json", ".lock"):  # fmt: skip
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text(name)
    here.mkdir()
    (here / "annotations.json").write_text("mine")
    first = changed_files(there, file_stamps(here))
    assert next(iter(first)) == "state/last.safetensors", "read before what is newer"
    update_run(here, first, file_stamps(there))
    assert (here / "annotations.json").read_text() == "mine"
    assert not (here / ".lock").exists()
    assert set(changed_files(there, file_stamps(here))) <= {"annotations.json"}
    (there / "weights" / "epoch-0001.safetensors").unlink()
    (here / "own.txt").write_text("kept")
    (there / "metrics.csv").write_text("more")
    os.utime(there / "metrics.csv", ns=(1, 1))
    update_run(here, changed_files(there, file_stamps(here)), file_stamps(there))
    assert (here / "metrics.csv").read_text() == "more"
    assert not (here / "weights" / "epoch-0001.safetensors").exists()
    assert (here / "own.txt").exists()


def test_inputs_are_packed_or_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos" / "a").mkdir(parents=True)
    (tmp_path / "photos" / "a" / "1.txt").write_text("one")
    packed = packed_input("test", tmp_path / "photos")
    for _ in range(2):
        assert (unpacked_input(packed, tmp_path / "node") / "a" / "1.txt").read_text() == "one"
    assert [one.name for one in (tmp_path / "node").iterdir()] == [packed.digest]
    monkeypatch.setattr("weft.jobs.cluster.file_copies.LARGEST", 2)
    with pytest.raises(UserError, match="Put it into a folder that all nodes have, and add cluster_data=shared."):
        packed_input("test", tmp_path / "photos")
    _, (job,) = queued(tmp_path, "any")
    work, inputs = remote_work(job, tmp_path / "runs", ClusterPlan(data=SHARED))
    assert not inputs
    assert work.settings["data"] == str(tmp_path / "blobs.npz")
    known = {**job.settings, "data": "digits"}
    assert local_inputs(known) == {}


def test_the_process_of_a_node_ends_with_who_started_it() -> None:
    code = "from weft.jobs.cluster.remote_worker import end_with_parent; end_with_parent()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 1


def test_folders_of_killed_trainings_are_removed_by_the_next_one(tmp_path: Path) -> None:
    for name in ("weft-training-left", "weft-training-used", "weft-training-new", "weft-inputs-0"):
        (tmp_path / name).mkdir()
    with one_writer(tmp_path / "weft-training-used"):
        for name in ("weft-training-left", "weft-training-used", "weft-inputs-0"):
            os.utime(tmp_path / name, (1, 1))
        remove_left_folders(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["weft-inputs-0", "weft-training-new", "weft-training-used"]  # fmt: skip


# --- Ray itself -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_training_on_ray_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the others fake. benchmarks/ray_cluster.py has several nodes, and kills one."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
    try:
        queue, (job,) = queued(tmp_path, "real", device="cpu", epochs=2)
        ClusterRunner(queue, ClusterPlan()).run()
    finally:
        ray.shutdown()
    assert (job.state.state, job.state.why) == (DONE, "")
    assert epochs(job) == [1, 2]
    assert main(["eval", str(job.state.run)]) == 0
