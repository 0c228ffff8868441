"""Warnings about missing or damaged files of a run folder, as text."""

from __future__ import annotations

from ..report import compare as facts
from ..report.run_record import RunRecord


def notes_of(run: RunRecord) -> list[str]:
    """Problems of a run; missing results before its first epoch are none."""
    fresh = {"metrics.csv is missing", "summary.json is missing"}
    found = [] if facts.settings(run) else ["args.yaml holds no settings"]
    if not fresh <= set(run.notes):
        return [*found, *run.notes]
    return [*found, "no epochs yet", *(note for note in run.notes if note not in fresh)]
