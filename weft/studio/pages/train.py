"""Train: the form with every setting, checked while it is filled in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from nicegui import ui

from ... import optim
from ...data.catalogue import known_names
from ...errors import WeftError
from ...jobs.definitions import kept_definition
from ...jobs.network_store import NetworkStore
from ...jobs.schema import as_text
from ...jobs.settings import OF_ONE_RUN, SETTINGS
from ...jobs.training_preview import TrainingPreview
from ...jobs.weights_store import stored
from ...report.png import data_url, png
from ...zoo.catalogue import FACTS
from ...zoo.recipes import RECIPES
from ..access import current_user
from ..api.folds import add_folds
from ..api.submission import add_trainings, confined
from ..api.sweeps import add_sweep
from ..library.folds_form import NAME as FOLDS
from ..library.folds_form import check_folds_form, with_folds
from ..library.sweep_form import SEARCH_GROUP, check_sweep_form, filled_sweep, has_range
from ..library.training_form import GROUPS, FormCheck, check_form, device_choices, device_title, filled, past_speed
from ..store.credentials import StudioUser
from ..ui.charts import Chart, ChartSpec, Series
from ..ui.context import Studio
from ..ui.fragment import Fragment
from ..ui.frame import frame, studio_page
from ..ui.rendering import render

START = {"data": "digits", "model": "lenet5"}  # of an empty form


def add(studio: Studio) -> None:
    """Register the page."""

    @studio_page("/train")
    def train(request: Request, clone: str = "") -> None:
        """The address may set any field: /train?data=digits&epochs=5."""
        known = (*SETTINGS, FOLDS)
        given = {name: text for name, text in request.query_params.items() if name in known and text}
        with frame(studio, "Train", "train"):
            TrainForm(studio, _cloned(studio, clone) | given)


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
        if name in SETTINGS and name not in OF_ONE_RUN and value is not None and value != SETTINGS[name].default
    }


class TrainForm:
    """The form and the panel beside it. `is_sweep`: it also has the settings of a search, and starts a sweep."""

    def __init__(self, studio: Studio, values: dict[str, str], is_sweep: bool = False) -> None:
        self.studio, self.values = studio, values if values.keys() - {FOLDS} else {**START, **values}
        self.is_sweep = is_sweep
        self.groups = (*GROUPS[:2], SEARCH_GROUP, *GROUPS[2:]) if is_sweep else with_folds(GROUPS)
        self.user = current_user(ui.context.client.request)
        lists = {
            "data": _datasets(studio), "model": _models(studio, self.values.get("model")), "recipe": sorted(RECIPES), "optimizer": sorted(optim.OPTIMIZERS),
            "weights": [one.name for one in stored()] + [str(row.folder) for row in studio.index.rows() if row.epochs],
        }  # fmt: skip
        with ui.element("div").classes("cols side-r"):
            Fragment(
                render(
                    "train_form.html", groups=self.groups, values=self.values, lists=lists, wrong="", **self._devices()
                ),
                on={"changed": self._changed},
            )
            with ui.element("aside"):
                check = self._check(self.values)
                with ui.element("div").classes("stay"):
                    on = {"start": self._start, "sweep": self._start_sweep, "folds": self._start_folds}
                    self.panel = Fragment(self._panel(check), "section", on=on)
                    self.panel.classes("card").props('aria-label="Forecast" aria-live="polite"')
                    self.images = Fragment(self._augmented(check), "section").classes("card sect")
                    self.images.props('aria-label="Augmented images"')
                    with ui.element("section").classes("card sect").props('aria-label="Learning rate"'):
                        ui.html("<h2>Learning rate</h2>", sanitize=False).classes("chead")
                        self.rates = Chart(_rate_chart(check), 140)
        ui.context.client.on_connect(lambda: self._foresee(check))

    def _devices(self) -> dict[str, Any]:
        """The devices of the form, and what is said of them."""
        gpus = self.studio.queue.gpus()
        said = (
            "A GPU is the next free one, unless it has a number" if gpus else "This machine has no GPU that weft finds"
        )
        return {"devices": device_choices(gpus, self.values.get("device", "")), "device_help": said}

    def _check(self, values: dict[str, str]) -> FormCheck:
        """Check the form; a preview reads no more of the server than a training may."""
        check = check_sweep_form if self.is_sweep or has_range(values) else check_form
        if values.get(FOLDS, "").strip() and not self.is_sweep:
            check = check_folds_form
        return check(values, str(self.studio.config.runs), lambda one: confined(self.studio, one))

    def _panel(self, check: FormCheck) -> str:
        known = None if check.settings is None else self.studio.previews.known(check.settings)
        preview, why = (known, "") if isinstance(known, TrainingPreview) else (None, known)
        speed = None if check.settings is None else past_speed(self.studio.index.rows(), check.settings)
        device = "" if check.settings is None else device_title(check.settings["device"])
        more = "" if self.is_sweep else urlencode(filled(self.values))
        return render(
            "train_forecast.html", check=check, preview=preview, why=why, speed=speed, device=device, search=more,
            base=self.studio.config.prefix,
        )  # fmt: skip

    def _augmented(self, check: FormCheck) -> str:
        known = None if check.settings is None else self.studio.previews.known(check.settings)
        images = known.images if isinstance(known, TrainingPreview) else None
        return render("train_augmented.html", images=[] if images is None else [data_url(png(one)) for one in images])

    async def _changed(self, values: dict[str, str]) -> None:
        self.values = values
        check = await asyncio.to_thread(self._check, values)
        self.panel.show(self._panel(check))
        if not check.error:
            self.rates.show(_rate_chart(check))
            await self._foresee(check)

    async def _foresee(self, check: FormCheck) -> None:
        """Show memory and images once they are known, unless the form was changed meanwhile."""
        if check.settings is None:
            return
        values = self.values
        found = await self.studio.previews.make(check.settings, lambda: values is self.values)
        if found is not None and values is self.values:
            self.panel.show(self._panel(check))
            self.images.show(self._augmented(check))

    async def _start(self, _: Any) -> None:
        try:
            await asyncio.to_thread(add_trainings, self.studio, filled(self.values), self.user)
        except WeftError as error:
            self.panel.show(self._panel(FormCheck(error=error.message)))
            return
        ui.navigate.to(f"{self.studio.config.prefix}/")

    async def _start_sweep(self, _: Any) -> None:
        await self._start_group("sweeps", add_sweep, filled_sweep(self.values))

    async def _start_folds(self, _: Any) -> None:
        await self._start_group("folds", add_folds, self.values)

    async def _start_group(
        self, page: str, add: Callable[[Studio, Mapping[str, str], StudioUser], tuple[str, int]], values: dict[str, str]
    ) -> None:
        try:
            name, _number = await asyncio.to_thread(add, self.studio, values, self.user)
        except WeftError as error:
            self.panel.show(self._panel(FormCheck(error=error.message)))
            return
        ui.navigate.to(f"{self.studio.config.prefix}/{page}/{quote(name)}")


def _models(studio: Studio, chosen: str | None) -> list[str]:
    """Saved networks, then those of the zoo; a run that is cloned may have the file of its own."""
    names = [*NetworkStore(studio.config.runs).names(), *sorted(FACTS)]
    return [*([chosen] if chosen and chosen not in names else []), *names]


def _datasets(studio: Studio) -> list[str]:
    """The newest version of every dataset of the studio, and the known sets."""
    own = [str(row.newest.folder) for row in studio.feed.snapshot.datasets if row.newest is not None]
    return [*own, *sorted(known_names())]


def _rate_chart(check: FormCheck) -> ChartSpec:
    """The learning rate over the training, before it starts."""
    epochs = check.settings["epochs"] if check.settings else 1
    series = [Series(name, points, f"s{i + 1}") for i, (name, points) in enumerate(check.rates)]
    return ChartSpec("Learning rate", series, x={"label": "Epoch", "max": epochs}, y={"min": 0})
