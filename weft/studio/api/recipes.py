"""Recipes: named settings of a training, those of weft and those that people save."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException

from ...jobs.recipes import RecipeStore
from ...zoo.recipes import RECIPES
from ..library.training_form import filled
from ..ui.context import Studio
from .submission import confined, setting_texts


def router(studio: Studio) -> APIRouter:
    """The routes below /recipes."""
    routes = APIRouter(prefix="/recipes", tags=["recipes"])
    store = RecipeStore(studio.config.runs)

    @routes.get("")
    def recipes() -> list[dict[str, Any]]:
        """All recipes with their settings; `results` are what those of weft reached."""
        known = [(name, one.about, one.results(), setting_texts(one.settings)) for name, one in RECIPES.items()]
        known += [(name, "", [], store.settings(name)) for name in store.names()]
        return [{"name": n, "about": about, "results": r, "settings": texts} for n, about, r, texts in known]

    @routes.put("/{name}")
    def save(name: str, settings: Annotated[dict[str, Any], Body(embed=True)]) -> dict[str, Any]:
        """Save settings under a name, in place of what had it. Name, tags, group and notes of a run are left out."""
        store.save(name, confined(studio, filled(setting_texts(settings))))
        return {"name": name, "message": f"The recipe {name} is saved.", "open": f"/train?recipe={name}"}

    @routes.delete("/{name}")
    def delete(name: str) -> dict[str, Any]:
        """Delete a recipe that was saved. Runs keep their settings."""
        if name not in store.names():
            raise HTTPException(404, f"there is no saved recipe {name}")
        store.delete(name)
        return {"message": f"The recipe {name} is deleted."}

    return routes
