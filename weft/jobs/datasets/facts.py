"""What a trained network needs to know of its data, as JSON: it is used without the data, and without what trained it."""

from __future__ import annotations

from collections.abc import Mapping
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
