"""Comparing runs: results, settings that differ, what mattered, and where networks disagree."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import HTMLResponse, PlainTextResponse

from ...report.compare import comparison
from ...report.compare_networks import page_sections
from ...report.run_record import read_run
from ..library.comparison import differences
from ..library.run_comparison import disagreements, sweep_view, table, table_csv
from ..library.runs import RunRow
from ..ui.context import Studio
from .run_results import attached, find_row

MOST_RUNS = 500


def router(studio: Studio) -> APIRouter:
    """The routes below /compare. `runs` are ids, separated by commas; `at` is best, last or an epoch."""
    routes = APIRouter(prefix="/compare", tags=["compare"])

    def rows_of(runs: str) -> list[RunRow]:
        names = list(dict.fromkeys(filter(None, runs.split(","))))
        if not names or len(names) > MOST_RUNS:
            raise HTTPException(400, f"1 to {MOST_RUNS} runs are required, got {len(names)}")
        return [find_row(studio, name) for name in names]

    @routes.get("")
    def compare(runs: str, at: str = "best") -> dict[str, Any]:
        """The results of runs, and the settings that differ from those of the first."""
        rows = rows_of(runs)
        found, total = differences(rows)
        return {
            "results": table(rows, checked_epoch(at)),
            "settings": [asdict(one) for one in found],
            "settings_in_all": total,
        }

    @routes.get("/table.csv")
    def compare_csv(runs: str, at: str = "best") -> PlainTextResponse:
        """The same as a table for spreadsheets."""
        text = table_csv(rows_of(runs), checked_epoch(at))
        return PlainTextResponse(text, media_type="text/csv", headers=attached("comparison.csv"))

    @routes.get("/report.html")
    def report(runs: str) -> HTMLResponse:
        """One page with the curves and metrics of all runs, to keep."""
        rows = rows_of(runs)
        with tempfile.TemporaryDirectory() as folder:
            records = {row.id: read_run(row.folder) for row in rows}
            sections = page_sections(records, {row.id: row.folder for row in rows})
            path = comparison(records, Path(folder) / "compare.html", sections)
            return HTMLResponse(path.read_text("utf-8"), headers=attached("comparison.html"))

    @routes.get("/importance")
    def importance(runs: str, metric: str | None = None) -> dict[str, Any]:
        """How much each setting mattered for a metric: by a random forest, or one by one if runs are few."""
        view = sweep_view(rows_of(runs), metric)
        if view is None or view.importance is None:
            raise HTTPException(400, "three runs or more with different settings and results are required")
        return {"metric": view.metric, **asdict(view.importance), "axes": [asdict(axis) for axis in view.axes]}

    @routes.get("/disagreements")
    def disagree(runs: str, limit: int = Query(60, ge=0, le=500)) -> dict[str, Any]:
        """How often networks agree on the held-out examples, McNemar's tests, and examples that they disagree on."""
        found = disagreements(rows_of(runs))
        if found is None:
            raise HTTPException(400, "two runs or more with predictions of the same examples are required")
        return found.facts(limit)

    return routes


def checked_epoch(at: str) -> str:
    """best, last, or the number of an epoch."""
    if at not in ("best", "last") and not at.isdigit():
        raise HTTPException(400, f"at is best, last or the number of an epoch, got {at}")
    return at
