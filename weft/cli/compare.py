"""The verb `compare`, which is `weft runs compare` too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..jobs.find import find_run
from ..jobs.schema import Setting, as_text, count, flag
from ..report import compare as facts
from ..report.compare_networks import page_sections
from ..report.run_record import read_run
from .arguments import Words, read
from .comparison import compared_networks, network_tables
from .run_notes import notes_of
from .table import as_csv, as_json, table


def compare(words: Sequence[str], name: str = "compare") -> None:
    """Compare runs in depth: settings, metrics, disagreements: weft compare RUN RUN html=compare.html."""
    known = {
        "root": Setting(str, "runs", "folder to search for runs"),
        "html": Setting(str, None, "write a page with the curves of all runs to this file"),
        "epoch": Setting(count, None, "list the numbers at this epoch too"),
        "json": Setting(flag, False, "print JSON, for programs"),
        "csv": Setting(flag, False, "print CSV, for spreadsheets"),
    }
    given = read(name, words, known, 1000, compare.__doc__)
    if given["csv"] and given["json"]:
        raise UserError(f"weft {name}", "csv and json exclude each other. Use one of them.")
    folders = _labelled(given, name)
    found = {label: read_run(folder) for label, folder in folders.items()}
    differ, lines, top = facts.differing(found), facts.comparison_rows(found, given["epoch"]), facts.best_run(found)
    page = None if given["html"] is None else facts.comparison(found, given["html"], page_sections(found, folders))
    if given["csv"]:
        print(as_csv(["number", *found], [[line.name, *line.values] for line in lines]))
        return
    if given["json"]:
        numbers = {line.name: line.values for line in lines}
        told = {
            "runs": list(map(str, folders.values())),
            "settings": differ,
            "numbers": numbers,
            "best": top and top[0],
        }
        networks = compared_networks(found, folders)
        print(as_json({**told, **networks, "notes": {label: notes_of(run) for label, run in found.items()}}))
        return
    texts = [[name, *map(as_text, values)] for name, values in differ.items()]
    print(table(["setting", *found], texts, left=("setting",)) if texts else "all settings are the same")
    print(f"\n{table(['number', *found], [[line.name, *line.texts()] for line in lines], left=('number',))}")
    more = network_tables(found, folders)
    print(f"\n{more}" if more else "", end="\n" if more else "")
    notes = [f"{label}: {'; '.join(notes_of(run))}" for label, run in found.items() if notes_of(run)]
    print("\n".join(["", *notes, *([f"best: {top[0]}, {top[1]}"] if top else ["no results to compare"])]))
    if page is not None:
        print(f"report: {page}")


def _labelled(given: Words, name: str) -> dict[str, Path]:
    """The folders by their shortest unique names."""
    folders = list(dict.fromkeys(find_run(text, given["root"]) for text in given.plain))
    if len(folders) < 2:
        raise UserError(
            f"weft {name}", f"two runs or more are required, got {len(folders)}. weft runs list names them."
        )
    names = [folder.resolve().name for folder in folders]
    return {n if names.count(n) == 1 else str(f): f for n, f in zip(names, folders, strict=True)}
