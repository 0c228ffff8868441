"""The evaluation of a run: confusion matrix, classes, mistakes and samples."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

import numpy as np
from nicegui import ui

from ...report.run_record import ImageSamples, RunRecord, read_run
from ..library.runs import RunRow
from ..ui.context import Studio
from ..ui.formats import metric_value
from ..ui.fragment import fragment

LEVELS = 8  # steps of the scale of colours
SMALL = 64  # pixels; smaller images are shown as they are, without interpolation


@dataclass(frozen=True)
class ClassScores:
    """Precision, recall and F1 of one class; None where nothing was predicted or there is no example."""

    name: str
    count: int
    precision: float | None
    recall: float | None

    @property
    def f1(self) -> float | None:
        if self.precision is None or self.recall is None or self.precision + self.recall == 0:
            return None
        return 2 * self.precision * self.recall / (self.precision + self.recall)


def class_scores(matrix: np.ndarray, classes: list[str]) -> list[ClassScores]:
    """The scores of each class from counts, rows true and columns predicted.

    >>> [round(s.f1, 2) for s in class_scores(np.array([[8, 2], [1, 9]]), ["a", "b"])]
    [0.84, 0.86]
    """
    true, predicted, right = matrix.sum(1), matrix.sum(0), np.diag(matrix)
    return [
        ClassScores(
            name, int(true[i]), float(right[i] / predicted[i]) if predicted[i] else None, float(right[i] / true[i]) if true[i] else None
        )
        for i, name in enumerate(classes)
    ]  # fmt: skip


async def evaluation(studio: Studio, row: RunRow) -> None:
    """Add the cards to the page."""
    record = await asyncio.to_thread(read_run, row.folder)
    if record.confusion is None and record.samples is None:
        with ui.element("section").classes("card sect"):
            fragment("nothing_yet.html", text="The confusion matrix and the mistakes appear when the run has ended.")
        return
    with ui.element("div").classes("cols c2 sect"):
        if record.confusion is not None:
            with ui.element("section").classes("card").props('aria-label="Confusion matrix"'):
                ui.html(
                    f'<h2>Confusion matrix</h2><span class="tiny mute">{int(record.confusion.sum()):,} images</span>',
                    sanitize=False,
                ).classes("chead")
                fragment("confusion.html", classes="cbody", names=record.classes, lines=_lines(record))
            with ui.element("section").classes("card").props('aria-label="Classes"'):
                ui.html("<h2>Classes</h2>", sanitize=False).classes("chead")
                fragment("class_table.html", scores=class_scores(record.confusion, record.classes))
    base = f"{studio.config.prefix}/api/v1/runs/{row.id}/images"
    for title, kind, samples in (
        ("Most confident mistakes", "mistakes", record.mistakes),
        ("Sample predictions", "samples", record.samples),
    ):
        if samples is not None and len(samples.images):
            with ui.element("section").classes("card sect").props(f'aria-label="{title}"'):
                ui.html(f"<h2>{title}</h2>", sanitize=False).classes("chead")
                fragment("thumbs.html", classes="cbody", images=_images(samples, f"{base}/{kind}"))


@dataclass(frozen=True)
class MatrixCell:
    """How often one class was taken for another; `level` is the step of the scale of colours."""

    name: str
    count: int
    level: int


@dataclass(frozen=True)
class MatrixRow:
    """A true class and what it was taken for."""

    name: str
    cells: list[MatrixCell]
    recall: str


def _lines(record: RunRecord) -> list[MatrixRow]:
    assert record.confusion is not None
    scores = class_scores(record.confusion, record.classes)
    return [
        MatrixRow(
            name,
            [
                MatrixCell(other, int(n), _level(n / max(1, counts.sum())))
                for other, n in zip(record.classes, counts, strict=True)
            ],
            metric_value("recall", score.recall),
        )
        for name, counts, score in zip(record.classes, record.confusion, scores, strict=True)
    ]


def _level(share: float) -> int:
    """The step of the scale of colours for a share of a row."""
    return 0 if share <= 0 else min(LEVELS - 1, 1 + math.floor(share * (LEVELS - 1)))


@dataclass(frozen=True)
class Thumb:
    """A picture with its true and its predicted class."""

    address: str
    true: str
    predicted: str
    probability: float
    small: bool

    @property
    def right(self) -> bool:
        return self.true == self.predicted


def _images(samples: ImageSamples, base: str) -> list[Thumb]:
    small = max(samples.images.shape[1:3]) <= SMALL
    return [
        Thumb(f"{base}/{i}.png", samples.true[i], samples.predicted[i], samples.probability[i], small)
        for i in range(len(samples.images))
    ]
