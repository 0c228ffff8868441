"""The form of a compression: fields from the schema of its settings, and what is wrong with them before it starts."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from ...device_names import CPU, CUDA
from ...errors import WeftError
from ...jobs.compression.settings import COMPRESSION, check_compression
from ...jobs.schema import validated
from ...records import dataclass
from .runs import RunRow
from .training_fields import Field

_TITLES = {
    "rate": "Rate after pruning", "share_epochs": "Epochs, shared", "share_rate": "Rate, shared", "density": "Densities", "half": "Biases in float16",
    "steps": "Pruning steps", "tolerance": "Accuracy loss", "energy": "Low-rank energy",
}  # fmt: skip
LISTS = {  # what is common; anything else that the command takes can be typed
    "method": [
        "prune,share,rans", "prune,share,huffman", "channels,share,rans", "channels,prune,share,rans", "low_rank,prune,share,rans", "prune,int8", "int8",
        "fixed:8",
    ],
    "target": ["size=10x", "size=20x", "size=40x", "error=+0.1%", "error=+0.5%", "speed=2x", "speed=3x", "device=cpu"],
    "device": [CPU, CUDA],
}  # fmt: skip


class CompressionField(Field):
    """A field whose default depends on others."""

    @property
    def placeholder(self) -> str:
        return {"method": "prune,share,rans", "target": "none: a sweep", "device": "cpu"}.get(
            self.name
        ) or super().placeholder


def _fields(*names: str) -> tuple[Field, ...]:
    return tuple(
        CompressionField(name, COMPRESSION[name], _TITLES.get(name, name.replace("_", " ").capitalize()))
        for name in names
    )


WIDE = _fields("method", "target")
FIELDS = _fields("bits", "epochs", "tolerance", "device")
MORE = _fields("density", "width", "energy", "steps", "rate", "share_epochs", "share_rate", "half", "seed", "name")


@dataclass(frozen=True)
class CompressionCheck:
    """What is wrong with a form, in which field, and the same on the command line."""

    command: str
    error: str = ""
    field: str = ""


def check_compression_form(values: Mapping[str, str], row: RunRow) -> CompressionCheck:
    """Check a form without starting anything."""
    given = {name: text.strip() for name, text in values.items() if name in COMPRESSION and text.strip()}
    words = [f"{name}={text.replace(', ', ',')}" for name, text in given.items()]
    command = " ".join(["weft compress", *map(shlex.quote, [row.name, *words])])
    try:
        check_compression(validated("compress", {**given, "run": row.name}, COMPRESSION))
    except WeftError as error:
        wrong = next((name for name in given if f"{name}=" in error.message), "")
        return CompressionCheck(command, error.message, wrong)
    return CompressionCheck(command)
