"""The verb `models`: the networks of the zoo. It reads the catalogue, and imports no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from ..jobs.schema import Setting, flag
from ..report.axes import short
from ..zoo.catalogue import FACTS, default_rate
from ..zoo.facts import NetworkFacts
from .arguments import read
from .table import table

END = """
Parameters and multiply-adds (MACs) are for one example of that input, rate is
the default learning rate for Adam. weft summary NAME lists the layers."""


def models(words: Sequence[str]) -> None:
    """List the networks of the zoo."""
    given = read("models", words, {"json": Setting(flag, False, "print JSON, for programs")}, 0)
    if given["json"]:
        print(
            json.dumps({name: {**asdict(facts), "rate": _rate(name, facts)} for name, facts in sorted(FACTS.items())})
        )
        return
    titles = ["network", "task", "input", "parameters", "MACs", "rate"]
    print(
        table(titles, [_row(name, facts) for name, facts in sorted(FACTS.items())], left=("network", "task", "input"))
    )
    print(END)


def _row(name: str, facts: NetworkFacts) -> list[str]:
    size = "text" if facts.input is None else "x".join(map(str, facts.input))
    macs = "-" if facts.macs is None else short(facts.macs)
    return [name, facts.task, size, f"{facts.parameters:,}", macs, f"{_rate(name, facts):.2g}"]


def _rate(name: str, facts: NetworkFacts) -> float:
    return default_rate(name, "adam", facts.parameters)
