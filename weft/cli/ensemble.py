"""The verb `ensemble`: combines several runs, and prints the scores of each of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..jobs.ensembles.ensemble import PROGRAM, SETTINGS
from ..jobs.ensembles.ensemble import ensemble as make_ensemble
from ..jobs.events import Event
from ..jobs.job import ENSEMBLE
from ..report.text_format import counted
from .arguments import read
from .progress import ProgressDisplay
from .table import as_json, number_text, table

MOST_MEMBERS = 1000


def ensemble(words: Sequence[str]) -> None:
    """Combine several runs into one network: weft ensemble RUN RUN method=average.

    method=average takes the mean of the members' probabilities, or of their numbers; method=vote the class that most members choose; both keep
    every member with its own preprocessing. method=weights takes the mean of the weights of one network that was trained several times,
    of all runs or with soup=greedy of those that help. A cross-validation stands for the runs of its folds. The result is a run of its own, with
    one program in ensemble.weft, and is measured beside its members on examples that none of them was trained on.
    """
    given = read("ensemble", words, SETTINGS, MOST_MEMBERS)
    with ProgressDisplay() as progress:

        def shown(event: Event) -> None:
            if event.type in ("activity", "progress", "log") and not given["json"]:
                progress(event)

        folder = make_ensemble(given.plain, given.settings, shown)
    known = json.loads((folder / ENSEMBLE).read_text(encoding="utf-8"))
    if given["json"]:
        print(as_json({"folder": str(folder), "program": str(folder / PROGRAM), **known}))
        return
    _print(folder, known)


def _print(folder: Path, known: Mapping[str, Any]) -> None:
    split = known["split"]
    if split is not None:
        names = list(known["result"])
        rows = [_row(Path(one["run"]).name, one["network"], one[split], names) for one in known["members"]]
        rows.append(_row(folder.name, known["method"], known["result"], names))
        print(table(["run", "network", *names], rows, left=("run", "network")))
        print(f"on {counted(known['examples'], f'{split} example')} that no member was trained on")
    print(f"run:      {folder}\nprogram:  {folder / PROGRAM}")


def _row(name: str, network: str, numbers: Mapping[str, float], names: Sequence[str]) -> list[str]:
    return [name, network, *(number_text(one, numbers[one]) if one in numbers else "" for one in names)]
