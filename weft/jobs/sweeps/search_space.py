"""Settings with several values: lists such as rate=0.1,0.03, and ranges such as rate=log:1e-4..1e-1.

`weft job submit` adds a training with each value of a list (`expand`); `weft sweep` searches lists and ranges (`search_space`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...hints import nearest
from ...records import dataclass
from ..annotations import LONGEST_GROUP
from ..schema import as_text, parsed
from ..settings import SETTINGS

SWEPT = (
    "model", "epochs", "batch", "accumulate", "optimizer", "rate", "momentum", "nesterov", "eps", "clip_norm", "schedule", "warmup", "final_rate", "gamma", "power",
    "weight_decay", "label_smoothing", "mixup", "cutmix", "average", "dropout", "hidden", "layers", "heads", "key_heads", "positions", "window", "length", "augment", "flip", "precision",
    "seed", "size", "resize", "colour", "weights", "freeze", "freeze_layers", "body_rate", "loss", "patience",
)  # fmt: skip
RANGE = "A range is written 1e-4..1e-1, or log:1e-4..1e-1 for equal steps of the exponent."


@dataclass(frozen=True)
class ChoiceDimension:
    """A setting with a few values, as the command writes them."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class RangeDimension:
    """A number between two others, both included."""

    name: str
    low: float
    high: float
    log: bool = False
    whole: bool = False


Dimension = ChoiceDimension | RangeDimension


def search_space(where: str, given: Mapping[str, Any]) -> tuple[list[Dimension], dict[str, str]]:
    """The dimensions of a search, and the settings that have one value. Unknown names and invalid values are rejected.

    >>> search_space("sweep", {"data": "digits", "model": ["mlp", "lenet"], "rate": "log:1e-4..1e-1"})[0]
    [ChoiceDimension(name='model', values=('mlp', 'lenet')), RangeDimension(name='rate', low=0.0001, high=0.1, log=True, whole=False)]
    """
    space, fixed = list[Dimension](), dict[str, str]()
    for name, value in given.items():
        text = as_text(value)
        found = dimension(where, name, text)
        if found is None:
            parsed(where, name, text, SETTINGS)
            fixed[name] = text
        else:
            space.append(found)
    return space, fixed


def dimension(where: str, name: str, text: str) -> Dimension | None:
    """The dimension that a text stands for; None if it is one value.

    >>> dimension("sweep", "batch", "16..64")
    RangeDimension(name='batch', low=16, high=64, log=False, whole=True)
    """
    if name not in SETTINGS:
        raise UserError(where, f"there is no setting {name!r}. {nearest(name, list(SETTINGS))}")
    is_number = SETTINGS[name].type in ("integer", "number")
    if name in SWEPT and is_number and (".." in text or ":" in text):
        return _range(where, name, text)
    values = values_of(name, text)
    if len(values) == 1:
        if text.startswith("log:"):
            raise UserError(where, f"{name}={text} cannot be used: {name} takes no range. Give values: {name}=A,B.")
        return None
    for value in values:
        parsed(where, name, value, SETTINGS)
    if len(set(values)) < len(values):
        raise UserError(where, f"{name}={text} has a value twice. Name each once.")
    return ChoiceDimension(name, tuple(values))


def _range(where: str, name: str, text: str) -> RangeDimension:
    scale, colon, ends = text.rpartition(":")
    if colon and scale != "log":
        raise UserError(where, f"{name}={text} cannot be used: there is no range {scale!r}. {nearest(scale, ['log'])} {RANGE}")  # fmt: skip
    low_text, _, high_text = ends.partition("..")
    if not low_text or not high_text or high_text.startswith("."):  # 1...5 could be 1 to 5, or to 0.5
        raise UserError(where, f"{name}={text} cannot be used: two numbers are required. {RANGE}")
    low, high = (_end(where, name, one.strip()) for one in (low_text, high_text))
    if not low < high:
        raise UserError(where, f"{name}={text} cannot be used: the first number must be below the second. {RANGE}")
    if scale and low <= 0:
        raise UserError(where, f"{name}={text} cannot be used: a logarithmic range starts above 0, got {low:g}.")
    return RangeDimension(name, low, high, bool(scale), SETTINGS[name].type == "integer")


def _end(where: str, name: str, text: str) -> float:
    value = parsed(where, name, text, SETTINGS)
    if not isinstance(value, int | float):
        raise UserError(where, f"{name}: the ends of a range are numbers, got {text!r}. {RANGE}")
    return value


def setting_value(name: str, value: Any) -> Any:
    """The value of a setting, from one that a search has chosen."""
    return parsed("sweep", name, as_text(value), SETTINGS)


def expand(given: Mapping[str, str]) -> list[dict[str, str]]:
    """The settings of every training that these texts stand for: all combinations of the values of lists.

    With a name and several trainings, each has the name and its own values as its name. The trainings form a group.

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
