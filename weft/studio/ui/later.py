"""Parts of a page that take longer: the page is sent first, and they are added when they are ready."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nicegui import background_tasks, ui


def add_later(build: Callable[[], Awaitable[None]]) -> None:
    """Leave a place in the page, and let `build` fill it in the background."""
    place = ui.element("div")

    async def fill() -> None:
        with place:
            await build()

    background_tasks.create(fill(), name="part of a page")
