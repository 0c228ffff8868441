"""Pieces of a page that the server renders. A live fragment follows the feed: it is rendered once for all pages that show it, and what
changed is sent to them; the browser changes the text in place, so that focus, selection and pointer stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nicegui import ui
from nicegui.element import Element

from ..library.feed import Feed, Snapshot
from .rendering import render


class Fragment(Element, component="../assets/fragment.js"):
    """HTML of a template. Clicks on elements with `data-emit`, and changes of such fields, call `on[data-emit]` with their value."""

    def __init__(self, html: str, tag: str = "div", on: Mapping[str, Callable[[Any], Any]] | None = None) -> None:
        super().__init__()
        self._props |= {"html": html, "tag": tag}
        self._html = html
        if on:
            handlers = dict(on)
            self.on("emit", lambda event: handlers[event.args["name"]](event.args["value"]))

    @property
    def html(self) -> str:
        return self._html

    def show(self, html: str) -> None:
        """Replace the content; unchanged parts stay as they are."""
        if html != self._html:
            self._html = html
            self._props["html"] = html
            self.run_method("morph", html)


def fragment(template: str, tag: str = "div", classes: str = "", **values: Any) -> Fragment:
    """A fragment that does not change by itself."""
    return Fragment(render(template, **values), tag).classes(classes)


class LiveFragments:
    """Live fragments of all pages by name."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._shown: dict[str, tuple[Callable[[Snapshot], str], list[Fragment]]] = {}
        feed.subscribe(self._update)

    def add(self, name: str, renderer: Callable[[Snapshot], str], tag: str = "div", classes: str = "") -> Fragment:
        """A fragment that shows what `renderer` makes of each snapshot. One name means one renderer."""
        made = Fragment(renderer(self.feed.snapshot), tag).classes(classes)
        _, shown = self._shown.setdefault(name, (renderer, []))
        shown.append(made)
        ui.context.client.on_delete(lambda: self._forget(name, made))
        return made

    def _update(self, snapshot: Snapshot) -> None:
        for renderer, shown in list(self._shown.values()):
            html = renderer(snapshot)
            for one in shown:
                one.show(html)

    def _forget(self, name: str, one: Fragment) -> None:
        _, shown = self._shown[name]
        shown.remove(one)
        if not shown:
            del self._shown[name]
