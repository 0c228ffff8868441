"""The verb `recipes`: named settings, those of weft with their measured results and those that were saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from ..errors import UserError
from ..jobs.recipes import RecipeStore
from ..jobs.schema import as_text
from ..jobs.settings import COMMON, SETTINGS
from ..zoo.recipes import RECIPES
from .arguments import read
from .table import as_json


def recipes(words: Sequence[str]) -> None:
    """List recipes, named settings with measured results: weft train recipe=digits.

    weft recipes save NAME data=photos epochs=30    save your own, in the folder of runs; the studio's Train form has them too
    weft recipes delete NAME                        delete one of them
    """
    given = read("recipes", words, SETTINGS, 2, common=COMMON)
    store = RecipeStore(given["runs"])
    if not given.plain:
        _list(store, given["json"])
        return
    action, *rest = given.plain
    if action not in ("save", "delete") or not rest:
        raise UserError("weft recipes", f"save NAME or delete NAME is required, got {' '.join(given.plain)}.")
    if action == "save":
        print(f"saved: {store.save(rest[0], {name: given[name] for name in given.given})}")
    else:
        store.delete(rest[0])
        print(f"deleted: {rest[0]}")


def _list(store: RecipeStore, as_data: bool) -> None:
    own = {name: store.settings(name) for name in store.names()}
    if as_data:
        print(as_json({name: asdict(recipe) for name, recipe in RECIPES.items()} | {name: {"settings": known} for name, known in own.items()}))  # fmt: skip
        return
    for name, recipe in RECIPES.items():
        settings = " ".join(f"{key}={as_text(value)}" for key, value in recipe.settings.items())
        print("\n  ".join([f"{name}: {recipe.about}", *recipe.results(), settings]) + "\n")
    for name, known in own.items():
        print(f"{name}: saved in {store.folder}\n  {' '.join(f'{key}={text}' for key, text in known.items())}\n")
    print("Train with one: weft train recipe=NAME; settings of the command replace those of the recipe.")
