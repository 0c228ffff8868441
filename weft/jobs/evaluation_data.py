"""The examples that a trained network is evaluated on, numbered as it learned them: those of its own data, or of other data with the same classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import data
from ..data.label_kinds import kind_of
from ..errors import UserError
from ..report.text_format import listed
from ..text.tokenizer import CharTokenizer
from .job import Job
from .networks import dataset_text


def as_stored(learned: Job, other: str | None) -> dict[str, Any]:
    """Settings that convert other image files as the run converted its own."""
    if other is None:
        return {}
    if isinstance(learned.train, data.Text):
        return {"data": other, "tokenizer": "characters"}  # they become the run's own tokens below
    if not learned.is_image_source:
        return {"data": other}
    channels, height, width = learned.train.shape
    return {"data": other, "size": (height, width), "colour": "gray" if channels == 1 else "rgb"}


def as_learned(given: data.Dataset, learned: data.Dataset, what: str) -> tuple[data.Dataset, list[str]]:
    """The examples with the class indices of the network, and notes on missing classes."""
    if isinstance(given, data.Text) and isinstance(learned, data.Text):
        return _text_as_learned(given, learned, what), []
    if isinstance(given, data.Text) != isinstance(learned, data.Text) or kind_of(given.labels[:1]) != kind_of(
        learned.labels[:1]
    ):
        raise UserError(
            "weft eval",
            f"the run learned from {dataset_text(learned, count=False)}, and {what} is different: {dataset_text(given, count=False)}.",
        )
    if given.shape != learned.shape:
        wanted, got = (" x ".join(map(str, dataset.shape)) for dataset in (learned, given))
        raise UserError("weft eval", f"the run learned from inputs of {wanted}, and {what} has inputs of {got}.")
    extra = [name for name in given.classes if name not in learned.classes]
    missing = [name for name in learned.classes if name not in given.classes]
    if extra:
        lacks = f", and lacks {listed(missing)}" if missing else ""
        raise UserError(
            "weft eval",
            f"the run has the classes {listed(learned.classes)}. {what} has others, {listed(extra)}{lacks}: "
            "the results would be meaningless. Train on it, or remove these examples.",
        )
    notes = [f"{what} has no examples of {listed(missing)}"] if missing else []
    return (given, notes) if given.classes == learned.classes else (_Renumbered(given, learned.classes), notes)


def _text_as_learned(given: data.Text, learned: data.Text, what: str) -> data.Text:
    extra = sorted(set(given.vocabulary) - set(learned.vocabulary))
    if extra and isinstance(learned.tokenizer, CharTokenizer):
        raise UserError("weft eval", f"{what} has characters that the run never saw: {listed(list(map(repr, extra)))}.")
    return data.Text(learned.encode(given.decode(given.ids)), learned.tokenizer, given.length, given.name)


class _Renumbered(data.Dataset):
    """The same examples with other class indices."""

    def __init__(self, base: data.Dataset, classes: Sequence[str]) -> None:
        numbers = np.array([list(classes).index(name) for name in base.classes], np.int64)
        labels = numbers[base.labels] if base.labels.ndim == 1 else np.zeros((len(base), len(classes)), bool)
        if labels.ndim == 2:  # a column for each class
            labels[:, numbers] = base.labels
        super().__init__(labels, classes, base.name, base.statistics)
        self._base = base

    @property
    def shape(self) -> tuple[int, ...]:
        return self._base.shape

    def inputs(self, indices: Any) -> np.ndarray:
        return self._base.inputs(indices)
