"""The last tables of `weft runs compare`: which settings mattered, and how often networks agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..report.compare_networks import importance_note, importance_rows, network_agreement, setting_importances
from ..report.run_record import RunRecord
from .table import table


def compared_networks(runs: Mapping[str, RunRecord], folders: Mapping[str, Path]) -> dict[str, Any]:
    """The same as values, for JSON."""
    mattered, networks = setting_importances(runs), network_agreement(folders)
    found: dict[str, Any] = {}
    if mattered is not None:
        found["importance"] = {"metric": mattered[0], **asdict(mattered[1])}
    if networks is not None:
        tests = [
            {"first": networks.labels[i], "second": networks.labels[j], "equal": float(networks.found.equal[i, j]), **asdict(test)}
            for (i, j), test in networks.found.tests.items()
        ]  # fmt: skip
        found["agreement"] = {
            "examples": networks.examples, "split": networks.split, "disagree": len(networks.found.disagree), "tests": tests
        }  # fmt: skip
    return found


def network_tables(runs: Mapping[str, RunRecord], folders: Mapping[str, Path]) -> str:
    """The tables as text; empty if there is nothing to tell."""
    parts, mattered, networks = [], setting_importances(runs), network_agreement(folders)
    if mattered is not None:
        rows = [[name, *texts] for name, texts in importance_rows(mattered[1]).items()]
        parts += [table(["what mattered", "share", ""], rows, left=("what mattered",)), importance_note(*mattered)]
    if networks is not None:
        rows = [[label, *texts] for label, texts in networks.rows().items()]
        count = len(networks.found.disagree)
        parts += [
            table(["equal predictions", *networks.labels], rows, left=("equal predictions",)),
            f"of {networks.examples:,} {networks.split} examples; they disagree on {count:,}; p: McNemar's test of equal accuracy",
        ]
    return "\n\n".join(parts)
