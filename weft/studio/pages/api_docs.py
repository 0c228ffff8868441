"""The API, described from its OpenAPI document: a page of our own, because it must work without the internet."""

from __future__ import annotations

from fastapi import FastAPI
from nicegui import ui

from ..library.api_reference import reference
from ..ui.context import Studio
from ..ui.fragment import Fragment
from ..ui.frame import frame, studio_page
from ..ui.rendering import render


def add(studio: Studio, app: FastAPI) -> None:
    """Register the page."""
    base = studio.config.prefix

    @studio_page("/docs")
    def docs() -> None:
        ui.add_head_html(f'<link rel="stylesheet" href="{base}/assets/api_docs.css">')
        ui.add_head_html(f'<script src="{base}/assets/api_docs.js" defer></script>')
        with frame(studio, "API", "api_docs"):
            Fragment(render("api_docs.html", tags=reference(app.openapi()), base=base, document=app.openapi_url))
