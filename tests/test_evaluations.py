"""Evaluations of a run on any split with any checkpoint: from Python, the command line, a job, the API and the page."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from run_tools import api, run_with_weights
from studio_tools import BROWSER, LocalStudio, chromium, page_errors, served_studio
from weft.cli import main
from weft.errors import RunError, UserError
from weft.jobs import JobQueue, evaluate_run, evaluations, find_evaluation, submit_evaluation
from weft.jobs.evaluations import saved_evaluations, split_names
from weft.jobs.queue.kinds import work_of
from weft.report.evaluation import read_evaluation, write_evaluation
from weft.report.predictions import read_predictions
from weft.studio.library.run_evaluations import evaluation_choice
from weft.studio.ui.context import Studio

CHECKPOINTS = ("best", "last", "epoch-0001", "epoch-0002")
RUN = "/runs/classify/small"


def small_run(root: Path, **settings: object) -> Path:
    """A run whose test split with the best weights was evaluated at its end."""
    folder = run_with_weights(root, "small", CHECKPOINTS, model="mlp", **settings)
    made = evaluate_run(folder)
    evaluations.write_scores(folder, made.found, made.split)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("evaluations") / "runs")


@pytest.fixture(scope="module")
def saved(folder: Path) -> Path:
    """Where the evaluation of the validation split with the weights of the first epoch was saved."""
    evaluate_run(folder, "validation", "epoch-0001", save=True)
    found = find_evaluation(folder, "validation", "epoch-0001")
    assert found is not None
    return found


# --- saved evaluations --------------------------------------------------------------------------------------------------------


def test_the_evaluation_of_a_checkpoint_is_saved(folder: Path, saved: Path) -> None:
    assert saved == folder / "evaluations" / "validation-epoch-0001"
    assert sorted(one.name for one in saved.iterdir()) == ["evaluation.json", "predictions.npz", "thumbnails.npz"]
    assert [one.name for one in saved.parent.iterdir() if one.name.startswith(".")] == []
    scores, known = read_evaluation(saved), read_predictions(saved)
    assert scores is not None
    assert known is not None
    assert (scores["split"], scores["examples"]) == ("validation", len(known.true)) == ("validation", 145)
    other = evaluate_run(folder, "validation", "epoch-0002").found.numbers["accuracy"]
    assert scores["accuracy"] == pytest.approx(float(known.right.mean()))
    assert scores["accuracy"] != pytest.approx(other)
    assert find_evaluation(folder) == find_evaluation(folder, "test") == folder
    assert find_evaluation(folder, "test", "epoch-0001") is None
    assert find_evaluation(folder, "validation") is None
    assert {"split": "test", "checkpoint": "best", "examples": 359} in saved_evaluations(folder)
    assert {"split": "validation", "checkpoint": "epoch-0001", "examples": 145} in saved_evaluations(folder)


def test_what_a_killed_process_left_is_removed(folder: Path, saved: Path) -> None:
    """A hidden folder that was left long ago; one that another process writes to just now stays."""
    for name, age in ((".train-best.old", 2 * evaluations.STALE_SECONDS), (".train-best.new", 0)):
        (saved.parent / name / "new").mkdir(parents=True)
        os.utime(saved.parent / name, times=(time.time() - age,) * 2)
    evaluate_run(folder, "validation", "epoch-0001", save=True)
    assert [one.name for one in saved.parent.glob(".*")] == [".train-best.new"]
    shutil.rmtree(saved.parent / ".train-best.new")


def test_it_counts_while_the_weights_are_unchanged(folder: Path, saved: Path) -> None:
    weights = folder / "weights" / "epoch-0001.safetensors"
    before = weights.stat()
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert find_evaluation(folder, "validation", "epoch-0001") is None
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert find_evaluation(folder, "validation", "epoch-0001") == saved
    weights.rename(folder / "elsewhere")
    assert find_evaluation(folder, "validation", "epoch-0001") is None
    (folder / "elsewhere").rename(weights)


def test_weights_that_change_while_they_are_evaluated_make_an_old_evaluation(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = evaluations.evaluated

    def slow(*given: Any, **named: Any) -> Any:
        os.utime(folder / "weights" / "last.safetensors")
        return first(*given, **named)

    monkeypatch.setattr(evaluations, "evaluated", slow)
    evaluate_run(folder, "validation", "last", save=True)
    assert find_evaluation(folder, "validation", "last") is None


def test_all_files_are_replaced_or_none(folder: Path, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (saved / "evaluation.json").read_bytes()

    def full(place: Path, *given: Any, **named: Any) -> None:
        write_evaluation(place, {"split": "validation"})
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(evaluations, "write_scores", full)
        with pytest.raises(RunError, match="cannot be written: No space left on device"):
            evaluate_run(folder, "validation", "epoch-0001", save=True)
    assert (saved / "evaluation.json").read_bytes() == before
    assert [one.name for one in saved.parent.iterdir() if one.name.startswith(".")] == []
    evaluate_run(folder, "validation", "epoch-0001", save=True)
    assert json.loads((saved / "evaluation.json").read_text()) == json.loads(before)


def test_the_splits_of_a_run(folder: Path, tmp_path: Path) -> None:
    assert split_names(folder) == ["train", "validation", "test"]
    (tmp_path / "data.json").write_text(json.dumps({"splits": {"train": 9, "test": 4}}))
    assert split_names(tmp_path) == ["train", "test"]  # without opening the data


def test_a_text_is_not_saved(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("to be or not to be " * 40)
    folder = run_with_weights(
        tmp_path, "text", ("best",), data=str(tmp_path / "words.txt"), model="char_lstm", length=8
    )
    with pytest.raises(UserError, match="save=true keeps scores of classes or numbers"):
        evaluate_run(folder, save=True)
    assert evaluation_choice(folder, None, None) is None


# --- command line and jobs ----------------------------------------------------------------------------------------------------


def test_weft_eval_of_a_checkpoint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", str(folder), "split=train", "checkpoint=epoch-0002"]
    assert main([*words, "save=true", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = find_evaluation(folder, "train", "epoch-0002")
    assert found is not None
    assert (told["checkpoint"], told["report"]["accuracy"]) == (
        "epoch-0002",
        (read_evaluation(found) or {})["accuracy"],
    )
    assert main(["eval", str(folder), "checkpoint=epoch-0009"]) == 2
    assert "a checkpoint of small is required (best, last, epoch-0001, epoch-0002)" in capsys.readouterr().err
    assert main([*words, "save=true", "data=digits"]) == 2
    assert "save=true keeps evaluations on the data of the run" in capsys.readouterr().err


def test_a_job_evaluates(folder: Path, tmp_path: Path) -> None:
    queue = JobQueue(tmp_path)
    job = submit_evaluation(queue, folder, "test", "epoch-0002")
    assert submit_evaluation(queue, folder, "test", "epoch-0002").number == job.number  # it waits already
    assert submit_evaluation(queue, folder, "test", "epoch-0001").number != job.number
    events: list[Any] = []
    work_of(job.kind)(job.settings, None, events.append)
    shares = [(event["done"], event["total"]) for event in events if event.type == "progress"]
    assert shares == [(256, 359), (359, 359)]
    assert find_evaluation(folder, "test", "epoch-0002") == folder / "evaluations" / "test-epoch-0002"
    with pytest.raises(UserError, match="there is no dreams split; there are train, validation, test"):
        submit_evaluation(queue, folder, "dreams")


# --- API ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def web(folder: Path, saved: Path) -> tuple[TestClient, Studio]:
    return api(folder.parent.parent)


def test_the_api_answers_for_a_split_and_a_checkpoint(web: tuple[TestClient, Studio], saved: Path) -> None:
    client, _ = web
    chosen = "split=validation&checkpoint=epoch-0001"
    assert client.get(f"{RUN}/evaluation").json()["split"] == "test"
    assert client.get(f"{RUN}/evaluation?{chosen}").json() == read_evaluation(saved)
    known = read_predictions(saved)
    assert known is not None
    wrong = client.get(f"{RUN}/examples?{chosen}&limit=1").json()
    assert wrong["count"] == int((~known.right).sum())
    cell = int(known.true[0]), int(known.predicted[0])
    asked = f"{RUN}/examples?{chosen}&row={cell[0]}&column={cell[1]}"
    assert 0 in [one["index"] for one in client.get(asked).json()["examples"]]
    number = wrong["examples"][0]["index"]
    pictures = [client.get(f"{RUN}/examples/{number}.png?{query}") for query in (chosen, "")]
    assert pictures[0].content[:4] == b"\x89PNG"
    assert pictures[0].content != pictures[1].content


def test_the_api_says_what_there_is(web: tuple[TestClient, Studio]) -> None:
    client, _ = web
    found = client.get(f"{RUN}/evaluations").json()
    assert found["splits"] == ["train", "validation", "test"]
    assert found["checkpoints"] == list(CHECKPOINTS)
    assert {"split": "validation", "checkpoint": "epoch-0001", "examples": 145} in found["evaluations"]


def test_the_api_refuses_wrong_names(web: tuple[TestClient, Studio]) -> None:
    client, _ = web
    for query, status, words in (
        ("split=dreams", 422, "train"),
        ("checkpoint=epoch-0009", 404, "there is no checkpoint epoch-0009 of small; there are best, last, epoch-0001"),
        ("checkpoint=../best", 404, "there is no checkpoint ../best"),
        ("split=train", 404, "is not evaluated on train with best yet: POST /runs/classify/small/evaluations"),
    ):
        for path in ("evaluation", "examples", "examples/0.png"):
            answer = client.get(f"{RUN}/{path}?{query}")
            assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert client.post(f"{RUN}/evaluations", json={"split": "dreams"}).status_code == 422
    assert client.post(f"{RUN}/evaluations", json={"split": "train", "checkpoint": "worst"}).status_code == 404


def test_the_api_starts_a_job(web: tuple[TestClient, Studio]) -> None:
    client, studio = web
    number = client.post(f"{RUN}/evaluations", json={"split": "train", "checkpoint": "last"}).json()["number"]
    job = studio.queue.job(number)
    assert (job.kind, job.settings["split"], job.settings["checkpoint"]) == ("evaluation", "train", "last")
    studio.queue.cancel(job)


def test_a_split_that_the_data_does_not_have(tmp_path: Path) -> None:
    run_with_weights(tmp_path, "small", ("best",), model="mlp", validation=0.0)
    client, _ = api(tmp_path)
    for answer in (
        client.get(f"{RUN}/evaluation?split=validation"),
        client.post(f"{RUN}/evaluations", json={"split": "validation"}),
    ):
        assert answer.status_code == 404
        assert "there is no validation split of small; there are train, test" in answer.text


# --- the page -----------------------------------------------------------------------------------------------------------------


def test_what_can_be_chosen(folder: Path, saved: Path) -> None:
    choice = evaluation_choice(folder, None, None)
    assert choice is not None
    assert (choice.split, choice.title, choice.splits) == ("test", "Best, epoch 3", ("train", "validation", "test"))
    assert list(choice.checkpoints.values()) == ["Best, epoch 3", "Last, epoch 3", "Epoch 1", "Epoch 2"]
    assert choice.shown is not None
    assert (choice.shown.folder, choice.shown.query) == (folder, "")
    other = evaluation_choice(folder, "validation", "epoch-0001")
    assert other is not None
    assert other.shown is not None
    assert other.shown.folder == saved
    assert other.shown.query.startswith("?split=validation&checkpoint=epoch-0001&v=")
    for split, checkpoint in (("dreams", None), (None, "epoch-0009")):
        with pytest.raises(UserError, match="there is no .* of small; there are"):
            evaluation_choice(folder, split, checkpoint)


def test_without_its_data_a_run_shows_what_there_is(tmp_path: Path) -> None:
    inputs, labels = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32), np.arange(40) % 2
    np.savez(tmp_path / "some.npz", x=inputs, y=labels)
    folder = small_run(tmp_path / "runs", data=str(tmp_path / "some.npz"))
    (tmp_path / "some.npz").unlink()
    evaluations._opened_split_sizes.cache_clear()
    choice = evaluation_choice(folder, None, None)
    assert choice is not None
    assert choice.shown is not None
    assert len(choice.splits) == 1
    assert "some.npz" in choice.problem


def test_an_evaluation_of_a_split_that_is_gone_is_shown_without_a_choice(tmp_path: Path) -> None:
    folder = run_with_weights(tmp_path, "small", ("best",), model="mlp")
    write_evaluation(folder, {"split": "", "examples": 3})
    assert evaluation_choice(folder, None, None) is None
    write_evaluation(folder, {"split": "validation", "examples": 3})
    choice = evaluation_choice(folder, None, None)
    assert choice is not None
    assert choice.split == "validation"


@pytest.fixture(scope="module")
def server(folder: Path, saved: Path) -> Iterator[LocalStudio]:
    runs = folder.parent.parent
    with served_studio(runs, runner=True, roots=(runs.parent,)) as started:
        yield started


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
def test_another_checkpoint_is_chosen_and_evaluated_in_a_browser(server: LocalStudio) -> None:
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        errors = page_errors(page)
        page.goto(server.way_in)
        page.goto(f"{server.address}/runs/classify/small?tab=evaluation")
        first = _accuracy(page)
        assert page.locator("nav[aria-label=Split] [aria-current]").inner_text() == "Test"
        page.get_by_label("Checkpoint").select_option(label="Epoch 1")
        page.get_by_role("heading", name="Not evaluated yet").wait_for()
        page.get_by_role("link", name="Train").click()
        page.wait_for_url("**split=train&checkpoint=epoch-0001")
        page.get_by_role("button", name="Evaluate", exact=True).click()
        page.locator("section[aria-label=Job]").wait_for()
        second = _accuracy(page)
        page.locator("section[aria-label=Job]").wait_for(state="hidden")
        page.locator("section[aria-label='Worst mistakes'] img[src*='checkpoint=epoch-0001']").first.wait_for()
        page.locator("section[aria-label='Images in the selected cell'] img").first.wait_for()
        page.reload()
        assert _accuracy(page) == second != first
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
        assert errors == []
        answer = page.goto(f"{server.address}/runs/classify/small?tab=evaluation&checkpoint=epoch-0009")
        assert answer.status == 404
        page.get_by_text("there is no checkpoint epoch-0009 of small").wait_for()


def _accuracy(page: Any) -> str:
    tile = page.locator("section[aria-label=Scores] .metric").first
    tile.wait_for(timeout=60_000)
    return str(tile.inner_text())
