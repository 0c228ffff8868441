"""The card "Energy in other forms" of the tab Profile: modelled energy in float32, float16, int8, fixed point and with sparse weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nicegui import background_tasks, ui

from ...insight.energy_comparison import GROUPS
from ...jobs.profiles.energy_job import StoredEnergy, stored_energies
from ...jobs.queue.kinds import ENERGY
from ..library.changes import stamp
from ..library.feed import Snapshot
from ..library.profiles import MeasurementView, ProfiledThing, measurements
from ..ui.context import Studio
from ..ui.energy_view import COLOURS, energy_bars, layer_energies, moved_text
from ..ui.fragment import Fragment
from ..ui.profile_view import short_device
from ..ui.rendering import render


class EnergyCard:
    """The comparisons of one run or network. It follows the feed: one that is made meanwhile is shown."""

    def __init__(self, studio: Studio, thing: ProfiledThing, can: Callable[[], bool]) -> None:
        self.studio, self.thing, self.can = studio, thing, can
        self.stored = stored_energies(thing.folder)
        self.jobs = self._jobs(studio.feed.snapshot)
        self.shown = ""  # device and batch; the newest, if none
        self.form = ""
        self._seen: object = None
        on = {"energy": self._choose, "form": self._select}
        self.card = (
            Fragment(self._html(), "section", on).classes("card sect").props('aria-label="Energy in other forms"')
        )
        ui.context.client.on_delete(studio.feed.subscribe(self._follow))

    def _jobs(self, snapshot: Snapshot) -> list[MeasurementView]:
        return measurements(self.thing, snapshot, ENERGY)

    def _choose(self, key: str) -> None:
        self.shown, self.form = key, ""
        self.card.show(self._html())

    def _select(self, form: str) -> None:
        self.form = "" if form == self.form else form
        self.card.show(self._html())

    def _follow(self, snapshot: Snapshot) -> None:
        self.jobs = self._jobs(snapshot)
        now = stamp(self.thing.folder), self.jobs
        if now != self._seen:
            self._seen = now
            background_tasks.create(self._reread(), name="energies")

    async def _reread(self) -> None:
        found = await asyncio.to_thread(stored_energies, self.thing.folder)
        if found and found[:1] != self.stored[:1]:
            self.shown = ""  # a new one is shown
        self.stored = found
        self.card.show(self._html())

    def _current(self) -> StoredEnergy | None:
        newest = next(iter(self.stored), None)
        return next((one for one in self.stored if _key(one) == self.shown), newest)

    def _html(self) -> str:
        one = self._current()
        values: dict[str, Any] = {"bars": [], "form": "", "moved": [], "layers": []}
        if one is not None:
            names = [form.name for form in one.found.forms]
            best = min(one.found.forms, key=lambda form: form.joules).name
            form = self.form if self.form in names else best
            values = {
                "bars": energy_bars(one.found), "form": form, "moved": moved_text(one.found, form),
                "layers": layer_energies(one.found, form), "first": names[0],
            }  # fmt: skip
        options = [(_key(stored), f"{short_device(stored.device)}, batch {stored.batch}") for stored in self.stored]
        return render(
            "profile_energy.html", one=one, options=options, key=_key(one) if one else "", groups=[(GROUPS[g], COLOURS[g]) for g in GROUPS],
            jobs=self.jobs, can=self.can(), thing=self.thing, short_device=short_device, base=self.studio.config.prefix, **values,
        )  # fmt: skip


def _key(one: StoredEnergy) -> str:
    return f"{one.device} {one.batch}"
