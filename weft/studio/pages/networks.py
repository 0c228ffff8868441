"""Networks: the zoo with its facts, and the layers of one network."""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from typing import Any

from fastapi import HTTPException
from nicegui import ui

from ... import zoo
from ...jobs.networks import full_name
from ...nn.summary import Summary
from ...zoo.catalogue import FACTS
from ...zoo.facts import NetworkFacts
from ..library.networks import layers_of, tasks
from ..library.runs import RunRow
from ..ui.context import Studio
from ..ui.fragment import Fragment, fragment
from ..ui.frame import frame
from ..ui.rendering import render


def add(studio: Studio) -> None:
    """Register the pages."""

    @ui.page("/networks")
    def networks() -> None:
        with frame(studio, "Networks", "networks"):
            NetworkTable(studio)

    @ui.page("/networks/{name}")
    async def network(name: str) -> None:
        if name not in FACTS:
            raise HTTPException(404, f"There is no network {name}.")
        layers = await asyncio.to_thread(layers_of, name)
        with frame(studio, name, "networks", live_header=(f"network {name}", lambda snapshot: _header(studio, name))):
            _facts(FACTS[name], layers)
            if layers is not None:
                with ui.element("section").classes("card sect").props('aria-label="Layers"'):
                    fragment(
                        "network_layers.html",
                        layers=layers.lines,
                        largest=max((one.macs for one in layers.lines), default=1) or 1,
                    )


def _header(studio: Studio, name: str) -> str:
    about = (inspect.getdoc(zoo.find(name)) or "").partition("\n")[0]
    return render("network_header.html", name=name, about=about, base=studio.config.prefix)


def _facts(facts: NetworkFacts, layers: Summary | None) -> None:
    with ui.element("section").classes("card").props('aria-label="Facts"'):
        fragment("network_facts.html", facts=facts, layers=layers)


class NetworkTable:
    """The zoo as a table, with the best run of each network."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.words, self.task = "", ""
        with ui.element("section").classes("card").props('aria-label="Networks"'):
            Fragment(render("network_filter.html", tasks=tasks()), on={"filter": self._filter})
            self.table = Fragment(self._html())

    def _filter(self, fields: dict[str, Any]) -> None:
        self.words, self.task = fields["words"].strip().lower(), fields["task"]
        self.table.show(self._html())

    def _html(self) -> str:
        best: dict[str, list[RunRow]] = defaultdict(list)
        for row in self.studio.index.rows():
            if row.model and row.best is not None and not str(row.best_metric).endswith("loss"):
                best[full_name(row.model) if row.model in FACTS else row.model].append(row)
        shown = {
            name: facts
            for name, facts in sorted(FACTS.items())
            if self.words in f"{name} {facts.task}" and (not self.task or facts.task == self.task)
        }
        runs = {name: max(found, key=lambda row: row.best or 0.0) for name, found in best.items()}
        return render("networks_table.html", networks=shown, runs=runs, base=self.studio.config.prefix)
