"""Checks of settings before data is opened: an invalid command changes nothing, and creates no dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..data.open import data_path, is_image_source
from ..errors import UserError
from ..train.folder import TAKEN, check_run_name
from ..train.making import TrainingPlan
from ..zoo.recipes import find_recipe
from .definitions import definition_of
from .job import TASKS
from .networks import WRITERS, check_gpt, check_size, check_views, full_name, loss_of
from .optimizers import check_mix, optimizer_settings
from .parallel_checks import check_parallel
from .rate_schedules import check_schedule
from .weights import find_weights


def check_settings(verb: str, settings: Mapping[str, Any]) -> None:
    """Reject invalid settings and combinations of settings."""
    where = f"weft {verb}"
    if settings["recipe"] is not None:
        find_recipe(settings["recipe"])
    if settings["model"] is not None:
        _check_model(where, settings)
    rate = None if settings["rate"] == "auto" else settings["rate"]
    check_schedule(settings)
    check_mix(settings)
    TrainingPlan(
        settings["optimizer"], rate, loss_of(settings["model"] or "", settings["loss"]), (), None, settings["precision"],
        settings=optimizer_settings(settings), label_smoothing=settings["label_smoothing"],
        bias_rate=1.0 if rate is None else settings["bias_rate"], memory=settings["memory"],
    ).check()  # fmt: skip
    _check_resident(where, settings)
    check_parallel(settings)
    if settings["weights"] is not None:
        find_weights(settings["weights"], settings["runs"])
    for name in ("freeze", "freeze_layers"):
        if settings[name] and settings["weights"] is None:
            raise UserError(
                where, f"{name}= requires pretrained weights, got none. Give weights=RUN or weights=FILE too."
            )
    if settings["body_rate"] < 0:
        raise UserError(where, f"body_rate must be 0 or more, got {settings['body_rate']}.")
    if settings["name"] is not None:
        check_run_name(where, settings["name"])
    if verb == "train" and settings["name"] is not None and not settings["exist_ok"]:
        _check_free(where, Path(settings["runs"]), settings["name"])
    _check_place(where, Path(settings["runs"]))


def _check_resident(where: str, settings: Mapping[str, Any]) -> None:
    if settings["alternate_flips"] and not settings["resident"]:
        raise UserError(where, "alternate_flips=true requires resident=true.")
    if settings["resident"] and (settings["parallel"] is not None or settings["micro_batches"] is not None):
        raise UserError(
            where, "resident=true is for one process, got parallel= or micro_batches=. Leave one of them out."
        )
    if settings["resident"] and settings["memory"]:
        raise UserError(
            where, "memory= limits a step, and resident=true makes an epoch one program. Leave one of them out."
        )
    if settings["bias_rate"] != 1 and settings["weights"] is not None:
        raise UserError(
            where,
            "bias_rate= and weights= cannot be combined: body_rate= divides the parameters of pretrained networks.",
        )


def _check_model(where: str, settings: Mapping[str, Any]) -> None:
    if definition_of(settings) is not None:
        check_gpt(settings["model"], settings)
        return
    name = full_name(settings["model"])
    check_gpt(name, settings)
    if settings["size"] is not None:
        check_size(name, settings["size"])
    if settings["views"] is not None:
        check_views(name)
    path = None if settings["data"] is None else data_path(settings["data"])
    if path is not None and is_image_source(path) and name in WRITERS:
        raise UserError(where, f"{name} is a network for text, and {path} holds image files.")


def _check_free(where: str, runs: Path, name: str) -> None:
    """Names are unique over all tasks, so that a name is enough to find a run."""
    taken = [runs / task / name for task in TASKS if (runs / task / name).exists()]
    if taken:
        raise UserError(where, f"a name that is not taken is required, got {name!r}: {taken[0]} exists. {TAKEN}")


def _check_place(where: str, runs: Path) -> None:
    """The folder of runs, or its nearest existing parent, must be writable."""
    there = runs.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise UserError(where, f"runs={runs} cannot be a folder: {there} is a file.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(where, f"runs={runs} cannot be used: {there} cannot be written to.")
