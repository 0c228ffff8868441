"""Runs as an MLflow tracking server shows them, to read: MlflowClient and tools that are made for it work with a studio.

export MLFLOW_TRACKING_URI=http://127.0.0.1:8800 MLFLOW_TRACKING_TOKEN=$WEFT_STUDIO_TOKEN

A task (classify, regress, text) is an experiment. Nothing can be written.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from ...jobs.schema import as_text
from ..library.runs import RunRow
from ..ui.context import Studio

PREFIX = "/api/2.0/mlflow"
STATUS = {"running": "RUNNING", "finished": "FINISHED", "stopped": "KILLED"}
NOT_METRICS = ("epoch", "steps")
MOST = 1000  # runs in an answer


class RunSearch(BaseModel):
    """What MlflowClient.search_runs sends."""

    model_config = ConfigDict(extra="ignore")
    experiment_ids: list[str] = []
    filter: str = ""
    max_results: int = MOST
    order_by: list[str] = []
    page_token: str = ""


class ExperimentSearch(BaseModel):
    """What MlflowClient.search_experiments sends."""

    model_config = ConfigDict(extra="ignore")
    filter: str = ""


def router(studio: Studio) -> APIRouter:
    """The routes of MLflow that read."""
    routes = APIRouter(tags=["MLflow"])

    def find(run_id: str) -> RunRow | None:
        return next((row for row in studio.index.rows() if run_key(row) == run_id), None)

    @routes.post("/experiments/search", response_model=dict[str, Any])
    def search_experiments(asked: ExperimentSearch) -> Any:
        """All experiments: the tasks that runs are for."""
        return {"experiments": list(_experiments(studio).values())} if not asked.filter else _no_filters()

    @routes.get("/experiments/get", response_model=dict[str, Any])
    def experiment(experiment_id: str) -> Any:
        """One experiment."""
        found = _experiments(studio).get(experiment_id)
        return {"experiment": found} if found else _missing(f"experiment {experiment_id}")

    @routes.get("/experiments/get-by-name", response_model=dict[str, Any])
    def experiment_by_name(experiment_name: str) -> Any:
        """One experiment by its name, which is its id too."""
        return experiment(experiment_name)

    @routes.post("/runs/search", response_model=dict[str, Any])
    def search_runs(asked: RunSearch) -> Any:
        """Runs of experiments, the newest first or by a metric."""
        if asked.filter:
            return _no_filters()
        rows = [row for row in studio.index.rows() if _task(row) in asked.experiment_ids]
        for word in reversed(asked.order_by):
            rows = _ordered(rows, word)
        start = int(asked.page_token) if asked.page_token.isdigit() else 0
        end = start + max(1, min(asked.max_results, MOST))
        more = {"next_page_token": str(end)} if end < len(rows) else {}
        return {"runs": [_run(row) for row in rows[start:end]], **more}

    @routes.get("/runs/get", response_model=dict[str, Any])
    def run(run_id: str = "", run_uuid: str = "") -> Any:
        """One run with its settings and last metrics."""
        row = find(run_id or run_uuid)
        return {"run": _run(row)} if row else _missing(f"run {run_id}")

    @routes.get("/metrics/get-history", response_model=dict[str, Any])
    def history(
        metric_key: str, run_id: str = "", max_results: Annotated[int | None, Query(ge=1)] = None, page_token: str = ""
    ) -> Any:
        """All values of a metric, by epoch."""
        row = find(run_id)
        if row is None:
            return _missing(f"run {run_id}")
        start = int(page_token) if page_token.isdigit() else 0
        values = _history(row, metric_key)
        end = len(values) if max_results is None else start + max_results
        more = {"next_page_token": str(end)} if end < len(values) else {}
        return {"metrics": values[start:end], **more}

    return routes


def run_key(row: RunRow) -> str:
    """The id of a run as MLflow has them: 32 hexadecimal digits."""
    return hashlib.blake2b(row.id.encode(), digest_size=16).hexdigest()


def _task(row: RunRow) -> str:
    return row.id.partition("/")[0] if "/" in row.id else "runs"


def _experiments(studio: Studio) -> dict[str, dict[str, Any]]:
    found: dict[str, list[float]] = {}
    for row in studio.index.rows():
        found.setdefault(_task(row), []).append(row.started)
    return {
        name: {
            "experiment_id": name, "name": name, "artifact_location": "", "lifecycle_stage": "active",
            "creation_time": _milliseconds(min(times)), "last_update_time": _milliseconds(max(times)),
        }
        for name, times in found.items()
    }  # fmt: skip


def _run(row: RunRow) -> dict[str, Any]:
    key = run_key(row)
    ended = {"end_time": _milliseconds(row.ended)} if row.status != "running" and row.ended else {}
    info = {
        "run_id": key, "run_uuid": key, "run_name": row.name, "experiment_id": _task(row), "user_id": "", "status": STATUS[row.status],
        "start_time": _milliseconds(row.started), "artifact_uri": "", "lifecycle_stage": "active", **ended,
    }  # fmt: skip
    metrics = [history[-1] for name in row.metrics if name not in NOT_METRICS and (history := _history(row, name))]
    params = [{"key": name, "value": as_text(value)} for name, value in row.settings.items() if value is not None]
    tags = [{"key": "mlflow.runName", "value": row.name}, {"key": "weft.run", "value": row.id}]
    return {"info": info, "data": {"metrics": metrics, "params": params, "tags": tags}, "inputs": {}}


def _history(row: RunRow, metric: str) -> list[dict[str, Any]]:
    times = dict(row.points("seconds"))
    return [
        {"key": metric, "value": value, "step": int(epoch), "timestamp": _milliseconds(row.started + times.get(epoch, 0.0))}
        for epoch, value in row.points(metric)
        if math.isfinite(value)
    ]  # fmt: skip


def _ordered(rows: list[RunRow], word: str) -> list[RunRow]:
    """Rows by "metrics.NAME DESC" or "attributes.start_time"; those without a value last."""
    name, _, way = word.strip().partition(" ")
    kind, _, key = name.replace("`", "").partition(".")
    descending = way.strip().upper() == "DESC"
    values: Mapping[str, float | None] = {
        row.id: row.last(key) if kind.startswith("metric") else row.started for row in rows
    }
    known = [row for row in rows if values[row.id] is not None]
    rest = [row for row in rows if values[row.id] is None]
    return sorted(known, key=lambda row: values[row.id] or 0.0, reverse=descending) + rest


def _milliseconds(seconds: float | None) -> int:
    return int(1000 * (seconds or 0.0))


def _missing(what: str) -> JSONResponse:
    return JSONResponse({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": f"there is no {what}"}, 404)


def _no_filters() -> JSONResponse:
    return JSONResponse(
        {"error_code": "INVALID_PARAMETER_VALUE", "message": "filters are not understood by this server: read all, and filter them"}, 400
    )  # fmt: skip
