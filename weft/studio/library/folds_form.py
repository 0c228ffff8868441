"""The form of a cross-validation: that of a training with a number of folds."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...errors import UserError, WeftError
from ...jobs.definitions import network_facts
from ...jobs.folds.jobs import checked_folds
from ...jobs.queue.job_queue import JobQueue
from ...jobs.queue.kinds import TRAIN
from ...jobs.queue.needs import check_device, needs_of
from ...jobs.schema import validated
from ...jobs.settings import FOLDS_SETTING
from ...jobs.sweeps.search_space import sweep_size
from .sweep_form import has_range
from .training_fields import Field, FieldGroup
from .training_form import FormCheck, field_of, filled, learning_rates

NAME = "folds"
FIELD = Field(NAME, replace(FOLDS_SETTING, help="cross-validation: a training for each of so many parts of the data, which holds it out"), "Folds")  # fmt: skip


def with_folds(groups: tuple[FieldGroup, ...]) -> tuple[FieldGroup, ...]:
    """The groups of the form of a training with the field for folds, beside that for validation."""
    first, *rest = groups
    return (replace(first, more=(first.more[0], FIELD, *first.more[1:])), *rest)


def folds_of(given: Mapping[str, str]) -> int | None:
    """The folds of a form; None if it is that of a training."""
    text = given.get(NAME, "").strip()
    found: int | None = validated("studio", {NAME: text}, {NAME: FOLDS_SETTING})[NAME] if text else None
    return found


def folds_settings(given: Mapping[str, str]) -> dict[str, str]:
    """The settings of the trainings, each with one value."""
    values = filled(given)
    if sweep_size(values) > 1 or has_range(values):
        raise UserError("studio", "one value of each setting is required for a cross-validation, got several. Search first, then cross-validate the best.")  # fmt: skip
    return values


def check_folds_form(
    given: Mapping[str, str], runs_folder: str, confined: Callable[[dict[str, str]], dict[str, str]] = dict
) -> FormCheck:
    """Check a form without starting anything or opening data."""
    values = filled(given)
    words = {**values, NAME: given.get(NAME, "").strip()}
    command = " ".join(["weft train", *(shlex.quote(f"{name}={text}") for name, text in words.items())])

    def checked(one: Mapping[str, str]) -> dict[str, Any]:
        return checked_folds({**confined(folds_settings(one)), "runs": runs_folder}, folds_of(one) or 0)

    try:
        folds, settings = folds_of(given) or 0, checked(given)
        check_device(needs_of(TRAIN, settings), JobQueue(runs_folder).gpus)
        network = network_facts(settings)
    except WeftError as error:
        return FormCheck(0, error.message, field_of(error.message, words, checked), command=command)
    return FormCheck(folds, "", "", settings, network, command, (), learning_rates([settings]), folds=folds)
