"""Train: the form with every setting, checked while it is filled in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from nicegui import ui

from ... import optim
from ...data.catalogue import known_names
from ...errors import WeftError
from ...jobs.definitions import kept_definition
from ...jobs.network_store import NetworkStore
from ...jobs.recipes import RecipeStore
from ...jobs.settings import OF_ONE_RUN, SETTINGS, setting_as_text
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
from ..library.training_fields import GROUPS, setting_title
from ..library.training_form import (
    FormCheck,
    check_form,
    device_choices,
    device_title,
    field_of,
    filled,
    past_speed,
)
from ..store.credentials import StudioUser
from ..ui.charts import Chart, ChartSpec, Series
from ..ui.context import Studio
from ..ui.formats import short
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
        row = studio.index.get(clone)
        crumb = [("Runs", "/runs"), (f"cloned from {row.name}", f"/runs/{quote(row.id)}")] if row is not None else []
        with frame(studio, "Train", "train", own_header=True):
            TrainForm(studio, _cloned(studio, clone) | given, crumb)


def _cloned(studio: Studio, run: str) -> dict[str, str]:
    """The settings of a run that differ from the defaults, as the form writes them. Its recipe would replace those that do not."""
    row = studio.index.get(run)
    if row is None:
        return {}
    kept = kept_definition(row.folder)
    settings = {**row.settings, **({} if kept is None else {"model": str(kept)})}
    return {
        name: setting_as_text(name, value)
        for name, value in settings.items()
        if name in SETTINGS
        and name not in (*OF_ONE_RUN, "recipe")
        and value is not None
        and value != SETTINGS[name].default
    }


class TrainForm:
    """The header with the button that starts it, the form, and the panel beside it.

    `is_sweep`: it also has the settings of a search, and starts a sweep.
    """

    def __init__(
        self, studio: Studio, values: dict[str, str], crumb: Sequence[tuple[str, str]], is_sweep: bool = False
    ) -> None:
        self.recipes = RecipeStore(studio.config.runs)
        values = {**self._recipe(values.get("recipe", "")), **values}
        self.studio, self.values = studio, values if values.keys() - {FOLDS} else {**START, **values}
        self.crumb, self.is_sweep = crumb, is_sweep
        self.groups = (*GROUPS[:2], SEARCH_GROUP, *GROUPS[2:]) if is_sweep else with_folds(GROUPS)
        self.user = current_user(ui.context.client.request)
        check = self._check(self.values)
        on = {"start": self._start, "sweep": self._start_sweep, "folds": self._start_folds}
        self.header = Fragment(self._header(check), "header", on=on).classes("phead")
        lists = {
            "data": _datasets(studio), "model": _models(studio, self.values.get("model")), "recipe": [*self.recipes.names(), *sorted(RECIPES)], "optimizer": sorted(optim.OPTIMIZERS),
            "weights": [one.name for one in stored()] + [str(row.folder) for row in studio.index.rows() if row.epochs],
        }  # fmt: skip
        ui.add_head_html(f'<script src="{studio.config.prefix}/assets/train.js" defer></script>')
        with ui.element("div").classes("cols side-r"):
            self.form = Fragment(
                render(
                    "train_form.html", groups=self.groups, values=self.values, lists=lists, wrong="", **self._devices()
                ),
                on={"changed": self._changed},
            )
            with ui.element("aside"), ui.element("div").classes("stay"):
                self.panel = Fragment(self._panel(check), "section")
                self.panel.classes("card").props('aria-label="Forecast" aria-live="polite"')
                with ui.element("section").classes("card sect").props('aria-label="Learning rate"'):
                    ui.html("<h2>Learning rate</h2>", sanitize=False).classes("chead")
                    self.rates = Chart(_rate_chart(check), 140)
                self.images = Fragment(self._augmented(check), "section").classes("card sect")
                self.images.props('aria-label="Augmented images"')
        ui.context.client.on_connect(lambda: self._foresee(check))

    def _recipe(self, name: str) -> dict[str, str]:
        """The settings of a recipe for the fields of the form: what it shows is what it starts."""
        if name in self.recipes.names():
            found = self.recipes.settings(name)
        else:
            given = RECIPES[name].settings if name in RECIPES else {}
            found = {key: setting_as_text(key, value) for key, value in given.items()}
        return {key: text for key, text in found.items() if key != "recipe"}

    def _show(self, check: FormCheck) -> None:
        """What a check found: what can be started, the forecast, and hints at the fields."""
        self.header.show(self._header(check))
        self.panel.show(self._panel(check))
        self.form.run_method("hints", self._hints(check))

    def _header(self, check: FormCheck) -> str:
        title = "New sweep" if self.is_sweep else "Train"
        return render(
            "train_header.html",
            check=check,
            title=title,
            crumb=self.crumb,
            is_sweep=self.is_sweep,
            base=self.studio.config.prefix,
        )

    def _hints(self, check: FormCheck) -> dict[str, dict[str, Any]]:
        return field_hints(check, self._preview(check)[0])

    def _preview(self, check: FormCheck) -> tuple[TrainingPreview | None, str | None]:
        """What is known of the training that a form describes, or why nothing is."""
        known = None if check.settings is None else self.studio.previews.known(check.settings)
        return (known, "") if isinstance(known, TrainingPreview) else (None, known)

    def _devices(self) -> dict[str, Any]:
        """The devices of the form, and what is said of them."""
        gpus = self.studio.queue.gpus()
        said = "Next free GPU, unless it has a number" if gpus else "No GPU was found on this machine"
        return {"devices": device_choices(gpus, self.values.get("device", "")), "device_help": said}

    def _check(self, values: dict[str, str]) -> FormCheck:
        """Check the form; a preview reads no more of the server than a training may."""
        check = check_sweep_form if self.is_sweep or has_range(values) else check_form
        if values.get(FOLDS, "").strip() and not self.is_sweep:
            check = check_folds_form
        return check(values, str(self.studio.config.runs), lambda one: confined(self.studio, one))

    def _panel(self, check: FormCheck) -> str:
        preview, why = self._preview(check)
        speed = None if check.settings is None else past_speed(self.studio.index.rows(), check.settings)
        device = "" if check.settings is None else device_title(check.settings["device"])
        more = "" if self.is_sweep else urlencode(filled(self.values))
        return render(
            "train_forecast.html", check=check, preview=preview, why=why, speed=speed, device=device, search=more,
            base=self.studio.config.prefix,
        )  # fmt: skip

    def _augmented(self, check: FormCheck) -> str:
        preview, _ = self._preview(check)
        images = None if preview is None else preview.images
        return render("train_augmented.html", images=[] if images is None else [data_url(png(one)) for one in images])

    async def _changed(self, values: dict[str, str]) -> None:
        before, recipe = self.values.get("recipe", ""), values.get("recipe", "")
        if recipe != before:
            old, new = await asyncio.to_thread(lambda: (self._recipe(before), self._recipe(recipe)))
            undone = {name: "" for name, text in old.items() if values.get(name) == text}
            self.form.run_method("fill", {**undone, **new})
            values = {**values, **undone, **new}
        self.values = values
        check = await asyncio.to_thread(self._check, values)
        self._show(check)
        if not check.error:
            self.rates.show(_rate_chart(check))
            await self._foresee(check)

    async def _foresee(self, check: FormCheck) -> None:
        """Show memory and images once they are known, unless the form was changed meanwhile."""
        self.form.run_method("hints", self._hints(check))
        if check.settings is None:
            return
        values = self.values
        found = await self.studio.previews.make(check.settings, lambda: values is self.values)
        if found is not None and values is self.values:
            self._show(check)
            self.images.show(self._augmented(check))

    async def _start(self, _: Any) -> None:
        try:
            await asyncio.to_thread(add_trainings, self.studio, filled(self.values), self.user)
        except WeftError as error:
            self._show(FormCheck(error=error.message, field=field_of(error.message, self.values)))
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
            self._show(FormCheck(error=error.message, field=field_of(error.message, self.values)))
            return
        ui.navigate.to(f"{self.studio.config.prefix}/{page}/{quote(name)}")


def field_hints(check: FormCheck, preview: TrainingPreview | None) -> dict[str, dict[str, Any]]:
    """What a form says at its fields: a mistake where it is, facts of what was chosen, and the values of empty fields."""
    if check.error:
        text = check.error[:1].upper() + check.error[1:]
        return {check.field: {"text": text, "bad": True}} if check.field else {}
    found: dict[str, dict[str, Any]] = {}
    if check.network is not None:
        macs = f", {short(check.network.macs)} MACs" if check.network.macs else ""
        found["model"] = {"text": f"{short(check.network.parameters)} parameters{macs}"}
    if preview is not None:
        memory = preview.memory
        fits = "" if memory.largest_batch >= memory.examples else f"Largest that fits: {memory.largest_batch:,}"
        found["data"] = {"text": preview.about}
        found["batch"] = {"placeholder": str(memory.batch), **({"text": fits} if fits else {})}
    if len(check.rates) == 1:
        found["rate"] = {"placeholder": check.rates[0][0]}
    several = dict(check.swept).get(setting_title("rate"))
    if several:
        found["rate"] = {"text": f"{several.count(',') + 1} values make {check.runs} runs"}
    return found


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
