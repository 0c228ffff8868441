"""Settings of a training from a recipe, overridden by those that were given.

RUNS/.recipes/NAME.yaml     recipes that people save, beside those of weft (weft.zoo.recipes)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..hints import nearest
from ..io.files import replace_file
from ..zoo.recipes import RECIPES, find_recipe
from .schema import validated
from .settings import OF_ONE_RUN, SETTINGS, setting_as_text
from .yaml_files import read_settings

FOLDER = ".recipes"  # in the folder of runs
WHERE = "recipes"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")


def with_recipe(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings: the defaults, then those of the recipe, then those that are given.

    >>> found = with_recipe("train", {"recipe": "digits", "epochs": 3})
    >>> found["model"], found["epochs"], found["seed"]
    ('lenet5_classic', 3, 0)
    """
    given = with_saved_recipe(given)
    recipe = {} if given.get("recipe") is None else find_recipe(str(given["recipe"])).settings
    return validated(where, {**recipe, **given}, SETTINGS)


def with_saved_recipe(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, with the settings of a recipe that was saved beside its runs in place of the recipe's name."""
    return RecipeStore(given.get("runs") or SETTINGS["runs"].default).expanded(given)


class RecipeStore:
    """The recipes that are saved beside a folder of runs."""

    def __init__(self, runs: str | Path) -> None:
        self.folder = Path(runs) / FOLDER

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.yaml") if _NAME.fullmatch(path.stem))

    def settings(self, name: str) -> dict[str, str]:
        """The settings of a recipe, as a command writes them."""
        found = read_settings(WHERE, self._path(name), SETTINGS)
        return {key: setting_as_text(key, value) for key, value in found.items() if value is not None}

    def save(self, name: str, given: Mapping[str, Any]) -> Path:
        """Save settings under a name, in place of what had it; the file. What belongs to one run, such as its name, is left out."""
        if not _NAME.fullmatch(name):
            raise UserError(WHERE, f"a name of letters, digits, _ and - is required, got {name[:60]!r}.")
        if name in RECIPES:
            raise UserError(WHERE, f"another name is required: {name} is a recipe of weft.")
        known = self.expanded({key: value for key, value in given.items() if key not in OF_ONE_RUN})
        values = validated(WHERE, known, SETTINGS)
        lines = [
            f"{key}: {json.dumps(setting_as_text(key, values[key]))}\n" for key in known if values[key] is not None
        ]
        if not lines:
            raise UserError(WHERE, f"a recipe requires settings, got none: weft recipes save {name} epochs=30.")
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}.yaml"
        replace_file(path, [line.encode() for line in lines], WHERE)
        return path

    def delete(self, name: str) -> None:
        """Delete a recipe. Runs keep the settings that they got from it."""
        self._path(name).unlink()

    def expanded(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given, with the settings of a saved recipe in place of its name: the run does not need the recipe any more."""
        if given.get("recipe") is None or given["recipe"] not in self.names():
            return dict(given)
        rest = {name: value for name, value in given.items() if name != "recipe"}
        return {**self.settings(str(given["recipe"])), **rest}

    def _path(self, name: str) -> Path:
        if name not in self.names():
            hint = nearest(name, self.names()) if self.names() else "None is saved yet."
            raise UserError(WHERE, f"there is no recipe {name[:60]!r} in {self.folder}. {hint}")
        return self.folder / f"{name}.yaml"
