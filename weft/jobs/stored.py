"""Stored runs: their folders, settings and data, which may have moved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data.catalogue import known_names
from ..errors import UserError
from .definitions import kept_definition
from .find import find_run
from .schema import validated
from .settings import SETTINGS
from .yaml_files import read_settings


def run_of(verb: str, plain: Sequence[str]) -> Path:
    """The folder of the run named by the first word of a command."""
    if not plain:
        raise UserError(f"weft {verb}", "a run is required: weft runs list shows which there are.")
    return find_run(plain[0])


def settings_of(verb: str, folder: Path) -> dict[str, Any]:
    """The settings that a run was started with."""
    if not (folder / "args.yaml").exists():
        raise UserError(f"weft {verb}", f"{folder} is no folder of a run: it has no args.yaml.")
    try:
        settings = validated(f"weft {verb}", read_settings(f"weft {verb}", folder / "args.yaml", SETTINGS), SETTINGS)
    except UserError as error:
        raise UserError(
            f"weft {verb}", f"{folder} was not made by weft train, or has been changed: {error.message}"
        ) from None
    kept = kept_definition(folder)
    model = settings["model"] if kept is None else str(kept)
    return {**settings, "data": _found_again(settings["data"], folder), "model": model}


def _found_again(path: str | None, folder: Path) -> str | None:
    """A path relative to the folder in which the run was started."""
    if path is None or path in known_names() or Path(path).expanduser().exists():
        return path
    try:
        there = Path(json.loads((folder / "env.json").read_text(encoding="utf-8"))["folder"]) / path
    except (OSError, ValueError, KeyError, TypeError):
        return path
    return str(there) if there.exists() else path
