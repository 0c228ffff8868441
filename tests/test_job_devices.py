"""Checks that a job for a device that there is not is rejected when it is submitted, wherever that is done."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from weft.cli import main
from weft.errors import UserError
from weft.jobs import JobQueue, submit
from weft.jobs.prediction.predictions import PredictionRequest, submit_predictions
from weft.jobs.queue.needs import GPU, TASK, needs_of
from weft.jobs.queue.plan import RunnerSlots, queue_plan, write_slots
from weft.jobs.queue.slots import ComputeSlot, host_slots
from weft.jobs.queue.view import QueueView
from weft.locks import one_writer
from weft.studio.library.embeddings import submit_embedding
from weft.studio.library.training_form import check_form

TRAINING = {"data": "digits", "model": "mlp", "epochs": 1}
MISSING = "a device of this machine is required, got device=cuda, and no GPU was found. Devices: cpu."


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobQueue:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    queue = JobQueue(tmp_path / "runs")
    queue.folder.mkdir(parents=True)
    return queue


def offer(queue: JobQueue, gpus: int) -> None:
    slots = [ComputeSlot(f"cuda:{i}", GPU, 10**10) for i in range(gpus)]
    write_slots(queue.folder, RunnerSlots((*slots, *host_slots(1))))


def test_a_missing_device_is_refused_when_a_job_is_submitted(
    queue: JobQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=f"{MISSING} GPUs are found with the package nvidia-ml-py"):
        submit(queue, {**TRAINING, "device": "cuda"})
    with pytest.raises(UserError, match=MISSING):
        submit_predictions(queue, PredictionRequest("net", ["images"], device="cuda"))
    assert not (queue.root / ".predictions").exists()
    assert main(["job", "submit", "digits", "model=mlp", "device=cuda", f"runs={queue.root}"]) == 2
    assert MISSING in capsys.readouterr().err
    checked = check_form({**{n: str(v) for n, v in TRAINING.items()}, "device": "cuda"}, str(queue.root))
    assert (checked.field, MISSING in checked.error) == ("device", True)
    assert queue.jobs() == []


def test_the_gpus_of_the_runner_count(queue: JobQueue) -> None:
    offer(queue, 2)
    submit(queue, {**TRAINING, "device": "cuda"})
    submit(queue, {**TRAINING, "device": "cuda:1"})
    for given, gpus, got in (({"device": "cuda:2"}, 1, "device=cuda:2"), ({"device": "cuda"}, 3, "gpus=3")):
        with pytest.raises(UserError, match=rf"got {got}\. Devices: cpu, cuda:0, cuda:1\.$"):
            submit(queue, {**TRAINING, **given}, gpus=gpus)
    assert len(queue.jobs()) == 2


def test_the_gpus_of_this_machine_count_unless_another_one_runs_the_queue(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = SimpleNamespace(
        NVMLError=OSError, nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda i: i, nvmlDeviceGetUUID=lambda i: "GPU-a",
        nvmlDeviceGetMemoryInfo=lambda i: SimpleNamespace(total=10**10),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    offer(queue, 0)
    assert queue.gpus() == ["cuda:0"]
    with one_writer(queue.folder):
        assert queue.gpus() == []


def test_a_job_whose_device_has_gone_says_so(queue: JobQueue) -> None:
    offer(queue, 2)
    jobs = [submit(queue, {**TRAINING, "device": name}) for name in ("cuda", "cuda:1")]

    def reasons(gpus: int) -> list[str]:
        slots = [ComputeSlot(f"cuda:{i}", GPU, 10**10) for i in range(gpus)]
        view = QueueView(queue.folder)
        found = queue_plan(view, view.jobs(), RunnerSlots((*slots, *host_slots(1))), time.time()).reasons
        return [found.get(job.number, "") for job in jobs]

    end = "Submit it again for another device"
    assert reasons(0) == [
        f"Waits for a GPU, which this machine does not have: it has no GPU. {end}",
        f"Waits for cuda:1, which this machine does not have: it has no GPU. {end}",
    ]
    assert reasons(1) == ["", f"Waits for cuda:1, which this machine does not have: it has cuda:0. {end}"]
    assert reasons(2) == ["", ""]


def test_a_map_of_a_run_from_another_machine_is_made_on_the_cpu(queue: JobQueue) -> None:
    def device_of(name: str | None) -> str:
        weights = queue.root / str(name) / "weights"
        weights.mkdir(parents=True)
        (weights / "best.safetensors").touch()
        row = SimpleNamespace(
            name="r", folder=queue.root / str(name), model="mlp", data="digits", settings={"device": name}
        )
        return str(submit_embedding(queue, row, {}).settings["device"])  # type: ignore[arg-type]

    assert [device_of(name) for name in (None, "cuda", "cuda:1")] == ["cpu", "cpu", "cpu"]
    offer(queue, 1)
    assert [device_of(name) for name in ("cuda:0", "cuda:7")] == ["cuda:0", "cpu"]
    assert needs_of("embedding", {"device": "cpu"}).slot == TASK
