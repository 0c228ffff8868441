"""The verb `recipes`: named settings with their measured results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from ..jobs.schema import Setting, as_text, flag
from ..zoo.recipes import RECIPES
from .arguments import read
from .table import as_json


def recipes(words: Sequence[str]) -> None:
    """List recipes, named settings with measured results: weft train recipe=digits."""
    given = read("recipes", words, {"json": Setting(flag, False, "print JSON, for programs")}, 0)
    if given["json"]:
        print(as_json({name: asdict(recipe) for name, recipe in RECIPES.items()}))
        return
    for name, recipe in RECIPES.items():
        settings = " ".join(f"{key}={as_text(value)}" for key, value in recipe.settings.items())
        print("\n  ".join([f"{name}: {recipe.about}", *recipe.results(), settings]) + "\n")
    print("Train with one: weft train recipe=NAME; settings of the command replace those of the recipe.")
