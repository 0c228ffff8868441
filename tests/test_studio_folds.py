"""Cross-validations and ensembles in the studio: the form, the REST routes, the client, and what the pages show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from studio_tools import LocalStudio, make_run, served_studio
from test_ensemble import images, member
from weft import cli
from weft.jobs import JobQueue
from weft.jobs.queue.kinds import ENSEMBLE, FOLDS
from weft.jobs.queue.record import FAILED
from weft.knobs import knobs
from weft.studio import Client
from weft.studio.library.folds_form import check_folds_form, with_folds
from weft.studio.library.training_fields import GROUPS

FORM = {"data": "digits", "model": "mlp", "epochs": "2", "folds": "3"}
PATH = "/api/v1/folds"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    root = tmp_path_factory.mktemp("folds")
    with knobs.set(device="reference"):  # nothing is trained here
        images(root / "images.npz")
        for number, name in enumerate(("one", "two")):
            member(root, name, number)
        with served_studio(root / "runs") as started:
            yield started


def test_the_form_says_what_would_happen(tmp_path: Path) -> None:
    check = check_folds_form(FORM, str(tmp_path))
    assert (check.error, check.folds, check.runs) == ("", 3, 3)
    assert check.command == "weft train data=digits model=mlp epochs=2 folds=3"
    assert check.network is not None
    wrong = {
        "1": "2 folds or more are required", "many": "folds", "-2": "folds",
    }  # fmt: skip
    for folds, said in wrong.items():
        found = check_folds_form({**FORM, "folds": folds}, str(tmp_path))
        assert said in found.error
        assert found.field == "folds" or folds == "1"
    several = check_folds_form({**FORM, "rate": "0.1, 0.03"}, str(tmp_path))
    assert "one value of each setting is required for a cross-validation" in several.error
    assert check_folds_form({**FORM, "rate": "log:1e-4..1e-1"}, str(tmp_path)).error == several.error
    names = [field.name for group in with_folds(GROUPS) for field in (*group.fields, *group.more)]
    assert names.count("folds") == 1


def test_one_is_started_paused_and_continued(server: LocalStudio) -> None:
    status, made = server.request("POST", PATH, {"folds": 3, "settings": {"data": "digits", "model": "mlp", "epochs": 2}})  # fmt: skip
    assert (status, made["name"], made["open"]) == (200, "digits-mlp-folds-1", "/folds/digits-mlp-folds-1")
    job = JobQueue(server.runs).job(made["number"])
    assert (job.kind, job.submitted()["owner"], job.settings["folds"]) == (FOLDS, "local", 3)
    name = made["name"]
    (shown,) = server.request("GET", PATH)[1]
    assert (shown["status"], shown["job"], shown["folds"], shown["model"]) == ("waiting", job.number, 3, "mlp")
    page = server.web.get(f"/folds/{name}").text
    assert "0 of 3 folds" in page
    assert f"POST /folds/{name}/pause" in page
    assert server.request("POST", f"{PATH}/{name}/pause")[0] == 200
    assert server.request("GET", f"{PATH}/{name}")[1]["status"] == "paused"
    assert f"POST /folds/{name}/resume" in server.web.get(f"/folds/{name}").text
    assert server.request("POST", f"{PATH}/{name}/resume")[1]["number"] == job.number
    assert server.request("GET", f"{PATH}/{name}")[1]["status"] == "waiting"
    job.set(FAILED, "[weft train] the disk is full.")
    assert server.request("GET", f"{PATH}/{name}")[1]["why"] == "[weft train] the disk is full."
    assert "the disk is full" in server.web.get(f"/folds/{name}").text
    assert name in server.web.get("/folds").text


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        ({"folds": 1, "settings": {"data": "digits"}}, 422, "greater than or equal to 2"),
        ({"folds": 3, "settings": {"data": "/etc/passwd"}}, 400, "a path that exists in an allowed folder"),
        ({"folds": 3, "settings": {"data": "digits", "exist_ok": True}}, 400, "got 'exist_ok'"),
        ({"folds": 3, "settings": {"data": "digits", "rate": "0.1,0.2"}}, 400, "one value of each setting"),
        ({"folds": 3, "settings": {}}, 400, "requires data"),
    ],
)
def test_what_cannot_be_is_refused(server: LocalStudio, content: Any, status: int, said: str) -> None:
    before = len(JobQueue(server.runs).jobs())
    found, answer = server.request("POST", PATH, content)
    assert found == status
    assert said in json.dumps(answer)
    assert len(JobQueue(server.runs).jobs()) == before
    assert server.request("POST", f"{PATH}/nothing/pause")[0] == 400


def test_an_ensemble_is_a_job(server: LocalStudio) -> None:
    ids = ["classify/one", "classify/two"]
    status, made = server.request("POST", "/api/v1/ensembles", {"runs": ids, "method": "vote", "name": "both"})
    assert (status, made["name"]) == (200, "both")
    job = JobQueue(server.runs).job(made["number"])
    assert (job.kind, job.settings["method"], [Path(one).name for one in job.settings["members"]]) == (ENSEMBLE, "vote", ["one", "two"])  # fmt: skip
    for content, found, said in (
        ({"runs": ["classify/one"]}, 400, "two or more different runs"),
        ({"runs": [*ids, "../../etc"]}, 404, "there is no run"),
        ({"runs": ids, "name": "both"}, 400, "a name that is not taken"),
        ({"runs": ids, "soup": "greedy"}, 400, "method=weights is required"),
        ({"folds": "nothing"}, 404, "There is no cross-validation nothing"),
        ({"runs": ids, "runs_folder": "/"}, 422, "runs_folder"),
    ):
        status, answer = server.request("POST", "/api/v1/ensembles", content)
        assert (status, said in json.dumps(answer)) == (found, True), answer
    assert "Make ensemble" in server.web.get(f"/compare?runs={','.join(ids)}").text
    assert [one["name"] for one in server.request("GET", "/api/v1/ensembles/settings")[1]] == ["method", "soup", "name", "device"]  # fmt: skip


def test_the_page_of_an_ensemble_compares_it_with_its_members(server: LocalStudio) -> None:
    folder = make_run(server.runs, "pair", [0.9])
    scores = [("one", 0.8, 0.5), ("two", 0.9, 0.4)]
    members = [{"run": str(server.runs / "classify" / name), "network": "mlp", "test": {"loss": loss, "accuracy": share}} for name, share, loss in scores]  # fmt: skip
    known = {"method": "weights", "members": members, "split": "test", "examples": 24, "result": {"loss": 0.3, "accuracy": 0.95}, "chosen": [members[1]["run"]]}  # fmt: skip
    (folder / "ensemble.json").write_text(json.dumps(known))
    (folder / "summary.json").write_text(json.dumps({"ended": "all epochs are done", "test": known["result"], "ensemble": known}))  # fmt: skip
    server.studio.feed.look(True)
    page = server.web.get("/runs/classify/pair").text
    for text in ("Ensemble of 2 runs", "mean of the weights; measured on 24 test examples", "left out", "Versus the best member", "+5.0", "95.0 %"):  # fmt: skip
        assert text in page, text
    assert "Extend by epochs" not in page, "it was not trained"


def test_clients_and_commands_start_them(server: LocalStudio, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    with Client(server.address, server.token) as client:
        made = client.cross_validate(2, data="digits", model="mlp", name="by-client")
        assert client.job(made["number"])["settings"]["folds"] == 2
        assert client.ensemble(["classify/one", "classify/two"], name="by-client-too")["name"] == "by-client-too"
    monkeypatch.setenv("WEFT_STUDIO_TOKEN", server.token)
    monkeypatch.setattr("weft.cli.remote._show_events", lambda client, number, json: print("follows", number))
    assert cli.main(["train", "digits", "model=mlp", "folds=4", "name=by-command", f"server={server.address}"]) == 0
    number = int(capsys.readouterr().out.split()[-1])
    assert JobQueue(server.runs).job(number).settings["folds"] == 4
