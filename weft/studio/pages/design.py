"""Design a network: its text in an editor, with its picture, shapes, costs and problems while it is typed."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import HTTPException, Request
from markupsafe import Markup
from nicegui import ui

from ...errors import WeftError
from ...jobs.network_store import NetworkStore
from ...runtime.free_memory import SHARE, free_bytes
from ...zoo.catalogue import FACTS
from ..library.designs import (
    BATCHES,
    START,
    USUAL_BATCH,
    DesignCheck,
    check_design,
    picture_of,
    problem_as_json,
    startable,
    vocabulary,
    zoo_text,
)
from ..ui.context import Studio
from ..ui.formats import short
from ..ui.fragment import Fragment, fragment
from ..ui.frame import frame, studio_page
from ..ui.network_editor import NetworkEditor
from ..ui.rendering import render


def add(studio: Studio) -> None:
    """Register the page of a new network."""

    @studio_page("/networks/new")
    async def new(request: Request) -> None:
        """`from=NAME` starts from a copy."""
        origin = request.query_params.get("from", "")
        store = NetworkStore(studio.config.runs)
        name = _free_name(store, f"{origin}_copy" if origin else "my_network")
        text = await asyncio.to_thread(_text_of, store, origin, name)
        DesignPage(studio, name, text, origin=origin)


def _text_of(store: NetworkStore, origin: str, name: str) -> str:
    """The text to start from."""
    if not origin:
        return START.format(name=name)
    if origin in FACTS:
        found = zoo_text(origin)
        if found is None:
            raise HTTPException(404, f"{origin} cannot be written as text.")
        return found
    try:
        return store.text(origin)
    except WeftError as error:
        raise HTTPException(404, error.message) from None


def _free_name(store: NetworkStore, wanted: str) -> str:
    taken = {*store.names(), *(one.name for one in store.imported()), *FACTS}
    return next(name for name in (wanted, *(f"{wanted}_{i}" for i in range(2, 10_000))) if name not in taken)


class DesignPage:
    """The editor beside the picture. The last valid network stays in sight while the text has problems."""

    def __init__(self, studio: Studio, name: str, text: str, *, version: int = 0, origin: str = "") -> None:
        self.studio, self.batch, self.detailed = studio, USUAL_BATCH, False
        self.check = self.valid = check_design(text)
        self.number = -1  # of the newest text
        base = studio.config.prefix
        starts = [*NetworkStore(studio.config.runs).names(), *startable()]
        header = render(
            "design_header.html",
            name=name,
            is_new=not version,
            version=version,
            origin=origin,
            starts=starts,
            base=base,
        )
        ui.add_head_html(f'<script src="{base}/assets/design.js" defer></script>')
        with frame(
            studio, name, "networks", live_header=(f"design {name} {version} {origin}", lambda snapshot: header)
        ):
            if version:
                network_tabs(studio, name)
            with ui.element("section").classes("card").props('aria-label="Facts" aria-live="polite"'):
                self.facts = Fragment(self._facts_html())
            with ui.element("div").classes("cols design sect"):
                with ui.element("section").classes("card").props('aria-label="Definition"'):
                    Fragment(render("design_editor_head.html", groups=_groups()))
                    self.editor = NetworkEditor(text, vocabulary(), self._changed)
                    Fragment(render("design_editor_foot.html"))
                with ui.element("section").classes("card").props('aria-label="Picture"'):
                    self.picture = Fragment(self._picture_html(), on={"detail": self._detail})
            with ui.element("section").classes("card sect").props('aria-label="Layers"'):
                self.layers = Fragment(self._layers_html(), on={"batch": self._batch})

    async def _changed(self, text: str, number: int) -> None:
        """Check the newest text off the event loop; one that is outdated meanwhile is dropped."""
        self.number = number
        check = await asyncio.to_thread(check_design, text)
        if number != self.number:
            return
        self.check = check
        self.valid = check if check.is_valid else self.valid
        self.editor.show_problems([problem_as_json(one) for one in check.problems], number)
        self._show()

    def _detail(self, value: str) -> None:
        self.detailed = value == "layers"
        self._show()

    def _batch(self, value: str) -> None:
        self.batch = int(value)
        self._show()

    def _show(self) -> None:
        self.facts.show(self._facts_html())
        self.picture.show(self._picture_html())
        self.layers.show(self._layers_html())

    def _facts_html(self) -> str:
        return costs_html(self.valid, self.batch)

    def _picture_html(self) -> str:
        bad = self.check.problems[0].place.line if self.check.problems else None
        picture = picture_of(self.valid, self.detailed, bad)
        return render(
            "design_picture.html", picture=picture, stale=self.check is not self.valid, detailed=self.detailed
        )

    def _layers_html(self) -> str:
        return layers_html(self.valid, self.batch)


def network_tabs(studio: Studio, name: str, tab: str = "") -> None:
    """The parts of the page of a network."""
    tabs = [("", "Definition", None), ("profile", "Profile", None)]
    address = f"{studio.config.prefix}/networks/{name}"
    fragment("tabs.html", classes="ntabs", tabs=tabs, tab=tab, label="Parts of the network", address=address)


def costs_html(check: DesignCheck, batch: int) -> str:
    """The strip of facts."""
    if check.plan is None or check.costs is None:
        return '<div class="cbody small mute">Parameters, multiply-adds and memory appear when the text describes a network.</div>'
    free = free_bytes()
    return render(
        "design_facts.html", costs=check.costs, batch=batch, free=free, input=check.plan.input, output=check.plan.output,
        largest="–" if free is None else f"{check.costs.largest_batch(int(SHARE * free)):,}", quantity=lambda n: _with_unit(short(n)),
        with_unit=_with_unit, against_resnet18=_against_resnet18(check.costs.macs),
    )  # fmt: skip


def _with_unit(text: str) -> Any:
    """1.21 M with a small unit."""
    number, _, unit = text.partition(" ")
    return Markup("{}<small>{}</small>").format(number, unit) if unit else Markup(number)


def _against_resnet18(macs: int) -> str:
    share = macs / (FACTS["resnet18"].macs or 1)
    return f"{100 * share:.3g} % of resnet18" if share < 1.5 else f"{share:.3g} times resnet18"


def layers_html(check: DesignCheck, batch: int) -> str:
    """The table of layers."""
    layers = () if check.costs is None else check.costs.layers
    most = max((one.parameters for one in layers if not one.has_parts), default=1) or 1
    return render("design_layers.html", layers=layers, batch=batch, batches=BATCHES, most=most)


def _groups() -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for layer in vocabulary()["layers"]:
        groups.setdefault(layer["group"], []).append(layer)
    return groups
