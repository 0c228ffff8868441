"""Checks the quotas of people: what starts, what is rejected, and that every job says whose it is."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from store_tools import PASSWORD, QUICK_HASHER, new_store
from studio_tools import LocalStudio, make_run, served_studio
from weft.cli import main
from weft.errors import UserError
from weft.jobs import JobQueue, submit
from weft.jobs.datasets.create import create_dataset, submit_dataset
from weft.jobs.queue.needs import CPU, GPU, TASK, JobNeeds
from weft.jobs.queue.plan import RunnerSlots, queue_plan
from weft.jobs.queue.quotas import FILE, JobQuota, read_quotas, write_quotas
from weft.jobs.queue.scheduler import QueuedJob, plan
from weft.jobs.queue.slots import ComputeSlot, host_slots
from weft.jobs.queue.view import QueueView
from weft.studio.store import accounts
from weft.studio.store.accounts import Quota

SLOTS = [*(ComputeSlot(f"cuda:{i}", GPU, 10**10) for i in range(4)), *host_slots(4, 4)]
TRAINING = {"data": "digits", "model": "mlp", "epochs": 1}


def queued(number: int, slot: str, owner: str) -> QueuedJob:
    return QueuedJob(number, f"job-{number}", JobNeeds(slot, memory=10**9, seconds=60), owner)


def test_each_person_runs_as_many_jobs_of_a_kind_as_the_quota_says() -> None:
    jobs = [queued(1 + i, slot, "anna") for i, slot in enumerate([GPU, GPU, CPU, CPU, TASK, TASK])]
    jobs += [queued(7, GPU, "ben"), queued(8, GPU, "ben"), queued(9, CPU, "carl"), queued(10, CPU, "")]
    quotas = {"anna": JobQuota(gpu_jobs=1, cpu_jobs=1), "carl": JobQuota(cpu_jobs=0)}
    made = plan(SLOTS, [], jobs, 0.0, horizon=3600, quotas=quotas)
    assert [one.job.number for one in made.starting] == [1, 3, 5, 7, 8, 10]
    assert made.reasons == {
        2: "anna runs 1 GPU job already, the most by their quota",
        4: "anna runs 1 CPU job already, the most by their quota",
        6: "anna runs 1 task job already, the most by their quota",
        9: "carl may run no CPU jobs by their quota",
    }
    assert made.starts == {2: 60.0, 4: 60.0, 6: 60.0}  # when the first ones end


def test_a_quota_of_waiting_jobs_refuses_further_ones(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path)
    write_quotas(queue.folder, {"anna": JobQuota(waiting_jobs=2), "carl": JobQuota(cpu_jobs=0), "dora": JobQuota()})
    first = submit(queue, TRAINING, owner="anna")
    submit_dataset(queue, {"source": "digits", "folder": str(tmp_path / "d/v1")}, owner="anna")
    with pytest.raises(
        UserError, match="at most 2 waiting jobs are allowed by the quota of anna, got 1 more than the 2 that wait"
    ):
        submit(queue, TRAINING, owner="anna")
    for owner in ("ben", "dora", ""):
        submit(queue, TRAINING, owner=owner)
    with pytest.raises(UserError, match="carl may run no CPU jobs by their quota. Ask an administrator."):
        submit(queue, TRAINING, owner="carl")
    queue.cancel(first)
    submit(queue, TRAINING, owner="anna")
    with pytest.raises(UserError, match="at most 2 waiting jobs"):
        queue.resume(first)
    assert first.state.why == "cancelled"


def test_two_submissions_at_the_same_time_do_not_pass_a_quota_together(tmp_path: Path) -> None:
    queue, refused = JobQueue(tmp_path), []
    write_quotas(queue.folder, {"anna": JobQuota(waiting_jobs=3)})

    def add() -> None:
        try:
            queue.add(TRAINING, owner="anna")
        except UserError as error:
            refused.append(error)

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(queue.jobs()), len(refused)) == (3, 5)


def test_a_damaged_file_limits_nobody(tmp_path: Path) -> None:
    write_quotas(tmp_path, {"anna": JobQuota(1, 2, 3)})
    assert read_quotas(tmp_path) == {"anna": JobQuota(1, 2, 3)}
    for text in (
        "",
        "[]",
        '{"anna": 3}',
        '{"anna": {"gpu_jobs": -1, "cpu_jobs": null, "waiting_jobs": null}}',
        '{"anna": {}}',
    ):
        (tmp_path / FILE).write_text(text)
        assert read_quotas(tmp_path) == {}


def test_the_store_tells_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(accounts, "HASHER", QUICK_HASHER)
    store, queue = new_store(tmp_path), JobQueue(tmp_path)
    store.accounts.add("anna", PASSWORD)
    store.accounts.add("ben", PASSWORD)
    store.settings.change({"waiting_jobs": "5"}, by="root")
    store.accounts.set_quota("anna", Quota(cpu_jobs=1))
    store.publish_quotas()
    assert read_quotas(queue.folder) == {"anna": JobQuota(None, 1, 5), "ben": JobQuota(None, None, 5)}
    assert main(["user", "quota", "ben", "waiting_jobs=1", "gpu_jobs=2", f"runs={tmp_path}"]) == 0
    assert capsys.readouterr().out == "ben: 2 GPU jobs, any CPU jobs, any disk space, 1 waiting job.\n"
    assert read_quotas(queue.folder)["ben"] == JobQuota(2, None, 1)
    store.close()
    jobs = [queue.add(TRAINING, owner="anna") for _ in range(2)]
    view = QueueView(queue.folder)
    made = queue_plan(view, view.jobs(), RunnerSlots(tuple(SLOTS)), 0.0)
    assert made.reasons == {jobs[1].number: "anna runs 1 CPU job already, the most by their quota"}


# --- whose jobs they are ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    folder = tmp_path_factory.mktemp("owners")
    run = make_run(folder / "runs", "done", [0.5, 0.9], model="mlp")
    (run / "weights").mkdir()
    (run / "weights" / "best.safetensors").write_bytes(b"")
    create_dataset(
        {"source": "digits", "folder": str(folder / "datasets/small/v1"), "size": 8}, None, lambda event: None
    )
    (folder / "photos").mkdir()
    with served_studio(folder / "runs", roots=(folder,)) as found:
        found.studio.index.refresh()
        found.studio.datasets.index.refresh()
        yield found


RUN, VERSION = "/api/v1/runs/classify/done", "/api/v1/datasets/small"
REQUESTS = {
    "train": ("/api/v1/jobs", {"settings": TRAINING}),
    "dataset": ("/api/v1/datasets", {"kind": "known", "source": "digits", "name": "other", "size": "8"}),
    "dataset-version": (f"{VERSION}/v1/changes", {"remove": {"train": [3]}}),
    "doctor": (f"{VERSION}/versions/1/doctor", {}),
    "export": (f"{RUN}/exports", {"to": "weft"}),
    "embedding": (f"{RUN}/embedding", {}),
    "predict": ("/api/v1/predictions", {"network": "classify/done", "path": "photos"}),
    "extend": (f"{RUN}/extend", {"more": 3}),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_every_job_of_the_studio_has_an_owner(local: LocalStudio, kind: str) -> None:
    path, body = REQUESTS[kind]
    if kind == "predict":
        body = {**body, "path": str(local.studio.config.runs.parent / "photos")}
    before = len(local.studio.queue.jobs())
    status, answer = local.request("POST", path, body)
    assert status == 200, answer
    made = local.studio.queue.jobs()[before:]
    assert [(one.kind, one.submitted()["owner"]) for one in made] == [("train" if kind == "extend" else kind, "local")]


def test_a_sweep_beyond_the_quota_adds_no_job(local: LocalStudio) -> None:
    queue = local.studio.queue
    shutil.rmtree(queue.folder)
    write_quotas(queue.folder, {"local": JobQuota(waiting_jobs=2)})
    sweep = {**TRAINING, "rate": "0.1,0.03,0.01"}
    status, answer = local.request("POST", "/api/v1/jobs", {"settings": sweep})
    assert (status, queue.jobs()) == (400, [])
    assert "got 3 more than the 0 that wait" in answer["message"]
    assert local.request("POST", "/api/v1/jobs", {"settings": {**sweep, "rate": "0.1,0.03"}})[0] == 200
    write_quotas(queue.folder, {})  # other tests use this studio
