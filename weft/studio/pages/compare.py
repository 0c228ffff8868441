"""Compare: charts, results, settings, what mattered, and where networks disagree."""

from __future__ import annotations

import asyncio

from nicegui import ui

from ..library.run_comparison import disagreements, sweep_view
from ..library.runs import RunRow
from ..library.training_fields import setting_title
from ..ui.context import Studio
from ..ui.fragment import Fragment, fragment
from ..ui.frame import frame, studio_page
from ..ui.later import add_later
from ..ui.rendering import render
from .compare_charts import CompareCharts, ComparedRun
from .compare_tables import ResultsTable, SettingsTable
from .run import run_assets

ROWS = 24  # examples that networks disagree on


def add(studio: Studio) -> None:
    """Register the page. Runs keep their colours when others are removed: `colours` names them, in the order of the runs."""

    @studio_page("/compare")
    async def compare(runs: str = "", colours: str = "") -> None:
        base = studio.config.prefix
        names = list(dict.fromkeys(filter(None, runs.split(","))))
        given = [int(c) for c in colours.split(",") if c.isdigit()]
        chosen = assigned(names, given)
        rows = [ComparedRun(row, chosen[name]) for name in names if (row := studio.index.get(name)) is not None]
        header = (
            f"compare {runs}",
            lambda snapshot: render("compare_header.html", base=base, runs=[one.row for one in rows]),
        )
        with frame(studio, "Compare", "compare", live_header=header):
            run_assets(base)
            _chips(studio, rows)
            if not rows:
                return
            if len(rows) > 1:
                ui.html(render("ensemble_dialog.html"), sanitize=False)
            CompareCharts(studio, rows)
            ResultsTable(studio, rows)
            if len(rows) > 1:
                SettingsTable(rows)
                add_later(lambda: _sweep([one.row for one in rows]))
                add_later(lambda: _disagreements(studio, rows))


def assigned(names: list[str], colours: list[int]) -> dict[str, int]:
    """A colour from 1 for each run: the one that it had, or the first that is free.

    >>> assigned(["a", "b", "c"], [1, 3])
    {'a': 1, 'b': 3, 'c': 2}
    """
    found = dict(zip(names, colours, strict=False))
    for name in names[len(colours) :]:
        found[name] = next(
            c for c in range(1, len(names) + max(found.values(), default=0) + 2) if c not in found.values()
        )
    return found


def _chips(studio: Studio, rows: list[ComparedRun]) -> None:
    base = studio.config.prefix
    shown = {one.row.id for one in rows}
    others = [row.id for row in studio.index.rows() if row.id not in shown][:500]
    links = [(one.row, one.colour, _address(base, [other for other in rows if other is not one])) for one in rows]

    def add_run(run: str) -> None:
        ids, colours = ",".join([*(one.row.id for one in rows), run]), ",".join(str(one.colour) for one in rows)
        ui.navigate.to(f"{base}/compare?runs={ids}&colours={colours}")

    Fragment(render("compare_runs.html", links=links, others=others, base=base), on={"add": add_run})


def _address(base: str, rows: list[ComparedRun]) -> str:
    return f"{base}/compare?runs={','.join(one.row.id for one in rows)}&colours={','.join(str(one.colour) for one in rows)}"


async def _sweep(rows: list[RunRow]) -> None:
    view = await asyncio.to_thread(sweep_view, rows)
    if view is None:
        return
    with ui.element("div").classes("cols pcx sect"):
        with ui.element("section").classes("card").props('aria-label="Parallel coordinates"'):
            fragment("parallel.html", view=view, titles=setting_title)
        with ui.element("section").classes("card").props('aria-label="What mattered"'):
            fragment("importance.html", view=view, titles=setting_title)


async def _disagreements(studio: Studio, rows: list[ComparedRun]) -> None:
    found = await asyncio.to_thread(disagreements, [one.row for one in rows])
    if found is None:
        return
    known = {one.row.id: one.colour for one in rows}
    colours = [known[row.id] for row in found.rows]

    def html(limit: int) -> str:
        return render(
            "disagreements.html", found=found, colours=colours, shown=found.shown(limit), base=studio.config.prefix
        )  # fmt: skip

    with ui.element("section").classes("card sect").props('aria-label="Agreement"'):
        fragment("agreement.html", found=found, colours=colours)
    first = await asyncio.to_thread(html, 6)

    async def show_all(value: str) -> None:
        card.show(await asyncio.to_thread(html, ROWS * 10))

    card = (
        Fragment(first, "section", on={"all": show_all}).classes("card sect").props('aria-label="Where they disagree"')
    )
