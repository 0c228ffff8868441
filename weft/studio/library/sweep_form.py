"""The form of a sweep: the fields of a training, where a comma or a range means several values, and those of the search."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import WeftError
from ...jobs.definitions import network_facts
from ...jobs.queue.job_queue import JobQueue
from ...jobs.queue.kinds import TRAIN
from ...jobs.queue.needs import check_device, needs_of
from ...jobs.recipes import with_recipe
from ...jobs.settings import SETTINGS
from ...jobs.sweeps.search_space import ChoiceDimension, Dimension, RangeDimension, dimension, values_of
from ...jobs.sweeps.settings import SWEEP, SweepPlan, checked_sweep
from .training_fields import Field, FieldGroup, setting_title
from .training_form import FormCheck, field_of, learning_rates

PATHS = ("data", "weights", "from")  # may be paths of the server
SEARCH = ("trials", "jobs", "sampler", "pruner", "metric")  # a database for the trials is for the command line
_TITLES = {"trials": "Trials", "jobs": "Trials at a time", "sampler": "Sampler", "pruner": "Pruner", "metric": "Metric"}
SEARCH_GROUP = FieldGroup(
    "Search", "Several values make a sweep: a comma for a list, 0..0.5 or log:1e-4..1e-1 for a range.",
    tuple(Field(name, SWEEP[name], _TITLES[name]) for name in SEARCH),
)  # fmt: skip


def filled_sweep(given: Mapping[str, str]) -> dict[str, str]:
    """The fields that hold something. Lists alone are searched as a grid, unless another sampler was chosen."""
    names = (*SETTINGS, *SEARCH)
    values = {name: text.strip() for name, text in given.items() if name in names and text.strip()}
    if "sampler" not in values and not has_range(values) and "," not in values.get("metric", ""):
        values["sampler"] = "grid"
    return values


def has_range(given: Mapping[str, str]) -> bool:
    """Whether a setting is a range of numbers, which only a sweep can search.

    >>> has_range({"rate": "log:1e-4..1e-1"}), has_range({"rate": "0.1,0.03", "data": "../photos"})
    (True, False)
    """
    for name, text in given.items():
        try:
            if name in SETTINGS and isinstance(dimension("sweep", name, text.strip()), RangeDimension):
                return True
        except WeftError:
            if ".." in text and SETTINGS[name].type in ("integer", "number"):
                return True  # a range that is written in a wrong way: the form says how
    return False


def confined_sweep(given: Mapping[str, str], confined: Callable[[dict[str, str]], dict[str, str]]) -> dict[str, str]:
    """The settings of a sweep, whose paths are confined to what the server may read: each value of a list."""
    recipe = confined({"recipe": given["recipe"]}) if "recipe" in given else {}  # its settings, if it was saved here
    found = {**recipe, **{name: text for name, text in given.items() if name != "recipe"}}
    for name in PATHS:
        if name in found:
            found[name] = ",".join(confined({name: value})[name] for value in values_of(name, found[name]))
    return found


def check_sweep_form(
    given: Mapping[str, str], runs_folder: str, confined: Callable[[dict[str, str]], dict[str, str]] = dict
) -> FormCheck:
    """Check a form without starting anything or opening data."""
    values = filled_sweep(given)
    command = " ".join(["weft sweep", *(shlex.quote(f"{n}={t.replace(', ', ',')}") for n, t in values.items())])

    def checked(one: Mapping[str, str]) -> SweepPlan:
        return checked_sweep(confined_sweep(one, confined))

    try:
        plan = checked(values)
        ends = [with_recipe("train", {**plan.fixed, **one, "runs": runs_folder}) for one in _ends(plan.space)]
        check_device(needs_of(TRAIN, ends[0]), JobQueue(runs_folder).gpus)
        network = network_facts(ends[0])
    except WeftError as error:
        return FormCheck(0, error.message, field_of(error.message, values, checked), command=command)
    swept = tuple((setting_title(one.name), values[one.name]) for one in plan.space)
    return FormCheck(plan.trials, "", "", ends[0], network, command, swept, learning_rates(ends), plan)


def _ends(space: tuple[Dimension, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two trainings of a sweep: one with the first values, one with the last."""
    ends = {one.name: (one.values if isinstance(one, ChoiceDimension) else (one.low, one.high)) for one in space}
    return {name: both[0] for name, both in ends.items()}, {name: both[-1] for name, both in ends.items()}
