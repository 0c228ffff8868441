"""Sweeps: a setting with several values, such as rate=0.1,0.03, stands for a training with each of them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from pathlib import Path

from .annotations import LONGEST_GROUP

SWEPT = (
    "model", "epochs", "batch", "accumulate", "optimizer", "rate", "momentum", "eps", "clip_norm", "schedule", "warmup", "final_rate",
    "weight_decay", "label_smoothing", "mixup", "cutmix", "average", "dropout", "hidden", "layers", "augment", "precision", "seed", "size",
    "freeze", "body_rate", "loss",
)  # fmt: skip


def expand(given: Mapping[str, str]) -> list[dict[str, str]]:
    """The settings of every training that these texts stand for: all combinations of the values of lists.

    With a name and several trainings, each has the name and its own values as its name. The trainings of a sweep form a group.

    >>> expand({"data": "digits", "rate": "0.1, 0.03", "name": "mine"})
    [{'data': 'digits', 'rate': '0.1', 'name': 'mine-rate0.1', 'group': 'mine'}, {'data': 'digits', 'rate': '0.03', 'name': 'mine-rate0.03', 'group': 'mine'}]
    """
    choices = [[(name, value) for value in values_of(name, text)] for name, text in given.items()]
    found = [dict(one) for one in product(*choices)]
    swept = [name for name, text in given.items() if len(values_of(name, text)) > 1]
    for one in found if swept else ():
        if given.get("name"):
            one["name"] = "-".join([given["name"], *(f"{name}{one[name]}" for name in swept)])
        if not given.get("group"):
            parts = filter(None, ["sweep", Path(given.get("data", "")).name, *swept])
            one["group"] = (given.get("name") or "-".join(parts))[:LONGEST_GROUP]
    return found


def sweep_size(given: Mapping[str, str]) -> int:
    """How many trainings these texts stand for, counted before they are made.

    >>> sweep_size({"data": "digits", "rate": "0.1, 0.03", "batch": "32, 64"})
    4
    """
    return prod(len(values_of(name, text)) for name, text in given.items())


def values_of(name: str, text: str) -> list[str]:
    """The values that a text stands for: several for a list of a setting that can be swept, else the text itself."""
    if name not in SWEPT or "," not in text:
        return [text]
    return [part.strip() for part in text.split(",") if part.strip()] or [text]
