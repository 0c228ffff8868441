"""Runs as MLflow reads them. MlflowClient 3.17 was seen to read these answers: experiments, runs in pages and in order, histories of metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nicegui")

from studio_tools import LocalStudio, make_run, served_studio

API = "/api/2.0/mlflow"
INFO = {"run_id", "run_uuid", "run_name", "experiment_id", "user_id", "status", "start_time", "end_time", "artifact_uri", "lifecycle_stage"}  # fmt: skip


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    root: Path = tmp_path_factory.mktemp("mlflow") / "runs"
    make_run(root, "one", [0.5, 0.9])
    make_run(root, "two", [0.4, 0.95], ended=False, epochs=9)
    with served_studio(root) as served:
        yield served


def test_tasks_are_experiments(local: LocalStudio) -> None:
    (found,) = local.request("POST", f"{API}/experiments/search", {})[1]["experiments"]
    assert (found["experiment_id"], found["name"], found["lifecycle_stage"]) == ("classify", "classify", "active")
    assert local.request("GET", f"{API}/experiments/get?experiment_id=classify")[1] == {"experiment": found}
    assert local.request("GET", f"{API}/experiments/get-by-name?experiment_name=classify")[1] == {"experiment": found}
    status, told = local.request("GET", f"{API}/experiments/get?experiment_id=7")
    assert (status, told["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")


def test_runs_are_searched_in_pages_and_in_order(local: LocalStudio) -> None:
    asked = {"experiment_ids": ["classify"], "order_by": ["metrics.validation_accuracy DESC"], "max_results": 1}
    first = local.request("POST", f"{API}/runs/search", asked)[1]
    second = local.request("POST", f"{API}/runs/search", {**asked, "page_token": first["next_page_token"]})[1]
    runs = [*first["runs"], *second["runs"]]
    assert [run["info"]["run_name"] for run in runs] == ["two", "one"]
    assert [run["info"]["status"] for run in runs] == ["KILLED", "FINISHED"]
    assert "next_page_token" not in second
    assert set(runs[1]["info"]) == INFO
    assert {"key": "model", "value": "lenet5"} in runs[1]["data"]["params"]
    last = {one["key"]: (one["value"], one["step"]) for one in runs[1]["data"]["metrics"]}
    assert last["validation_accuracy"] == (0.9, 2)
    assert local.request("POST", f"{API}/runs/search", {"experiment_ids": ["other"]})[1] == {"runs": []}
    status, told = local.request(
        "POST", f"{API}/runs/search", {"experiment_ids": ["classify"], "filter": "metrics.x > 1"}
    )
    assert (status, told["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


def test_the_history_of_a_metric(local: LocalStudio) -> None:
    runs = local.request("POST", f"{API}/runs/search", {"experiment_ids": ["classify"]})[1]["runs"]
    key = next(run["info"]["run_id"] for run in runs if run["info"]["run_name"] == "one")
    assert local.request("GET", f"{API}/runs/get?run_id={key}")[1]["run"]["info"]["run_name"] == "one"
    found = local.request("GET", f"{API}/metrics/get-history?run_id={key}&metric_key=validation_accuracy")[1]["metrics"]
    assert [(one["step"], one["value"]) for one in found] == [(1, 0.5), (2, 0.9)]
    assert found[1]["timestamp"] - found[0]["timestamp"] == 2500
    page = local.request("GET", f"{API}/metrics/get-history?run_id={key}&metric_key=train_loss&max_results=1")[1]
    assert (len(page["metrics"]), page["next_page_token"]) == (1, "1")
    assert local.request("GET", f"{API}/runs/get?run_id=none")[0] == 404
