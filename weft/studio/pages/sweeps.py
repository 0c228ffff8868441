"""All sweeps, and the form of a new one."""

from __future__ import annotations

from fastapi import Request

from ...jobs.settings import SETTINGS
from ...jobs.sweeps.control import sweep_settings
from ...jobs.sweeps.settings import SWEEP
from ..library.feed import Snapshot
from ..library.training_fields import setting_title
from ..ui.context import Studio
from ..ui.frame import frame, studio_page
from ..ui.rendering import render
from ..ui.run_groups import group_header, group_tabs
from ..ui.sweep_view import segments
from .sweep import run_of, sweep_assets, sweep_named
from .train import TrainForm

START = {"data": "digits", "model": "lenet5", "rate": "log:1e-4..1e-1"}  # of an empty form


def add(studio: Studio) -> None:
    """Register the pages."""
    base = studio.config.prefix

    @studio_page("/sweeps")
    def sweeps() -> None:
        with frame(studio, "Sweeps", "runs", group_header(studio, "sweeps")):
            sweep_assets(base)
            group_tabs(studio, "sweeps")
            studio.live.add("sweeps", lambda snapshot: _table(studio, snapshot), "section", "card").props(
                'aria-label="Sweeps"'
            )

    @studio_page("/sweeps/new")
    def new_sweep(request: Request, clone: str = "") -> None:
        """The address may set any field: /sweeps/new?data=digits&rate=log:1e-4..1e-1."""
        given = {name: text for name, text in request.query_params.items() if name in (*SETTINGS, *SWEEP) and text}
        known = sweep_named(studio.feed.snapshot, clone)
        cloned = sweep_settings(known.record) if known is not None and known.record is not None else {}
        values = {name: text for name, text in (cloned | given).items() if name != "name"} or dict(START)
        with frame(studio, "New sweep", "train", own_header=True):
            TrainForm(studio, values, [("Sweeps", "/sweeps")], is_sweep=True)


def _table(studio: Studio, snapshot: Snapshot) -> str:
    rows = []
    for one in snapshot.sweeps:
        best = one.summary.best if one.summary is not None else None
        rows.append((one, run_of(studio, best.run if best is not None else None), segments(one)))
    return render("sweeps_table.html", rows=rows, titles=setting_title, base=studio.config.prefix)
