"""The card with the members of an ensemble: what each of them and the ensemble reach on the same examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...jobs.job import ENSEMBLE
from ...records import dataclass
from ..library.runs import RunRow
from ..ui.context import Studio
from ..ui.formats import is_share
from ..ui.fragment import fragment

METHODS = {"average": "mean of the probabilities", "vote": "majority vote", "weights": "mean of the weights"}


@dataclass(frozen=True)
class MemberRow:
    """A member, or the ensemble itself."""

    name: str
    network: str
    numbers: dict[str, float]
    run: str | None = None  # its name in the index, if it is there
    is_left_out: bool = False  # of a greedy mean of weights


def is_ensemble(folder: Path) -> bool:
    return (folder / ENSEMBLE).is_file()


def ensemble_card(studio: Studio, row: RunRow) -> None:
    """Add the card to the overview of a run that is an ensemble."""
    try:
        known = json.loads((row.folder / ENSEMBLE).read_text("utf-8"))
        rows, split = member_rows(studio, row, known), known.get("split")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # it is no ensemble, or is being made
    metrics = list(rows[-1].numbers)
    best = {name: (max if is_share(name) else min)(one.numbers[name] for one in rows if name in one.numbers) for name in metrics}  # fmt: skip
    fragment(
        "run_ensemble.html", "section", "card sect", rows=rows, metrics=metrics, best=best, split=split, examples=known.get("examples", 0),
        method=METHODS.get(known["method"], known["method"]), base=studio.config.prefix,
    ).props('aria-label="Members"')  # fmt: skip


def member_rows(studio: Studio, row: RunRow, known: dict[str, Any]) -> list[MemberRow]:
    """The members, then the ensemble."""
    split, chosen = known.get("split"), known.get("chosen")
    found = []
    for one in known["members"]:
        folder = Path(one["run"])
        there = studio.index.get("/".join(folder.parts[-2:]))
        out = chosen is not None and one["run"] not in chosen
        found.append(MemberRow(folder.name, one["network"], dict(one.get(split) or {}), there.id if there else None, out))  # fmt: skip
    return [*found, MemberRow(row.name, "ensemble", dict(known.get("result") or {}))]
