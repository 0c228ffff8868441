"""The evaluation of a run on a split: scores, classes, calibration, curves, confusions, mistakes."""

from __future__ import annotations

import asyncio
import math
from typing import Any
from urllib.parse import quote

from fastapi import HTTPException
from nicegui import ui

from ...errors import UserError
from ...report.evaluation import read_evaluation
from ...report.run_record import LabelScores, read_run
from ..library.run_evaluations import ShownEvaluation, evaluation_choice
from ..library.run_images import examples, mistakes, thumbnails_of
from ..library.runs import RUNNING, RunRow
from ..ui.chart_card import ChartCard
from ..ui.charts import ChartSpec, Series
from ..ui.context import Studio
from ..ui.formats import metric_value, short, three_figures
from ..ui.fragment import Fragment, fragment
from ..ui.later import add_later
from ..ui.rendering import render
from .run_confusion import confusion_cards
from .run_evaluation_choice import evaluation_head, offer_evaluation
from .run_regression import regression_cards
from .run_tiles import MetricTile

COLUMNS = {
    "name": "Class", "examples": "Examples", "precision": "Precision", "recall": "Recall", "f1": "F1", "average_precision": "Average precision",
    "auc": "ROC AUC", "taken_count": "Most confused with",
}  # fmt: skip
SHOWN_CURVES = 4  # classes with a colour of their own
MISTAKES = 12


async def evaluation(studio: Studio, row: RunRow) -> None:
    """Add the tab to the page: what is chosen in its head, or what the run wrote at its end."""
    given = ui.context.client.request.query_params
    try:
        choice = await asyncio.to_thread(evaluation_choice, row.folder, given.get("split"), given.get("checkpoint"))
    except UserError as error:
        raise HTTPException(404, error.message) from None
    if choice is None:
        await _without_choice(studio, row)
        return
    evaluation_head(studio, row, choice)
    if choice.shown is not None:
        await _cards(studio, row, choice.shown)
        return
    offer_evaluation(studio, row, choice, lambda shown: _cards(studio, row, shown))
    if not given.get("split") and not given.get("checkpoint"):  # of a run from before evaluations were kept
        record = await asyncio.to_thread(read_run, row.folder)
        if record.label_scores:
            _labels(record.label_scores)
        else:
            await confusion_cards(studio, row)


async def _cards(studio: Studio, row: RunRow, shown: ShownEvaluation) -> None:
    """The cards of one evaluation."""
    found = await asyncio.to_thread(read_evaluation, shown.folder)
    assert found is not None
    if found["task"] == "regress":
        regression_cards(found)
        return
    if found["task"] == "labels":
        _labels([LabelScores(**one) for one in found["classes"]])
        return
    with ui.element("section").classes("card sect").props('aria-label="Scores"'):
        fragment("metric_strip.html", metrics=_strip(found))
    ClassTable(found)
    with ui.element("div").classes("cols c3 sect"):
        _calibration(found)
        CurvesCard(row, found)
        _confusions(found)
    add_later(lambda: confusion_cards(studio, row, shown))
    add_later(lambda: _mistakes(studio, row, shown))


async def _without_choice(studio: Studio, row: RunRow) -> None:
    """A text, or a run whose weights or settings are not there: what it wrote at its end, if it did."""
    record = await asyncio.to_thread(read_run, row.folder)
    if await asyncio.to_thread(read_evaluation, row.folder) is not None:
        await _cards(studio, row, ShownEvaluation(row.folder))
    elif record.text:
        _text(row, record.text)
    elif record.confusion is not None:
        await confusion_cards(studio, row)
    elif record.label_scores:
        _labels(record.label_scores)
    else:
        has_ended = row.status != RUNNING and row.epochs > 0
        text = "This run wrote no scores at its end." if has_ended else "Scores, calibration and mistakes appear when the run has ended."  # fmt: skip
        with ui.element("section").classes("card sect"):
            fragment("nothing_yet.html", text=text)


def _labels(scores: list[LabelScores]) -> None:
    """A network that may predict several classes for an example: how well it recognizes each."""
    rows = sorted(scores, key=lambda one: one.f1)
    means = [sum(getattr(one, name) for one in rows) / len(rows) for name in ("precision", "recall", "f1")]
    with ui.element("section").classes("card sect").props('aria-label="Scores by class"'):
        fragment("label_table.html", rows=rows, means=means)


def _text(row: RunRow, text: str) -> None:
    """A network for text: perplexity, and a sample of what it writes."""
    tiles = text_tiles(row)
    with ui.element("section").classes("card sect").props('aria-label="Scores"'):
        fragment("metric_strip.html", metrics=tiles)
    with ui.element("section").classes("card sect").props('aria-label="Sample"'):
        fragment("text_sample.html", text=text)


def text_tiles(row: RunRow) -> list[MetricTile]:
    """How well a network knows what comes next: perplexity, bits, and how often its first guess is right."""
    splits = [(split, row.summary.get(split)) for split in ("test", "validation")]
    known = next(((split, one) for split, one in splits if isinstance(one, dict) and isinstance(one.get("loss"), float)), None)  # fmt: skip
    if known is None:
        return []
    split, numbers = known
    loss, guesses = numbers["loss"], numbers.get("token_accuracy", numbers.get("accuracy"))
    found = [
        MetricTile("Perplexity", three_figures(math.exp(loss)), "", f"as unsure as among so many, {split}"),
        MetricTile("Bits a character", three_figures(loss / math.log(2)), "", f"loss {loss:.4g}"),
    ]
    if isinstance(guesses, float):
        found.append(MetricTile("Next character right", f"{100 * guesses:.1f}", "%", "at the first guess"))
    if isinstance(row.summary.get("parameters"), int):
        found.append(MetricTile("Parameters", short(row.summary["parameters"]), "", row.model))
    return found


def _strip(found: dict[str, Any]) -> list[MetricTile]:
    half = 50 * (found["accuracy_high"] - found["accuracy_low"])
    tiles = [
        _share("Accuracy", found["accuracy"], f"± {half:.1f} points, {found['examples']:,} {found['split']} examples")
    ]
    k = next((k for k in ("3", "5", "2") if k in found["top"]), None)
    if k is not None:
        missed = round((1 - found["top"][k]) * found["examples"])
        tiles.append(
            _share(
                f"Top {k} accuracy", found["top"][k], f"{missed:,} {'example' if missed == 1 else 'examples'} missed"
            )
        )
    weakest = min((one for one in found["classes"] if one["f1"] is not None), key=lambda one: one["f1"], default=None)
    weak = f"weakest {weakest['name']}, {metric_value('f1', weakest['f1'])}" if weakest else ""
    known = found["calibration"]
    sure = "too sure" if known["temperature"] > 1 else "not sure enough"
    return [
        *tiles,
        _share("Mean F1", found["mean_f1"], weak),
        _share("Mean average precision", found["mean_average_precision"], "over the classes"),
        _share("Calibration error", known["error"], f"{sure}, {100 * known['corrected_error']:.1f} % after scaling"),
    ]


def _share(title: str, value: float | None, context: str) -> MetricTile:
    number, _, unit = metric_value("accuracy", value).partition(" ")
    return MetricTile(title, number, unit, context)


class ClassTable:
    """The scores of each class, sorted by any column; the weakest first at the beginning."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found, self.sort, self.descending = found, "f1", False
        self.card = Fragment(self._html(), "section", on={"sort": self._sort_by}).classes("card sect")
        self.card.props('aria-label="By class"')

    def _sort_by(self, column: str) -> None:
        self.descending = not self.descending if column == self.sort else column not in ("name", "f1")
        self.sort = column
        self.card.show(self._html())

    def _html(self) -> str:
        known = [one for one in self.found["classes"] if one[self.sort] is not None]
        rest = [one for one in self.found["classes"] if one[self.sort] is None]
        rows = sorted(known, key=lambda one: one[self.sort], reverse=self.descending) + rest
        shares = [one[name] for one in known for name in ("precision", "recall", "f1") if one[name] is not None]
        floor = 0.7 if shares and min(shares) >= 0.7 else 0.0
        return render(
            "class_table.html", rows=rows, columns=COLUMNS, sort=self.sort, descending=self.descending, floor=floor, found=self.found
        )  # fmt: skip


def _calibration(found: dict[str, Any]) -> None:
    known = found["calibration"]
    bars = [
        {**one, "x": 40 + 240 * one["low"], "width": 240 * (one["high"] - one["low"]) - 2, "gap": one["confidence"] - one["accuracy"]}
        for one in known["bins"]
    ]  # fmt: skip
    with ui.element("section").classes("card").props('aria-label="Calibration"'):
        fragment("calibration.html", bars=bars, known=known)


class CurvesCard:
    """Precision over recall, or the ROC curve: the weakest classes in colour, others grey, all decisions together dashed."""

    def __init__(self, row: RunRow, found: dict[str, Any]) -> None:
        self.curves, self.kind = found["curves"], "precision_recall"
        self.card = ChartCard(self._spec(), f"{row.name}-curves", 236, head=self._chooser)
        self._show()

    def _chooser(self) -> None:
        self.chooser = Fragment(self._choices(), on={"kind": self._choose}).classes("curve-kind")

    def _choices(self) -> str:
        kinds = [("precision_recall", "Precision over recall"), ("roc", "ROC")]
        return render("segments.html", name="kind", choices=kinds, chosen=self.kind, label="Curve")

    def _choose(self, kind: str) -> None:
        self.kind = kind if kind == "roc" else "precision_recall"
        self.chooser.show(self._choices())
        self._show()

    def _show(self) -> None:
        area = "auc" if self.kind == "roc" else "average_precision"
        coloured = self.curves["classes"][:SHOWN_CURVES]
        shown = [(self._line(i, one), f"{one[area]:.3f}") for i, one in enumerate(coloured)]
        self.card.chart.show(self._spec())
        self.card.legend.show(render("legend.html", lines=shown))

    def _line(self, number: int, one: dict[str, Any]) -> Series:
        is_coloured = number < SHOWN_CURVES
        return Series(
            one["name"], one[self.kind], f"s{number + 1}" if is_coloured else "line-strong", thin=not is_coloured
        )

    def _spec(self) -> ChartSpec:
        lines = [self._line(i, one) for i, one in enumerate(self.curves["classes"])]
        every = self.curves["micro"]
        together = [] if every is None else [Series("all decisions", every[self.kind], "ink-3", dash=True)]
        series = [*lines[SHOWN_CURVES:], *together, *lines[:SHOWN_CURVES]]  # coloured ones on top
        label = "False positives" if self.kind == "roc" else "Recall"
        x = {"label": label, "min": 0, "max": 1, "format": "percent"}
        return ChartSpec("Curves", series, "percent", x, {"scale": self.kind != "roc", "max": 1})


def _confusions(found: dict[str, Any]) -> None:
    pairs = found["confusions"][:8]
    wrong = round((1 - found["accuracy"]) * found["examples"])
    with ui.element("section").classes("card").props('aria-label="Most frequent confusions"'):
        fragment("confusions.html", pairs=pairs, most=max((one["count"] for one in pairs), default=1), wrong=wrong)


async def _mistakes(studio: Studio, row: RunRow, shown: ShownEvaluation) -> None:
    wrong = await asyncio.to_thread(mistakes, shown.folder)
    if wrong:
        MistakesCard(studio, row, shown, wrong)


class MistakesCard:
    """The most confident mistakes, twelve or all."""

    def __init__(self, studio: Studio, row: RunRow, shown: ShownEvaluation, wrong: list[int]) -> None:
        self.studio, self.row, self.shown, self.wrong, self.limit = studio, row, shown, wrong, MISTAKES
        self.card = Fragment(self._html(), "section", on={"all": self._show_all}).classes("card sect")
        self.card.props('aria-label="Worst mistakes"')

    async def _show_all(self, value: str) -> None:
        self.limit = 200
        self.card.show(await asyncio.to_thread(self._html))

    def _html(self) -> str:
        pictures = thumbnails_of(self.shown.folder)
        return render(
            "mistakes.html", examples=examples(self.shown.folder, self.wrong[: self.limit]), count=len(self.wrong),
            base=f"{self.studio.config.prefix}/api/v1/runs/{quote(self.row.id)}/examples", query=self.shown.query, small=pictures is not None and pictures.are_small,
        )  # fmt: skip
