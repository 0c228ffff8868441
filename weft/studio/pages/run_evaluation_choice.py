"""Choosing an evaluation of a run: its split and its checkpoint, and the job that makes one that is not there yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from nicegui import background_tasks, ui

from ...jobs.evaluations import is_evaluation_of
from ...jobs.run_weights import EVALUATIONS
from ...report.evaluation import FILE
from ..access import current_user
from ..library.activity import Activity
from ..library.changes import stamp
from ..library.feed import Snapshot
from ..library.run_evaluations import EvaluationChoice, ShownEvaluation, find_shown
from ..library.runs import RunRow
from ..ui.context import Studio
from ..ui.fragment import fragment
from ..ui.rendering import render


def evaluation_head(studio: Studio, row: RunRow, choice: EvaluationChoice) -> None:
    """Links to the other splits, and a list of the checkpoints."""
    address = f"{studio.config.prefix}/runs/{quote(row.id)}?tab=evaluation"
    fragment("evaluation_head.html", choice=choice, address=address)


def offer_evaluation(
    studio: Studio, row: RunRow, choice: EvaluationChoice, cards: Callable[[ShownEvaluation], Awaitable[None]]
) -> None:
    """A card that offers to evaluate what is chosen, then the progress of the job, and the cards when it is done."""
    may = current_user(ui.context.client.request).may("member")
    name = f"evaluation {row.id} {choice.split} {choice.checkpoint} {may}"
    offer = studio.live.add(name, lambda snapshot: _offer(studio, snapshot, row, choice, may))
    place = ui.element("div")
    watched = (row.folder / EVALUATIONS, row.folder / FILE)
    seen: object = None

    async def look() -> None:
        shown = await asyncio.to_thread(find_shown, row.folder, choice.split, choice.checkpoint)
        if shown is not None and offer.visible and not place.is_deleted:
            offer.set_visibility(False)
            with place:
                await cards(shown)

    def follow(snapshot: Snapshot) -> None:
        nonlocal seen
        now = stamp(*watched)
        if now != seen and offer.visible:
            seen = now
            background_tasks.create(look(), name="evaluation")

    ui.context.client.on_delete(studio.feed.subscribe(follow))


def _offer(studio: Studio, snapshot: Snapshot, row: RunRow, choice: EvaluationChoice, may: bool) -> str:
    active = _activity(snapshot, row, choice)
    return render(
        "evaluation_offer.html", row=row, choice=choice, active=active, may=may, is_running=row.status == "running",
        wanted={"split": choice.split, "checkpoint": choice.checkpoint},
    )  # fmt: skip


def _activity(snapshot: Snapshot, row: RunRow, choice: EvaluationChoice) -> Activity | None:
    """The last job that was to evaluate what is chosen, if it waits, runs or has failed."""
    wanted = row.folder, choice.split, choice.checkpoint
    fits = (one.number for one in reversed(snapshot.queue.jobs) if is_evaluation_of(one.kind, one.settings, *wanted))
    number = next(fits, None)
    return next((one for one in snapshot.activities if one.job is not None and one.job == number), None)
