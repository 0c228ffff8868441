"""The form of a training: what is wrong with it, and what is known of a training before it starts."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...device_names import CPU, CUDA, read_device_name
from ...errors import UserError, WeftError
from ...jobs.checks import check_settings
from ...jobs.definitions import network_facts, network_label
from ...jobs.queue.job_queue import JobQueue
from ...jobs.queue.kinds import TRAIN
from ...jobs.queue.needs import check_device, needs_of
from ...jobs.rate_schedules import schedule
from ...jobs.recipes import with_recipe
from ...jobs.settings import SETTINGS
from ...jobs.sweeps.search_space import expand, sweep_size, values_of
from ...jobs.sweeps.settings import SweepPlan
from ...knobs import knobs
from ...ops.convert import asarray
from ...records import dataclass
from ...zoo.catalogue import ALIASES, FACTS, default_rate
from ...zoo.facts import NetworkFacts
from .runs import RunRow
from .training_fields import setting_title

MOST_RUNS = 200  # of a sweep


def device_choices(gpus: Sequence[str], chosen: str = "") -> list[tuple[str, str]]:
    """What the form offers as a device: values and titles. One of another machine is offered if a run that is cloned had it.

    >>> device_choices(["cuda:0"], "cuda:7")[1:]
    [('cpu', 'CPU'), ('cuda', 'GPU (CUDA)'), ('cuda:0', 'GPU 0 (CUDA)'), ('cuda:7', 'GPU 7 (CUDA)')]
    """
    found = [CPU, *([CUDA, *gpus] if gpus else [])]
    found += [chosen] if chosen and chosen not in found else []
    return [("", f"{device_title(None)} (default)"), *((name, device_title(name)) for name in found)]


def device_title(name: str | None) -> str:
    """A device as people call it.

    >>> device_title("cpu"), device_title("cuda"), device_title("cuda:1")
    ('CPU', 'GPU (CUDA)', 'GPU 1 (CUDA)')
    """
    kind, number = read_device_name(name or knobs.device)
    title = _DEVICE_TITLES.get(kind, f"{kind}{{}}")
    return title.format(f" {number}" if number else "")


_DEVICE_TITLES = {CPU: "CPU{}", CUDA: "GPU{} (CUDA)"}


@dataclass(frozen=True)
class FormCheck:
    """What is known of a form: how many trainings it starts, what is wrong, which network and settings result."""

    runs: int = 0
    error: str = ""
    field: str = ""  # that the error is about
    settings: Mapping[str, Any] | None = None  # of the first training
    network: NetworkFacts | None = None
    command: str = ""
    swept: tuple[tuple[str, str], ...] = ()  # titles of settings with several values, and the values
    rates: tuple[
        tuple[str, list[tuple[float, float]]], ...
    ] = ()  # the learning rate over epochs, of trainings where it differs
    sweep: SweepPlan | None = None  # if it is one
    folds: int = 0  # of a cross-validation


def filled(given: Mapping[str, str]) -> dict[str, str]:
    """The fields that hold something."""
    return {name: text.strip() for name, text in given.items() if name in SETTINGS and text.strip()}


def check_form(
    given: Mapping[str, str], runs_folder: str, confined: Callable[[dict[str, str]], dict[str, str]] = dict
) -> FormCheck:
    """Check a form without starting anything. `confined` refuses settings with paths that may not be read."""
    values = filled(given)
    count = sweep_size(values)
    command = _command(values, count)
    if "data" not in values and "recipe" not in values:
        return FormCheck(error="A dataset is required: digits is built in.", field="data", command=command)
    if count > MOST_RUNS:
        return FormCheck(count, f"At most {MOST_RUNS} trainings can be started at once.", command=command)

    def checked(one: Mapping[str, str]) -> dict[str, Any]:
        made = with_recipe("train", {**confined(dict(one)), "runs": runs_folder})
        check_settings("train", made)
        check_device(needs_of(TRAIN, made), JobQueue(runs_folder).gpus)
        return made

    settings = []
    for one in expand(values):
        try:
            settings.append(checked(one))
        except WeftError as error:
            return FormCheck(count, error.message, field_of(error.message, one, checked), command=command)
    try:
        network = network_facts(settings[0])
    except WeftError as error:
        return FormCheck(count, error.message, "model", command=command)
    return FormCheck(count, "", "", settings[0], network, command, _swept(values), learning_rates(settings))


def _swept(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The settings with several values, and those."""
    several = {name: values_of(name, text) for name, text in values.items()}
    return tuple((setting_title(name), ", ".join(parts)) for name, parts in several.items() if len(parts) > 1)


_STEPS = 1000  # of the preview of a schedule
_POINTS = 101
_LINES = 8


def learning_rates(trainings: list[dict[str, Any]]) -> tuple[tuple[str, list[tuple[float, float]]], ...]:
    """The learning rate over the epochs, one line for each that differs."""
    found: dict[str, list[tuple[float, float]]] = {}
    for settings in trainings:
        if settings["rate"] == "auto":
            continue
        peak = settings["rate"] if settings["rate"] is not None else _default_rate(settings)
        epochs = settings["epochs"]
        made = schedule(settings, peak, _STEPS, epochs)
        at = np.linspace(0, _STEPS - 1, _POINTS)
        values = made(asarray(at)).numpy() if callable(made) else np.full(_POINTS, made)
        line = [
            (float(t * epochs / _STEPS), float(v)) for t, v in zip(at, np.broadcast_to(values, at.shape), strict=True)
        ]
        if line not in found.values() and len(found) < _LINES:
            found[
                f"{peak:.3g}" if f"{peak:.3g}" not in found else f"{peak:.3g}, {settings['schedule']}, {epochs} epochs"
            ] = line
    return tuple(found.items())


@dataclass(frozen=True)
class PastSpeed:
    """How fast an earlier run with the same network and data was."""

    run: str
    seconds_per_epoch: float

    def seconds(self, epochs: int) -> float:
        return epochs * self.seconds_per_epoch


def past_speed(runs: Iterable[RunRow], settings: Mapping[str, Any]) -> PastSpeed | None:
    """The speed of the last run that trained this network with this data, batch and device."""
    compared = ("data", "size", "precision", "accumulate")
    label = network_label(str(settings["model"] or "lenet5"))  # of the zoo, a file, or saved in the studio
    model = ALIASES.get(label, label)
    like = [
        row for row in runs
        if row.seconds and row.epochs and row.model == model and _device_kind(row.settings) == _device_kind(settings)
        and all(row.settings.get(name) == settings[name] for name in compared)
        and settings["batch"] in (None, "auto", row.settings.get("batch"))
    ]  # fmt: skip
    last = max(like, key=lambda row: row.started, default=None)
    return None if last is None else PastSpeed(last.name, (last.seconds or 0.0) / last.epochs)


def _device_kind(settings: Mapping[str, Any]) -> str:
    """cpu or cuda: runs record the device that they had, forms leave it open."""
    return str(settings.get("device") or knobs.device).partition(":")[0]


def _default_rate(settings: Mapping[str, Any]) -> float:
    facts = network_facts(settings) or FACTS["lenet5"]
    return default_rate(str(settings["model"] or "lenet5"), settings["optimizer"], facts.parameters)


def field_of(message: str, values: Mapping[str, str], check: Callable[[dict[str, str]], Any] | None = None) -> str:
    """The field that a message is about: the one that it names, else the one without which `check` accepts the form."""
    named = next((name for name, text in values.items() if f"{name}={text}" in message or f"{name}=" in message), "")
    if named or check is None:
        return named
    for name in values:
        try:
            check({other: text for other, text in values.items() if other != name})
        except WeftError:
            continue
        return name
    return ""


def _command(values: Mapping[str, str], trainings: int) -> str:
    """The same on the command line."""
    verb = "weft train" if trainings == 1 else "weft job submit"
    return " ".join([verb, *(shlex.quote(f"{name}={text.replace(', ', ',')}") for name, text in values.items())])


def trainings_of(given: Mapping[str, str]) -> list[dict[str, str]]:
    """The settings of every training of a form, of which there are not too many."""
    values = filled(given)
    if (count := sweep_size(values)) > MOST_RUNS:
        raise UserError("studio", f"at most {MOST_RUNS} trainings at once are accepted, got {count:,}.")
    return expand(values)
