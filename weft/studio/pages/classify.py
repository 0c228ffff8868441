"""Classify: networks that were trained or imported, used on one image and on many."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup
from nicegui import background_tasks, ui

from ...jobs.prediction.results import StoredPrediction, best_per_class
from ...records import dataclass
from ..library.batches import PredictionBatch, rows_of
from ..library.datasets import DatasetRow
from ..library.feed import Snapshot
from ..library.usable import UsableNetwork, usable_networks
from ..ui.context import Studio
from ..ui.formats import metric_name, metric_value
from ..ui.fragment import Fragment
from ..ui.frame import frame, studio_page
from ..ui.rendering import render

SCRIPTS = ("path_field.js", "classify.js", "why.js", "text.js")
AT_FIRST = 2  # networks that are asked before any is chosen
LISTED = 300  # networks in the menu
HISTORY = 20
LAST = 20  # images of the last batch


@dataclass(frozen=True)
class NetworkChoice:
    """A network with the checkpoint that is used, as the page shows it."""

    network: UsableNetwork
    checkpoint: str = "best"
    chosen: bool = False
    links: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        return self.network.id

    @property
    def key(self) -> str:
        """How addresses name it: id, or id@last."""
        return self.id if self.checkpoint == "best" else f"{self.id}@{self.checkpoint}"

    @property
    def title(self) -> str:
        return self.network.name + ("" if self.checkpoint == "best" else f" ({self.checkpoint})")

    @property
    def checkpoints(self) -> tuple[str, ...]:
        return self.network.checkpoints

    @property
    def is_run(self) -> bool:
        return self.network.row is not None

    @property
    def about(self) -> str:
        row = self.network.row
        if row is None:
            return f"imported {self.network.path.suffix[1:]} file"
        best = (
            []
            if row.best_metric is None
            else [f"{metric_value(row.best_metric, row.best)} {metric_name(row.best_metric)}"]
        )
        return " · ".join([*best, row.model, row.data])


def add(studio: Studio) -> None:
    """Register the pages."""
    base = studio.config.prefix

    @studio_page("/classify")
    async def classify(runs: str = "", tab: str = "one", path: str = "", batch: int = 0, most: int = 10) -> None:
        known = await asyncio.to_thread(usable_networks, studio.index)
        named = {one.id for one in known if one.is_for_text} & {word.partition("@")[0] for word in runs.split(",")}
        tab = "text" if named and tab == "one" else tab
        able = [one for one in known if one.is_for_text == (tab == "text")]
        chosen = _chosen(able, runs, base)[: 1 if tab == "text" else None]
        for script in SCRIPTS:
            ui.add_head_html(f'<script src="{base}/assets/{script}" defer></script>')
        menu = _menu(able, chosen)
        name = f"classify {tab == 'text'} {runs} {len(able)}"
        header = lambda snapshot: render("classify_header.html", usable=menu, chosen=chosen, base=base, tab=tab)  # noqa: E731
        with frame(studio, "Classify", "classify", (name, header)):
            query = urlencode({"runs": runs}, quote_via=quote) if runs else ""
            Fragment(render("classify_tabs.html", tab=tab, base=base, query=query))
            with ui.element("div").classes("sect"):
                await _tab(studio, tab, chosen, menu, path, batch, most)


async def _tab(
    studio: Studio, tab: str, chosen: list[NetworkChoice], menu: list[NetworkChoice], path: str, batch: int, most: int
) -> None:
    base = studio.config.prefix
    if tab == "many":
        Fragment(render("classify_many.html", networks=menu, base=base))
        await _history(studio)
    elif tab == "best":
        Fragment(await asyncio.to_thread(_best_html, studio, batch, max(1, min(most, 100))))
    elif tab == "text":
        Fragment(render("classify_text.html", network=_with_links(chosen[0]) if chosen else None, base=base))
    elif tab == "code" and chosen:
        Fragment(_code(chosen[0], base))
    else:
        Fragment(await asyncio.to_thread(_one_html, studio, chosen, path))


def _chosen(able: Sequence[UsableNetwork], runs: str, base: str) -> list[NetworkChoice]:
    """The networks that the address names, or the first ones."""
    by_id = {one.id: one for one in able}
    found = []
    for word in runs.split(","):
        name, _, checkpoint = word.partition("@")
        if name in by_id:
            found.append(NetworkChoice(by_id[name], checkpoint or "best", True))
    found = found or [NetworkChoice(one, "best", True) for one in able[:AT_FIRST]]
    return [replace(one, links=_links(found, one, base)) for one in found]


def _links(chosen: Sequence[NetworkChoice], one: NetworkChoice, base: str) -> tuple[tuple[str, str], ...]:
    """The address of the page with each of the other checkpoints of one network."""
    return tuple(
        (word, f"{base}/classify?runs=" + quote(",".join(replace(o, checkpoint=word).key if o is one else o.key for o in chosen)))
        for word in one.checkpoints
    )  # fmt: skip


def _menu(able: Sequence[UsableNetwork], chosen: Sequence[NetworkChoice]) -> list[NetworkChoice]:
    known = {one.id for one in chosen}
    return [*chosen, *(NetworkChoice(one) for one in able[:LISTED] if one.id not in known)]


# --- one image --------------------------------------------------------------------------------------------------------------------


def _one_html(studio: Studio, chosen: list[NetworkChoice], path: str) -> str:
    base = studio.config.prefix
    batch = next((one for one in studio.batches.recent(HISTORY) if one.is_done), None)
    source = "path" if path else "draw" if _takes_grey(chosen) else "file"
    return render(
        "classify_one.html", networks=[_with_links(one) | {"dataset": _dataset_of(studio, one)} for one in chosen], base=base, urls=studio.config.urls, path=path, source=source,
        batch=batch, thumbs="" if batch is None else thumbs(batch, _spread(rows_of(batch), LAST), base),
        code=_code(chosen[0], base) if chosen else "",
    )  # fmt: skip


def _dataset_of(studio: Studio, one: NetworkChoice) -> DatasetRow | None:
    """The dataset of the studio that a network learned from and that corrected images can be added to."""
    row = one.network.row
    found = (known for known in studio.feed.snapshot.datasets if row is not None and known.used_by([row]))
    return next((known for known in found if known.newest is not None and known.newest.labels == "class"), None)


def _spread(rows: Sequence[StoredPrediction], most: int) -> list[StoredPrediction]:
    """Some of the images, from all parts of the batch."""
    return [rows[i * len(rows) // most] for i in range(most)] if len(rows) > most else list(rows)


def _with_links(one: NetworkChoice) -> dict[str, object]:
    names = ("id", "key", "title", "about", "checkpoint", "checkpoints", "is_run")
    return {name: getattr(one, name) for name in names} | {"links": dict(one.links)}


def _code(one: NetworkChoice, base: str) -> Markup:
    return Markup(render("classify_code.html", network=one.id, path=one.network.path, is_run=one.is_run, base=base))


def thumbs(batch: PredictionBatch, rows: Sequence[StoredPrediction], base: str) -> Markup:
    """Images of a batch with what was predicted."""
    return Markup(render("prediction_thumbs.html", rows=rows, number=batch.number, network=batch.network, base=base))


def _takes_grey(chosen: Sequence[NetworkChoice]) -> bool:
    """Whether a drawing of white on black is what the first network knows: small gray images."""
    row = chosen[0].network.row if chosen else None
    return row is not None and str(row.settings.get("data")) in ("digits", "mnist", "fashion-mnist")


# --- many images ------------------------------------------------------------------------------------------------------------------


async def _history(studio: Studio) -> None:
    """The last batches; those that run are followed."""
    base = studio.config.prefix

    def html() -> tuple[str, bool]:
        found = studio.batches.recent(HISTORY)
        return render("batch_history.html", batches=found, base=base), any(not one.is_done for one in found)

    first, going = await asyncio.to_thread(html)
    with ui.element("section").classes("card sect").props('aria-label="Batches"'):
        shown = Fragment(first)
    state: dict[str, Any] = {"going": going, "key": None}

    async def reload() -> None:
        text, state["going"] = await asyncio.to_thread(html)
        shown.show(text)

    def follow(snapshot: Snapshot) -> None:
        """Look at the disk only while something may have changed."""
        key = [(one.job, one.state) for one in snapshot.activities], [one.number for one in snapshot.ended[:5]]
        if state["going"] or key != state["key"]:
            state["key"] = key
            background_tasks.create_lazy(reload(), name=f"batches {id(shown)}")

    ui.context.client.on_delete(studio.feed.subscribe(follow))


# --- the best of each class -----------------------------------------------------------------------------------------------------------


def _best_html(studio: Studio, number: int, most: int) -> str:
    base = studio.config.prefix
    done = [one for one in studio.batches.recent(HISTORY) if one.is_done and one.results.get("classes")]
    batch = next((one for one in done if one.number == number), done[0] if done else None)
    classes = []
    if batch is not None:
        best = best_per_class(rows_of(batch), batch.results["classes"], most)
        classes = [
            (name, thumbs(batch, [_as_class(one, name, share) for one, share in found], base) if found else "")
            for name, found in best.items()
        ]
    return render("classify_best.html", batch=batch, batches=done, classes=classes, most=most, base=base)


def _as_class(one: StoredPrediction, name: str, share: float) -> StoredPrediction:
    """An image with the class it is shown for, whether or not that is its best one."""
    return replace(one, best=((name, share),))
