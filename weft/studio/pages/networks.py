"""Networks: the table of all networks, the page of one, and imports."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import HTTPException
from nicegui import ui

from ...jobs.network_store import ImportedNetwork, NetworkStore
from ...zoo.catalogue import FACTS
from ...zoo.definition import profile_svg
from ..library.designs import USUAL_BATCH, DesignCheck, check_design, picture_of, why_not_text, zoo_text
from ..library.feed import Snapshot
from ..library.networks import NetworkRow, cost_chart, network_rows, tasks, zoo_abouts
from ..library.profiles import profiled_network
from ..ui.context import Studio
from ..ui.formats import short
from ..ui.fragment import Fragment, fragment
from ..ui.frame import frame, studio_page
from ..ui.rendering import render
from .design import DesignPage, costs_html, layers_html, network_tabs
from .profile_tab import ProfileTab, profile_button

LARGEST_MACS = 12  # the slider's last step: no limit


def add(studio: Studio) -> None:
    """Register the pages."""

    @studio_page("/networks")
    async def networks() -> None:
        store = NetworkStore(studio.config.runs)
        rows = await asyncio.to_thread(network_rows, store, studio.index.rows())
        header = render("networks_header.html", count=len(rows), base=studio.config.prefix)
        with frame(studio, "Networks", "networks", live_header=(f"networks {len(rows)}", lambda snapshot: header)):
            NetworkTable(studio, rows)

    @studio_page("/networks/import")
    def imports() -> None:
        base = studio.config.prefix
        ui.add_head_html(f'<script src="{base}/assets/networks.js" defer></script>')
        header = render("network_import_header.html", base=base)
        with frame(studio, "Import a network", "networks", live_header=("network import", lambda snapshot: header)):
            fragment("network_import.html", base=base, python_models=studio.config.python_models)

    @studio_page("/networks/{name}")
    async def network(name: str, tab: str = "") -> None:
        store = NetworkStore(studio.config.runs)
        if tab == "profile":
            await _profile_page(studio, store, name)
        elif name in store.names():
            DesignPage(studio, name, store.text(name), version=len(store.versions(name)))
        elif (imported := _imported(store, name)) is not None:
            _imported_page(studio, store, imported)
        elif name in FACTS:
            text = await asyncio.to_thread(zoo_text, name)
            check = None if text is None else await asyncio.to_thread(check_design, text)
            _zoo_page(studio, name, text, check)
        else:
            raise HTTPException(404, f"There is no network {name}.")


def _largest_macs(step: int) -> float:
    """The multiply-adds that a step of the slider allows."""
    return float(10 ** (4 + step / 2))


def _imported(store: NetworkStore, name: str) -> ImportedNetwork | None:
    return next((one for one in store.imported() if one.name == name), None)


async def _profile_page(studio: Studio, store: NetworkStore, name: str) -> None:
    """The tab Profile of any network."""
    imported = _imported(store, name)
    if name not in store.names() and imported is None and name not in FACTS:
        raise HTTPException(404, f"There is no network {name}.")
    kind = "Zoo" if name in FACTS else "Imported" if imported is not None else "Yours"
    about = zoo_abouts().get(name, "") if imported is None else imported.file
    thing = profiled_network(studio.config.runs, name)
    train = f"weights={name}" if imported is not None else f"model={name}"

    def header(snapshot: Snapshot) -> str:
        values = {
            "name": name,
            "kind": kind,
            "about": about,
            "can_start": imported is None,
            "usable": imported is not None,
            "train": train,
        }
        return render("network_header.html", **values, measure=profile_button(studio, thing), base=studio.config.prefix)

    await asyncio.to_thread(studio.profiles.of, thing)  # they are read away from the event loop, and then known
    with frame(studio, name, "networks", live_header=(f"network profile {name}", header)):
        shown = ProfileTab(studio, thing, list)
        network_tabs(studio, name, "profile")
        shown.fill()


def _header(
    studio: Studio, name: str, kind: str, about: str, can_start: bool, train: str, usable: bool = False
) -> tuple[str, Any]:
    html = render(
        "network_header.html",
        name=name,
        kind=kind,
        about=about,
        can_start=can_start,
        usable=usable,
        train=train,
        measure=None,
        base=studio.config.prefix,
    )
    return f"network {name}", lambda snapshot: html


def _zoo_page(studio: Studio, name: str, text: str | None, check: DesignCheck | None) -> None:
    """Definition beside its picture; then the layers."""
    header = _header(studio, name, "Zoo", zoo_abouts().get(name, ""), text is not None, f"model={name}")
    with frame(studio, name, "networks", live_header=header):
        network_tabs(studio, name)
        if check is None or check.plan is None:
            with ui.element("section").classes("card").props('aria-label="Definition"'):
                fragment("network_text.html", text=None, input=(), why=why_not_text(name))
            return
        with ui.element("section").classes("card").props('aria-label="Facts"'):
            Fragment(costs_html(check, USUAL_BATCH))
        with ui.element("div").classes("cols design sect"):
            with ui.element("section").classes("card").props('aria-label="Definition"'):
                fragment("network_text.html", text=text, input=check.plan.input, why="")
            with ui.element("section").classes("card").props('aria-label="Picture"'):
                shown = Fragment(
                    _picture(check, False), on={"detail": lambda value: shown.show(_picture(check, value == "layers"))}
                )
        with ui.element("section").classes("card sect").props('aria-label="Layers"'):
            layers = Fragment(
                layers_html(check, USUAL_BATCH), on={"batch": lambda value: layers.show(layers_html(check, int(value)))}
            )


def _picture(check: DesignCheck, detailed: bool) -> str:
    return render("design_picture.html", picture=picture_of(check, detailed), stale=False, detailed=detailed)


def _imported_page(studio: Studio, store: NetworkStore, one: ImportedNetwork) -> None:
    train = f"weights={one.name}" + (f"&model={one.network}" if one.network else "")
    header = _header(studio, one.name, "Imported", one.file, False, train, one.is_runnable)
    ui.add_head_html(f'<script src="{studio.config.prefix}/assets/classify.js" defer></script>')
    with frame(studio, one.name, "networks", live_header=header):
        if one.is_runnable:
            network_tabs(studio, one.name)
        with ui.element("section").classes("card").props('aria-label="Facts"'):
            fragment("network_imported.html", one=one)
        if one.is_runnable:
            path = store.import_path(one.name)
            with ui.element("div").classes("sect"):
                fragment("classify_code.html", network=one.name, path=path, is_run=False, base=studio.config.prefix)


class NetworkTable:
    """All networks, with the chart of what they cost and reach."""

    def __init__(self, studio: Studio, rows: list[NetworkRow]) -> None:
        self.studio, self.rows = studio, rows
        self.fields: dict[str, str] = {}
        self.chart = cost_chart(rows)
        best = [point for point in self.chart.points if point.is_best] if self.chart else []
        self.selected = best[-1].row.name if best else ""
        limits = [*(short(_largest_macs(step)) for step in range(LARGEST_MACS)), "any"]
        Fragment(
            render("networks_filter.html", tasks=tasks(rows), total=len(rows), limits=limits),
            on={"filter": self._filter},
        )
        self.costs: Fragment | None = None
        self.chosen: Fragment | None = None
        if self.chart is not None:
            with ui.element("div").classes("cols side-r"):
                with ui.element("section").classes("card").props('aria-label="Accuracy against MACs"'):
                    self.costs = Fragment(self._costs_html(), on={"select": self._select})
                with ui.element("section").classes("card").props('aria-label="Selected network"'):
                    self.chosen = Fragment(self._chosen_html())
        with ui.element("section").classes(f"card {'sect' if self.chart else ''}").props('aria-label="Networks"'):
            self.table = Fragment(self._html(), on={"select": self._select})

    def _filter(self, fields: dict[str, str]) -> None:
        self.fields = fields
        self.table.show(self._html())

    def _select(self, name: str) -> None:
        self.selected = name
        self.table.show(self._html())
        if self.costs is not None and self.chosen is not None:
            self.costs.show(self._costs_html())
            self.chosen.show(self._chosen_html())

    def _fits(self, row: NetworkRow) -> bool:
        fields = self.fields
        words = fields.get("words", "").strip().lower().split()
        step = int(fields.get("macs") or LARGEST_MACS)
        if step < LARGEST_MACS and (row.macs is None or row.macs > _largest_macs(step)):
            return False
        if fields.get("task") not in (None, "", row.task) or fields.get("kind") not in (None, "", row.kind):
            return False
        if fields.get("trained") and row.best is None:
            return False
        return all(word in f"{row.name} {row.task} {row.about}".lower() for word in words)

    def _html(self) -> str:
        shown = [row for row in self.rows if self._fits(row)]
        return render(
            "networks_table.html",
            rows=shown,
            total=len(self.rows),
            selected=self.selected,
            base=self.studio.config.prefix,
        )

    def _costs_html(self) -> str:
        return render("networks_chart.html", chart=self.chart, selected=self.selected)

    def _chosen_html(self) -> str:
        row = next(row for row in self.rows if row.name == self.selected)
        picture = profile_svg(row.profile, 264, 56)
        return render("networks_chosen.html", row=row, picture=picture, base=self.studio.config.prefix)
