"""Comparisons beyond curves, as tables of text: which settings mattered, and how often networks agree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from ..records import dataclass
from .agreement import Agreement, agreement, comparable
from .compare import best, best_run, differing, text_table
from .importance import Importances, importances
from .predictions import read_predictions
from .run_record import RunRecord
from .svg import escape

OWN = ("name", "runs", "json", "exist_ok", "device", "tags", "notes", "group")  # differ without changing the result
MAX_NETWORKS = 20


@dataclass(frozen=True)
class NetworkAgreement:
    """Networks on the same held-out examples, with their labels and accuracies."""

    labels: list[str]
    accuracies: list[float]
    examples: int
    split: str
    found: Agreement

    def rows(self) -> dict[str, list[str]]:
        """Of each network the share of equal predictions with each other one, and McNemar's p-value."""
        made: dict[str, list[str]] = {}
        for i, label in enumerate(self.labels):
            cells = []
            for j in range(len(self.labels)):
                test = self.found.tests.get((min(i, j), max(i, j)))
                cells.append("-" if test is None else f"{100 * self.found.equal[i, j]:.1f} % (p {test.p_value:.3f})")
            made[label] = cells
        return made


def network_agreement(folders: Mapping[str, Path]) -> NetworkAgreement | None:
    """None unless two runs or more keep predictions of the same examples; runs with others are left out."""
    known = {label: one for label, folder in folders.items() if (one := read_predictions(folder)) is not None}
    if not known:
        return None
    first = next(iter(known.values()))
    same = {label: one for label, one in known.items() if comparable([first, one])}
    if len(same) < 2 or len(same) > MAX_NETWORKS:
        return None
    accuracies = [float(one.right.mean()) for one in same.values()]
    return NetworkAgreement(list(same), accuracies, len(first.true), first.split, agreement(list(same.values())))


def setting_importances(runs: Mapping[str, RunRecord]) -> tuple[str, Importances] | None:
    """Which of the settings that differ mattered for the metric that chooses the best run."""
    top = best_run(runs)
    if top is None:
        return None
    metric = top[1].name
    bests = [best(run, (metric,)) for run in runs.values()]
    values = [math.nan if one is None else one.value for one in bests]
    settings = {name: column for name, column in differing(runs).items() if name not in OWN}
    found = importances(settings, values)
    return None if found is None else (metric, found)


def importance_rows(found: Importances) -> dict[str, list[str]]:
    """The share of each setting with its error, or with the probability of such a share by chance."""
    return {
        one.name: [
            f"{100 * one.share:.0f} %", f"± {100 * one.error:.0f} %" if one.error is not None else f"p {one.p_value:.2f}",
        ]
        for one in found.settings
    }  # fmt: skip


def importance_note(metric: str, found: Importances) -> str:
    """What the shares are."""
    name = metric.replace("_", " ")
    if found.method == "forest":
        explained = max(0.0, found.explained or 0.0)
        return (
            f"share of the error of a random forest over {found.runs} runs that grows when a setting is shuffled; the forest explains "
            f"{100 * explained:.0f} % of the variance in {name} on runs that it has not seen"
        )
    return f"share of the variance in {name} between the values of each setting alone, over {found.runs} runs; p: by chance"


def page_sections(runs: Mapping[str, RunRecord], folders: Mapping[str, Path]) -> list[str]:
    """Both tables as sections of a page; see `comparison`."""
    sections = []
    mattered, networks = setting_importances(runs), network_agreement(folders)
    if mattered is not None:
        rows = importance_rows(mattered[1])
        sections.append(_section("What mattered", text_table(["share", ""], rows), importance_note(*mattered)))
    if networks is not None:
        note = f"Of {networks.examples:,} {networks.split} examples they disagree on {len(networks.found.disagree):,}; p: McNemar's test"
        sections.append(_section("Equal predictions", text_table(networks.labels, networks.rows()), note))
    return sections


def _section(title: str, table: str, note: str) -> str:
    return f"<section><h2>{title}</h2>{table}<p>{escape(note)}.</p></section>"
