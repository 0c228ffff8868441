"""Search: pages of runs, networks and datasets by name."""

from __future__ import annotations

from fastapi import APIRouter, Query
from pydantic import BaseModel

from ...zoo.catalogue import FACTS
from ..ui.context import Studio

MOST = 12


class SearchResult(BaseModel):
    """Something with a page: its name, its kind and the page."""

    title: str
    kind: str
    path: str


def router(studio: Studio) -> APIRouter:
    """The route /search."""
    routes = APIRouter(tags=["search"])

    @routes.get("/search")
    def search(words: str = Query(max_length=200)) -> list[SearchResult]:
        """Runs, datasets and networks whose name holds all of the words, names that begin with them first."""
        wanted = words.lower().split()
        found = [one for one in _all(studio) if all(word in one.title.lower() for word in wanted)]
        return sorted(found, key=lambda one: not one.title.lower().startswith(words.lower()))[:MOST]

    return routes


def _all(studio: Studio) -> list[SearchResult]:
    runs = [SearchResult(title=row.name, kind="Run", path=f"/runs/{row.id}") for row in studio.index.rows()]
    datasets = [SearchResult(title=name, kind="Dataset", path=f"/datasets/{name}") for name in _datasets(studio)]
    networks = [SearchResult(title=name, kind="Network", path=f"/networks/{name}") for name in sorted(FACTS)]
    return [*runs, *datasets, *networks]


def _datasets(studio: Studio) -> list[str]:
    folder = studio.config.dataset_folder
    if not folder.is_dir():
        return []
    return sorted(one.name for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
