"""The confusion matrix of a run, with the images behind the cell that is chosen."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from urllib.parse import quote

import numpy as np
from nicegui import ui

from ...records import dataclass
from ...report.evaluation import class_table, frequent_confusions
from ...report.png import data_url, png
from ...report.run_record import read_run
from ..library.run_evaluations import ShownEvaluation
from ..library.run_images import cell_examples, examples, predictions_of, thumbnails_of
from ..library.runs import RunRow
from ..ui.context import Studio
from ..ui.formats import metric_value
from ..ui.fragment import Fragment
from ..ui.rendering import render

LEVELS = 8  # steps of the scale of colours
MOST_CELLS = 20  # classes; more are drawn as pixels, and the worst pairs listed
IMAGES = 9  # of a cell, before all are shown
PIXEL = (64, 96, 210)


@dataclass(frozen=True)
class Matrix:
    """Counts with the names of the classes; rows true, columns predicted."""

    counts: np.ndarray
    names: list[str]


def read_matrix(folder: Path) -> Matrix | None:
    """From the stored predictions, or from confusion.csv of runs without them."""
    found = predictions_of(folder)
    if found is not None:
        return Matrix(found.confusion(), found.classes)
    record = read_run(folder) if (folder / "confusion.csv").exists() else None
    if record is None or record.confusion is None:
        return None
    return Matrix(record.confusion.astype(np.int64), record.classes)


async def confusion_cards(studio: Studio, row: RunRow, shown: ShownEvaluation | None = None) -> None:
    """The matrix and the images of a cell, side by side; nothing before the run is evaluated. Without `shown`, what the run wrote at its end."""
    shown = shown or ShownEvaluation(row.folder)
    matrix = await asyncio.to_thread(read_matrix, shown.folder)
    if matrix is not None and len(matrix.names) > 1:
        cards = ConfusionCards(studio, row, shown, matrix)
        await cards.choose_first()


class ConfusionCards:
    """The matrix and the chosen cell."""

    def __init__(self, studio: Studio, row: RunRow, shown: ShownEvaluation, matrix: Matrix) -> None:
        self.studio, self.row, self.shown, self.matrix = studio, row, shown, matrix
        self.pairs = frequent_confusions(matrix.counts, matrix.names)
        self.cell: tuple[int, int] | None = None
        self.by_share, self.limit = False, IMAGES
        with ui.element("div").classes("cols cmx sect"):
            handlers = {"cell": self._choose, "show": self._show_as}
            self.left = (
                Fragment(self._matrix(), "section", on=handlers).classes("card").props('aria-label="Confusion matrix"')
            )
            more = {"all": self._show_all}
            self.right = (
                Fragment("", "section", on=more).classes("card").props('aria-label="Images in the selected cell"')
            )

    async def choose_first(self) -> None:
        """Begin with the most frequent confusion."""
        if self.pairs:
            await self._choose(f"{self.pairs[0]['row']},{self.pairs[0]['column']}")
        else:
            self.right.show(render("cell_images.html", title="No mistakes", examples=[], count=0, base="", query="", small=False, note="Every example was classified correctly."))  # fmt: skip

    async def _choose(self, value: str) -> None:
        row, _, column = value.partition(",")
        self.cell, self.limit = (int(row), int(column)), IMAGES
        self.left.show(self._matrix())
        self.right.show(await asyncio.to_thread(self._images))

    async def _show_all(self, value: str) -> None:
        self.limit = 200
        self.right.show(await asyncio.to_thread(self._images))

    def _show_as(self, value: str) -> None:
        self.by_share = value == "share"
        self.left.show(self._matrix())

    def _matrix(self) -> str:
        counts, names = self.matrix.counts, self.matrix.names
        few = len(names) <= MOST_CELLS
        return render(
            "confusion.html", names=names, lines=matrix_lines(self.matrix) if few else [], picture="" if few else pixels(counts), pairs=self.pairs[:9],
            chosen=self.cell, by_share=self.by_share, total=int(counts.sum()),
        )  # fmt: skip

    def _images(self) -> str:
        assert self.cell is not None
        folder, names = self.shown.folder, self.matrix.names
        row, column = self.cell
        found = cell_examples(folder, row, column)
        pictures = thumbnails_of(folder)
        title = f"{names[row]} taken for {names[column]}" if row != column else f"{names[row]}, classified correctly"
        count = int(self.matrix.counts[row, column])
        note = (
            "" if found else "The run keeps no predictions: train it again, or continue it for an epoch, to see them."
        )
        return render(
            "cell_images.html", title=title, examples=examples(folder, found[: self.limit]), count=count, note=note,
            base=f"{self.studio.config.prefix}/api/v1/runs/{quote(self.row.id)}/examples", query=self.shown.query, small=pictures is not None and pictures.are_small,
        )  # fmt: skip


@dataclass(frozen=True)
class MatrixCell:
    """How often one class was taken for another; `level` is the step of the scale of colours."""

    name: str
    count: int
    level: int
    share: float


@dataclass(frozen=True)
class MatrixRow:
    """A true class and what it was taken for."""

    name: str
    cells: list[MatrixCell]
    recall: str


def matrix_lines(matrix: Matrix) -> list[MatrixRow]:
    """The rows of the table."""
    scores = class_table(matrix.counts, matrix.names)
    return [
        MatrixRow(name, [_cell(other, int(n), int(counts.sum())) for other, n in zip(matrix.names, counts, strict=True)], metric_value("recall", score["recall"]))
        for name, counts, score in zip(matrix.names, matrix.counts, scores, strict=True)
    ]  # fmt: skip


def _cell(name: str, count: int, total: int) -> MatrixCell:
    share = count / max(1, total)
    level = 0 if share <= 0 else min(LEVELS - 1, 1 + math.floor(share * (LEVELS - 1)))
    return MatrixCell(name, count, level, share)


def pixels(counts: np.ndarray) -> str:
    """A matrix of many classes as a picture, a pixel a cell; transparent where the count is 0, so that it fits light and dark mode."""
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = np.empty((*share.shape, 4), np.uint8)
    image[..., :3] = PIXEL
    image[..., 3] = np.rint(255 * np.where(share > 0, 0.15 + 0.85 * np.sqrt(share), 0))
    return data_url(png(image))
