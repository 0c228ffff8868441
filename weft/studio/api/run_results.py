"""What a run measured: series, watched examples, log and history."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from ...jobs.profiles.timeline import timeline
from ...report.png import png
from ..library.run_images import Thumbnails, watched, watched_of
from ..library.run_series import AXES, POINTS, all_series, events_of, window
from ..library.runs import RunRow
from ..ui.context import Studio


def router(studio: Studio) -> APIRouter:
    """The routes below /runs/{run} that read results."""
    routes = APIRouter(prefix="/runs", tags=["results of runs"])

    @routes.get("/{run:path}/series")
    def series(
        run: str, x: str = "epoch", names: str = "", points: int = Query(POINTS, ge=2, le=100_000), start: float | None = None, end: float | None = None,
    ) -> dict[str, list[tuple[float, float]]]:  # fmt: skip
        """Measured values as points, fewer with the same shape where there are many; `start` and `end` cut out a part."""
        row = find_row(studio, run)
        span = None if start is None and end is None else (start or 0.0, float("inf") if end is None else end)
        wanted = set(filter(None, names.split(",")))
        found = all_series(row, _axis(x))
        return {name: window(a, b, span, points) for name, (a, b) in found.items() if not wanted or name in wanted}

    @routes.get("/{run:path}/series.csv")
    def series_csv(run: str, x: str = "epoch", names: str = "") -> StreamingResponse:
        """All measured values as a table with the columns series, x and value."""
        row, wanted = find_row(studio, run), set(filter(None, names.split(",")))
        found = {name: one for name, one in all_series(row, _axis(x)).items() if not wanted or name in wanted}
        return StreamingResponse(
            _rows(found, x), media_type="text/csv", headers=attached(f"{row.name}-{'-'.join(sorted(wanted)) or 'series'}.csv")
        )  # fmt: skip

    @routes.get("/{run:path}/watched")
    def watched_examples(run: str) -> dict[int, list[dict[str, Any]]]:
        """The predictions of a few fixed validation examples, by epoch."""
        return {epoch: [asdict(one) for one in found] for epoch, found in watched(find_row(studio, run).folder).items()}

    @routes.get("/{run:path}/watched/{number}.png")
    def watched_image(run: str, number: int) -> Response:
        """The picture of a watched example."""
        return picture(watched_of(find_row(studio, run).folder), number)

    @routes.get("/{run:path}/log")
    def log(run: str) -> list[dict[str, Any]]:
        """The messages of a run."""
        events = events_of(find_row(studio, run).folder).read()
        return [{"time": time, "level": level, "text": text} for time, level, text in events.log]

    @routes.get("/{run:path}/log.txt")
    def log_text(run: str) -> PlainTextResponse:
        """The epochs of a run as lines of text, to download."""
        row = find_row(studio, run)
        path = row.folder / "log.txt"
        text = path.read_text("utf-8", errors="replace") if path.exists() else ""
        return PlainTextResponse(text, headers=attached(f"{row.name}-log.txt"))

    @routes.get("/{run:path}/history")
    def history(run: str) -> list[dict[str, Any]]:
        """What happened to a run, and when."""
        return [asdict(one) for one in timeline(find_row(studio, run).folder, studio.queue)]

    return routes


def find_row(studio: Studio, run: str) -> RunRow:
    """The run with this id."""
    found = studio.index.get(run)
    if found is None:
        raise HTTPException(404, f"there is no run {run}")
    return found


def attached(name: str) -> dict[str, str]:
    """Headers of an answer that is downloaded under a name."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
    return {"Content-Disposition": f'attachment; filename="{safe}"'}


def picture(found: Thumbnails | None, number: int) -> Response:
    """One picture as PNG."""
    if found is None or number not in found.places:
        raise HTTPException(404, f"there is no picture {number}")
    content = png(found.images[found.places[number]])
    return Response(content, media_type="image/png", headers={"Cache-Control": "private, max-age=3600"})


def _axis(x: str) -> str:
    if x not in AXES:
        raise HTTPException(400, f"x is one of {', '.join(AXES)}, got {x}")
    return x


def _rows(found: dict[str, Any], x: str) -> Iterator[str]:
    yield f"series,{x},value\n"
    for name, (places, values) in found.items():
        text = io.StringIO()
        rows = ([name, a, b] for a, b in zip(places.tolist(), values.tolist(), strict=True))
        csv.writer(text, lineterminator="\n").writerows(rows)
        yield text.getvalue()
