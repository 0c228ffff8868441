"""The images of a dataset: which there are, filtered by split, class, name and flag; thumbnails; how they look together."""

from __future__ import annotations

import csv
import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from ...data.catalogue import is_available, known, known_names
from ...data.dataset import Dataset, Splits
from ...data.dataset_folder import open_dataset_folder
from ...data.doctor.report import load_report
from ...data.image_names import read_names
from ...data.label_kinds import LabelKind, kind_of
from ...data.pixel_summary import PixelSummary, as_bytes, pixel_summary
from ...data.texts import Text
from ...errors import UserError, WeftError
from ...records import dataclass

OPEN = 8  # datasets that stay open
THUMBNAILS = 4096  # that stay in memory
LARGEST_SIDE = 512
_PNG_SIDE = 64  # smaller pictures are PNG, which is exact; larger ones JPEG


@dataclass(frozen=True)
class ImageRef:
    """One image: its split, its row there, what it is called and labelled."""

    split: str
    row: int
    name: str
    label: str
    flag: str = ""


@dataclass(frozen=True)
class ImageFilter:
    """Which images are shown: a split, a class, words of the name or class, only flagged ones. Empty means all."""

    split: str = ""
    of_class: str = ""
    words: str = ""
    flagged: bool = False


@dataclass
class OpenedDataset:
    """A dataset whose images can be shown."""

    parts: Mapping[str, Dataset]
    folder: Path | None = None  # of a version on disk
    flags: Mapping[str, Mapping[int, str]] = field(default_factory=dict)  # by split and row
    _thumbnails: OrderedDict[tuple[str, int, int], tuple[bytes, str]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def train(self) -> Dataset:
        return self.parts["train"]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    @property
    def kind(self) -> LabelKind:
        return kind_of(self.train.labels[:1])

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """The file names of each split; numbers where there are none."""
        if self.folder is None:
            return {split: [str(row) for row in range(len(part))] for split, part in self.parts.items()}
        return {split: read_names(self.folder / split, len(part)) for split, part in self.parts.items()}

    @cached_property
    def pixels(self) -> PixelSummary:
        """The mean image and the histogram of training."""
        return pixel_summary(self.train)

    def counts(self) -> dict[str, dict[str, int]]:
        """Examples of each class by split."""
        return {split: part.counts() for split, part in self.parts.items()}

    def find(self, wanted: ImageFilter, start: int = 0, most: int = 60) -> tuple[list[ImageRef], int]:
        """A page of the images that fit, and how many fit."""
        pairs = [(split, self._rows(split, wanted)) for split in self.parts if wanted.split in ("", split)]
        total = sum(len(rows) for _, rows in pairs)
        found: list[ImageRef] = []
        for split, rows in pairs:
            found += [self.image(split, int(row)) for row in rows[start : start + most - len(found)]]
            start = max(0, start - len(rows))
        return found, total

    def image(self, split: str, row: int) -> ImageRef:
        """One image; an error if there is none."""
        if split not in self.parts or not 0 <= row < len(self.parts[split]):
            raise UserError("studio", f"there is no image {row} in {split}.")
        flag = self.flags.get(split, {}).get(row, "")
        return ImageRef(split, row, self.names[split][row], label_text(self.parts[split], row), flag)

    def _rows(self, split: str, wanted: ImageFilter) -> np.ndarray:
        part, names = self.parts[split], self.names[split]
        fits = np.ones(len(part), bool)
        if wanted.of_class:
            if wanted.of_class not in part.classes:
                return np.zeros(0, np.int64)
            number = part.classes.index(wanted.of_class)
            fits &= part.labels[:, number] if kind_of(part.labels) == "classes" else part.labels == number
        if wanted.flagged:
            fits &= np.isin(np.arange(len(part)), list(self.flags.get(split, {})))
        for word in wanted.words.lower().split():
            named = np.fromiter((word in name.lower() for name in names), bool, len(names))
            fits &= named | _with_class(part, [i for i, name in enumerate(part.classes) if word in name.lower()])
        return np.flatnonzero(fits)

    def thumbnail(self, split: str, row: int, side: int) -> tuple[bytes, str]:
        """A picture with sides of at most `side` pixels, and its media type."""
        key = split, row, min(max(side, 8), LARGEST_SIDE)
        with self._lock:
            if key in self._thumbnails:
                self._thumbnails.move_to_end(key)
                return self._thumbnails[key]
        self.image(split, row)
        made = picture(as_bytes(self.parts[split].inputs(np.array([row])))[0], key[2])
        with self._lock:
            self._thumbnails[key] = made
            while len(self._thumbnails) > THUMBNAILS:
                self._thumbnails.popitem(last=False)
        return made


def label_text(part: Dataset, row: int) -> str:
    """The label of an example in words."""
    label = part.labels[row]
    if kind_of(part.labels[:1]) == "classes":
        return ", ".join(part.classes[i] for i in np.flatnonzero(label)) or "no class"
    if part.classes and np.ndim(label) == 0:
        return part.classes[int(label)]
    return ", ".join(f"{value:.4g}" for value in np.ravel(label)[:4])


def _with_class(part: Dataset, numbers: Sequence[int]) -> np.ndarray:
    if not numbers or not part.classes:
        return np.zeros(len(part), bool)
    if kind_of(part.labels) == "classes":
        return np.asarray(part.labels[:, list(numbers)].any(axis=1))
    return np.isin(part.labels, list(numbers))


def picture(image: np.ndarray, side: int) -> tuple[bytes, str]:
    """An image (channels, height, width) as a file of at most so many pixels a side, and its media type."""
    shown = Image.fromarray(image[0] if len(image) != 3 else image.transpose(1, 2, 0))
    shown.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    if max(shown.size) <= _PNG_SIDE:
        shown.save(buffer, "PNG")
        return buffer.getvalue(), "image/png"
    shown.save(buffer, "JPEG", quality=88)
    return buffer.getvalue(), "image/jpeg"


class OpenDatasets:
    """Datasets that were opened to look at their images; the most recently used stay open."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, OpenedDataset] = OrderedDict()
        self._lock = threading.Lock()

    def version(self, folder: Path, digest: str) -> OpenedDataset:
        """A version on disk. Another dataset in the same place has another digest."""
        return self._get(f"{digest} {folder}", lambda: (open_dataset_folder(folder), folder))

    def known(self, name: str) -> OpenedDataset:
        """A known dataset that is on this machine."""
        if name not in known_names() or not is_available(name):
            raise UserError("studio", f"{name} is not on this machine. Get it with weft dataset get {name}.")
        return self._get(name, lambda: (known(name), None))

    def _get(self, key: str, opener: Callable[[], tuple[Splits, Path | None]]) -> OpenedDataset:
        with self._lock:
            if key not in self._open:
                splits, folder = opener()
                self._open[key] = OpenedDataset(_parts(splits), folder)
            self._open.move_to_end(key)
            while len(self._open) > OPEN:
                self._open.popitem(last=False)
            return self._open[key]


def _parts(splits: Splits) -> dict[str, Dataset]:
    found = {split: part for split, part in splits._asdict().items() if part is not None}
    if isinstance(splits.train, Text) or len(splits.train.shape) != 3:
        raise UserError("studio", "a dataset of images is required.")
    return found


FLAGS = {
    "leaks": "Leak", "duplicates": "Duplicate", "near-duplicates": "Near copy", "outliers": "Outlier", "quality": "Poor image"
}  # fmt: skip


def flags_of(folder: Path, digest: str) -> dict[str, dict[int, str]]:
    """What the data doctor found about images, by split and row, in a word or two. Of copies the first stays unflagged: it is kept."""
    try:
        report = load_report(folder, digest)
    except WeftError:  # the page of the doctor says that it is damaged
        return {}
    found: dict[str, dict[int, str]] = {}
    for result in report.results if report is not None else ():
        for finding in result.findings:
            copies = result.check in ("duplicates", "near-duplicates")
            for split, row in finding.images[1:] if copies else finding.images:
                likely = finding.suggested.relabel.get(split, {}).get(row)
                word = f"Likely {likely}" if likely else FLAGS.get(result.check, "Wrong label")
                found.setdefault(split, {}).setdefault(row, word)
    return found


def failures(folder: Path) -> list[tuple[str, str]]:
    """Files that are not in a dataset, with the reason: those that failed first, then those passed over."""
    try:
        text = (folder / "failed.csv").read_bytes().decode("utf-8", "replace")
        rows = [(row[0], row[1]) for row in list(csv.reader(io.StringIO(text, newline="")))[1:] if len(row) == 2]
    except (OSError, csv.Error):
        return []
    return sorted(rows, key=lambda row: row[1].startswith("passed over: "))
