"""Settings of a training from a recipe and from what somebody gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..zoo.recipes import find_recipe
from .schema import validated
from .settings import SETTINGS


def with_recipe(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings: the defaults, then those of the recipe, then those that are given.

    >>> found = with_recipe("train", {"recipe": "digits", "epochs": 3})
    >>> found["model"], found["epochs"], found["seed"]
    ('lenet5_classic', 3, 0)
    """
    recipe = {} if given.get("recipe") is None else find_recipe(str(given["recipe"])).settings
    return validated(where, {**recipe, **given}, SETTINGS)
