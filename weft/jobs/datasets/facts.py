"""What a trained network needs to know of its data, as JSON: it is used without the data, and without what trained it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ... import data
from ...text.tokenizer import RUN_FACTS, tokenizer_of

FACTS = RUN_FACTS  # in the run folder


def facts(dataset: data.Dataset, statistics: data.Statistics | None) -> dict[str, Any]:
    """What a trained network needs to know of its data, as JSON, so that it can be used without the data.

    `statistics` are those that images were normalized with.
    """
    found: dict[str, Any] = {
        "name": dataset.name,
        "shape": dataset.shape,
        "dtype": dataset.inputs(np.arange(1)).dtype.name,
    }
    if isinstance(dataset, data.Text):
        return found | dataset.tokenizer.facts() | {"length": dataset.length}
    found |= {"classes": dataset.classes, "labels": [dataset.labels.dtype.name, *dataset.labels.shape[1:]]}
    return found | {"mean": statistics and statistics.mean, "std": statistics and statistics.std}


def split_sizes(splits: data.Splits) -> dict[str, int]:
    """How many examples each split has: train, validation and test, as far as there are such."""
    return {name: len(one) for name, one in splits._asdict().items() if one}


def stored_split_sizes(folder: Path) -> dict[str, int] | None:
    """The sizes of splits in a run folder; None if it does not say."""
    try:
        found = json.loads((folder / FACTS).read_text("utf-8"))["splits"]
        return {str(name): int(size) for name, size in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def example(known: Mapping[str, Any]) -> data.Dataset:
    """A dataset of one empty example with these facts."""
    shape = tuple(known["shape"])
    if "length" in known:
        return data.Text(np.zeros(known["length"] + 1, np.int32), tokenizer_of(known), known["length"], known["name"])
    kind, *rest = known["labels"]
    statistics = None if known["mean"] is None else data.Statistics(tuple(known["mean"]), tuple(known["std"]))
    return data.Arrays(
        np.zeros((1, *shape), known["dtype"]),
        np.zeros((1, *rest), kind),
        known["classes"] or None,
        known["name"],
        statistics,
    )
