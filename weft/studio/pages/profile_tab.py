"""The tab Profile of a run or a network: roofline, costs, layers, memory and advice of one measurement, compared with another if wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nicegui import background_tasks, ui

from ...device_names import CPU
from ...insight.memory_areas import NAMES, memory_areas
from ...insight.profile_record import block_of
from ...jobs.profiles.job import plain_label
from ..library.changes import stamp
from ..library.feed import Snapshot
from ..library.profile_choice import Compared, ProfileChoice, Shelf
from ..library.profiles import ProfiledThing, measurements, newest
from ..library.training_form import device_choices
from ..ui.context import Studio
from ..ui.fragment import Fragment
from ..ui.profile_view import (
    COSTS,
    MANY,
    advice,
    column_units,
    costs,
    figures,
    layer_rows,
    noun,
    number_in,
    number_text,
    roofline_spec,
    short_device,
    time_text,
    timeline_ticks,
    which,
)
from ..ui.rendering import render
from ..ui.roofline_chart import RooflineChart
from .profile_energy import EnergyCard

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def profile_assets(base: str) -> None:
    for name in ("run.css", "profile.css"):
        ui.add_head_html(f'<link rel="stylesheet" href="{base}/assets/{name}">')
    ui.add_head_html(f'<script src="{base}/assets/forms.js" defer></script>')


def profile_button(studio: Studio, thing: ProfiledThing) -> dict[str, Any] | None:
    """The request that measures again what was measured last; None before the first time."""
    last = newest(studio.profiles.of(thing))
    if last is None or last.record is None:
        return None
    record = last.record
    return {"path": thing.api, "body": {"device": record.device, "batch": record.batch, "what": record.what}}


class ProfileTab:
    """One look at the profiles of a run or a network. It follows the feed: what is measured meanwhile is shown."""

    def __init__(
        self,
        studio: Studio,
        thing: ProfiledThing,
        related: Callable[[], list[tuple[ProfiledThing, bool]]],
        can: Callable[[], bool] = lambda: True,
    ) -> None:
        """Adds the figures; `fill` adds the rest, below the tabs. `related`: what it can be compared with, and whether that came after it; `can`: whether it can be
        measured."""
        self.studio, self.thing, self.related, self.can = studio, thing, related, can
        self.by, self.sort, self.descending = "seconds", "seconds", True
        self.layer: str | None = None
        self.table_device: str | None = None
        self.blocks: bool | None = None  # layers of a block as one; None: as there is room
        self.choice = ProfileChoice(self._read())
        self.jobs = measurements(thing, studio.feed.snapshot)
        self._seen: object = None
        profile_assets(studio.config.prefix)
        self.figures = (
            Fragment(self._figures(), "section").classes("card").props('aria-label="Figures" aria-live="polite"')
        )

    def fill(self) -> None:
        """Add what is below the tabs."""
        on = {
            "device": self._set_device, "batch": lambda v: self._set("batch", int(v)), "what": lambda v: self._set("what", v), "with": self._compare,
            "show": self._open, "select": self._select, "by": self._set_by, "sort": self._set_sort, "table": self._set_table, "blocks": self._set_blocks,
        }  # fmt: skip
        self.options = Fragment(self._options(), "div", on).classes("sect")
        self.status = Fragment(self._status(), "div", on)
        self.body = ui.element("div").classes("pbody")
        with self.body:
            with ui.element("div").classes("cols side-r"):
                with ui.element("section").classes("card").props('aria-label="Roofline"'):
                    self.legend = Fragment(self._legend(), "div", on)
                    self.chart = RooflineChart(self._spec(), self._select)
                self.network = Fragment(self._network(), "section", on).classes("card").props('aria-label="Network"')
            self.layers = Fragment(self._layers(), "section", on).classes("card sect").props('aria-label="Layers"')
            with ui.element("div").classes("cols c2 sect"):
                self.memory = (
                    Fragment(self._memory(), "section").classes("card").props('aria-label="Memory through one call"')
                )
                self.advice = (
                    Fragment(self._advice(), "section", on).classes("card").props('aria-label="What would help"')
                )
            self.timeline = (
                Fragment(self._timeline(), "section", on)
                .classes("card sect")
                .props('aria-label="Timeline of one call"')
            )
        EnergyCard(self.studio, self.thing, self.can)
        self.list = Fragment(self._list(), "div", on)
        self._hide()
        ui.context.client.on_delete(self.studio.feed.subscribe(self._follow))

    # --- what the user does ---------------------------------------------------------------------------------------------------------

    def _set_device(self, device: str) -> None:
        self.choice.set_device(device)
        self._show()

    def _set(self, name: str, value: Any) -> None:
        self.choice.set(name, value)
        self._show()

    def _compare(self, key: str) -> None:
        self.choice.compare_with(key)
        self._show()

    def _open(self, id: str) -> None:
        self.choice.show(id)
        self._show()

    def _select(self, label: str) -> None:
        label = block_of(label) if self._in_blocks() else label
        self.layer = None if label == self.layer else label
        self._show()

    def _set_blocks(self, value: str) -> None:
        self.blocks = value == "blocks"
        self.layer = block_of(self.layer) if self.layer and self.blocks else None
        self._show()

    def _set_by(self, by: str) -> None:
        self.by = by if by in COSTS else "seconds"
        self._show()

    def _set_table(self, device: str) -> None:
        self.table_device = device
        self._show()

    def _set_sort(self, column: str) -> None:
        self.descending = not self.descending if column == self.sort else column not in ("layer", "bound")
        self.sort = column
        self._show()

    # --- what is shown --------------------------------------------------------------------------------------------------------------

    def _read(self) -> list[Shelf]:
        """The profiles of the thing itself first, then those of what it can be compared with."""
        profiles = self.studio.profiles
        others = [Shelf(one, profiles.of(one), is_later) for one, is_later in self.related()]
        return [Shelf(self.thing, profiles.of(self.thing)), *others]

    def _follow(self, snapshot: Snapshot) -> None:
        self.jobs = measurements(self.thing, snapshot)
        folders = [self.thing.folder, *(one.folder for one, _ in self.related())]
        now = (stamp(*folders), self.jobs)
        if now != self._seen:
            self._seen = now
            background_tasks.create(self._reread(), name="profiles")

    async def _reread(self) -> None:
        self.choice.update(await asyncio.to_thread(self._read))
        self._show()

    def _show(self) -> None:
        self.figures.show(self._figures())
        self.options.show(self._options())
        self.status.show(self._status())
        self.legend.show(self._legend())
        self.chart.show_values(self._spec())
        self.network.show(self._network())
        self.layers.show(self._layers())
        self.memory.show(self._memory())
        self.advice.show(self._advice())
        self.timeline.show(self._timeline())
        self.list.show(self._list())
        self._hide()

    def _hide(self) -> None:
        """Without a profile there is nothing below the buttons."""
        for one in (self.figures, self.body):
            one.set_visibility(self.choice.pair is not None)

    def _render(self, template: str, **values: Any) -> str:
        return render(
            template,
            thing=self.thing,
            choice=self.choice,
            pair=self.choice.pair,
            which=which(self.choice.pair) if self.choice.pair else (),
            base=self.studio.config.prefix,
            **values,
        )

    def _figures(self) -> str:
        pair = self.choice.pair
        return self._render("profile_figures.html", metrics=figures(pair) if pair else [])

    def _options(self) -> str:
        return self._render(
            "profile_options.html", short_device=short_device, devices=device_choices(self.studio.queue.gpus())[1:], batches=BATCHES
        )  # fmt: skip

    def _status(self) -> str:
        return self._render("profile_status.html", jobs=self.jobs, short_device=short_device, can=self.can())

    def _legend(self) -> str:
        return self._render("profile_legend.html", series=self._spec()["series"])

    def _spec(self) -> dict[str, Any]:
        return roofline_spec(self._pairs(), self.layer)

    def _network(self) -> str:
        pair = self._table_pair()
        rows = costs(pair.after, self.by) if pair else []
        return self._render("profile_network.html", rows=rows, by=self.by, kinds=COSTS, layer=self.layer)

    def _in_blocks(self) -> bool:
        if self.blocks is None:
            return any(len(pair.after.layers) > MANY for pair in self.choice.pairs)
        return self.blocks

    def _pairs(self) -> list[Compared]:
        """The pairs as they are shown: by layer, or by block."""
        pairs = self.choice.pairs
        if not self._in_blocks():
            return pairs
        return [Compared(one.after.in_blocks(), one.before.in_blocks() if one.before else None) for one in pairs]

    def _table_pair(self) -> Compared | None:
        """The pair of the device that the table shows."""
        pairs = self._pairs()
        return next((one for one in pairs if one.after.device == self.table_device), pairs[0] if pairs else None)

    def _layers(self) -> str:
        shown = self._table_pair()
        rows = layer_rows(shown, self.sort, self.descending) if shown else []
        devices = sorted((one.after.device for one in self.choice.pairs), key=lambda name: (name == CPU, name))
        most = max((row.after.seconds for row in rows if row.after), default=1.0) or 1.0
        return self._render(
            "profile_layers.html", shown=shown, rows=rows, sort=self.sort, descending=self.descending, layer=self.layer, most=most,
            devices=devices, short_device=short_device, units=column_units(shown), number_in=number_in,
            in_blocks=self._in_blocks(), can_group=self._can_group(),
        )  # fmt: skip

    def _can_group(self) -> bool:
        """Whether blocks differ from layers."""
        return any(len(one.after.in_blocks().layers) < len(one.after.layers) for one in self.choice.pairs)

    def _memory(self) -> str:
        pair = self._table_pair()
        areas = memory_areas(pair.after.memory, pair.after.latency) if pair and pair.after.memory.steps else None
        return self._render("profile_memory.html", areas=areas, shown=pair, names=NAMES)

    def _advice(self) -> str:
        pair = self._table_pair()
        return self._render("profile_advice.html", items=advice(pair.after) if pair else [], layer=self.layer)

    def _timeline(self) -> str:
        stored, pair = self.choice.primary, self._table_pair()
        found = self.studio.profiles.timeline(stored) if stored is not None else None
        layers = {one.label for one in pair.after.layers} if pair else set()

        def named(label: str) -> str:
            """The layer of the table that a box belongs to; empty: none."""
            block = block_of(plain_label(label)) if self._in_blocks() else plain_label(label)
            return block if block in layers else ""

        return self._render(
            "profile_timeline.html", found=found, layer=self.layer, named=named, ticks=timeline_ticks(found) if found else [],
            time_text=time_text, title=plain_label,
            problem="The trace of this measurement is gone or cannot be read. Measure again.",
        )  # fmt: skip

    def _list(self) -> str:
        return self._render("profile_list.html", short_device=short_device, noun=noun, number_text=number_text)
