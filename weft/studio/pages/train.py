"""Train: the form with every setting, checked while it is filled in."""

from __future__ import annotations

import asyncio
from typing import Any

from nicegui import ui

from ... import optim
from ...data.catalogue import known_names
from ...errors import WeftError
from ...jobs.definitions import kept_definition
from ...jobs.network_store import NetworkStore
from ...jobs.schema import as_text
from ...jobs.settings import SETTINGS
from ...jobs.submission import submit
from ...jobs.weights_store import stored
from ...zoo.catalogue import FACTS
from ...zoo.recipes import RECIPES
from ..library.training_form import GROUPS, FormCheck, check_form, trainings_of
from ..ui.charts import Chart, ChartSpec, Series
from ..ui.context import Studio
from ..ui.fragment import Fragment
from ..ui.frame import frame
from ..ui.rendering import render

_OWN = ("name", "runs", "json", "exist_ok")  # settings of one run that a clone does not take over


def add(studio: Studio) -> None:
    """Register the page."""

    @ui.page("/train")
    def train(clone: str = "", recipe: str = "", data: str = "", model: str = "") -> None:
        given = {"recipe": recipe, "data": data, "model": model} | _cloned(studio, clone)
        with frame(studio, "Train", "train"):
            TrainForm(studio, {name: text for name, text in given.items() if text})


def _cloned(studio: Studio, run: str) -> dict[str, str]:
    """The settings of a run that differ from the defaults, as the form writes them."""
    row = studio.index.get(run)
    if row is None:
        return {}
    kept = kept_definition(row.folder)
    settings = {**row.settings, **({} if kept is None else {"model": str(kept)})}
    return {
        name: as_text(value)
        for name, value in settings.items()
        if name in SETTINGS and name not in _OWN and value is not None and value != SETTINGS[name].default
    }


class TrainForm:
    """The form and the panel beside it."""

    def __init__(self, studio: Studio, values: dict[str, str]) -> None:
        self.studio, self.values = studio, values or {"data": "digits", "model": "lenet5"}
        lists = {
            "data": sorted(known_names()), "model": _models(studio, self.values.get("model")), "recipe": sorted(RECIPES), "optimizer": sorted(optim.OPTIMIZERS),
            "weights": [one.name for one in stored()],
        }  # fmt: skip
        with ui.element("div").classes("cols side-r"):
            Fragment(
                render("train_form.html", groups=GROUPS, values=self.values, lists=lists, wrong=""),
                on={"changed": self._changed},
            )
            with ui.element("aside"):
                check = check_form(self.values, str(studio.config.runs))
                with ui.element("div").classes("stay"):
                    self.panel = Fragment(self._panel(check), "section", on={"start": self._start})
                    self.panel.classes("card").props('aria-label="Forecast" aria-live="polite"')
                    with ui.element("section").classes("card sect").props('aria-label="Learning rate"'):
                        ui.html("<h2>Learning rate</h2>", sanitize=False).classes("chead")
                        self.rates = Chart(_rate_chart(check), 140)

    def _panel(self, check: FormCheck) -> str:
        return render("train_forecast.html", check=check)

    async def _changed(self, values: dict[str, str]) -> None:
        self.values = values
        check = await asyncio.to_thread(check_form, values, str(self.studio.config.runs))
        self.panel.show(self._panel(check))
        if not check.error:
            self.rates.show(_rate_chart(check))

    async def _start(self, _: Any) -> None:
        try:
            await asyncio.to_thread(lambda: [submit(self.studio.queue, one) for one in trainings_of(self.values)])
        except WeftError as error:
            self.panel.show(self._panel(FormCheck(error=error.message)))
            return
        self.studio.feed.refresh_soon()
        ui.navigate.to(f"{self.studio.config.prefix}/")


def _models(studio: Studio, chosen: str | None) -> list[str]:
    """Saved networks, then those of the zoo; a run that is cloned may have the file of its own."""
    names = [*NetworkStore(studio.config.runs).names(), *sorted(FACTS)]
    return [*([chosen] if chosen and chosen not in names else []), *names]


def _rate_chart(check: FormCheck) -> ChartSpec:
    """The learning rate over the training, before it starts."""
    epochs = check.settings["epochs"] if check.settings else 1
    series = [Series(name, points, f"s{i + 1}") for i, (name, points) in enumerate(check.rates)]
    return ChartSpec("Learning rate", series, x={"label": "Epoch", "max": epochs}, y={"min": 0})
