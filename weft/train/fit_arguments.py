"""Checks of the arguments of `fit`, before anything is built or written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError

COUNTS = ("epochs", "keep", "freeze", "freeze_layers", "fast_dev_run", "overfit", "patience")
NUMBERS = ("max_seconds", "save_seconds", "body_rate")


def check_arguments(given: Mapping[str, Any]) -> None:
    """Check counts and numbers; None and False stand for 0 where an argument may be left out."""
    for name in COUNTS:
        count = given[name] or 0 if name == "patience" else given[name]
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise UserError("fit", f"{name} is a whole number from 0, got {count!r}.")
    for name in NUMBERS:
        value = given[name] or 0.0 if name == "max_seconds" else given[name]
        if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
            raise UserError("fit", f"{name} is a number from 0, got {value!r}.")


def check_resident(resident: bool, alternate_flips: bool, memory: int | str | None) -> None:
    """Check what goes with epochs that are one program on the device."""
    if alternate_flips and not resident:
        raise UserError(
            "fit",
            "alternate_flips=True requires resident=True: batches from a loader do not say which examples they hold.",
        )
    if memory and resident:
        raise UserError(
            "fit", "memory= limits a step, and resident=True makes an epoch one program. Leave one of them out."
        )


def check_folder(folder: Any, resume: bool) -> None:
    """Reject a new run in a folder that has one, and a resumed run without a folder."""
    if resume and (folder is None or callable(folder)):
        raise UserError("fit", "resume=True needs the folder of the run.")
    if folder is None or callable(folder) or resume:
        return
    if (Path(folder) / "state" / "last.safetensors").exists():
        raise UserError("fit", f"{folder} holds a run already. Continue it with resume=True, or use another folder.")


def batch_size(batch: Any) -> int:
    """A batch size that was given as a number, checked."""
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise UserError("fit", f'batch is a whole number from 1, or "auto", got {batch!r}.')
    return batch
