"""The folder of a run: everything about it in files that can be read without weft.

args.yaml       the settings it was started with
env.json        the machine and the versions
metrics.csv     a row an epoch
events.jsonl    what happened, one typed JSON object a line: the only channel other programs need
summary.json    the best and the last row
weights/        best.safetensors and last.safetensors
state/          the checkpoint to go on from
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError, UserError
from ..io import EventWriter, save
from ..io.safetensors import replace_file
from ..nn.module import Module
from ..runtime.native import thread_count


class RunFolder:
    """Where a run writes; see the head of this file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._board: EventWriter | None = None
        try:
            for part in ("", "weights", "state"):
                (self.path / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError("train", f"the folder {self.path} cannot be made: {error.strerror or error}.") from error

    @classmethod
    def fresh(cls, root: str | os.PathLike[str], name: str) -> RunFolder:
        """A new folder root/nameN, with the first N from 1 that is not taken."""
        if not name or Path(name).name != name:
            raise UserError("train", f"the name of a run is one word without slashes, got {name!r}.")
        number = 1
        while True:
            path = Path(root) / f"{name}{number}"
            try:
                path.mkdir(parents=True)
                return cls(path)
            except FileExistsError:
                number += 1

    @property
    def checkpoint(self) -> Path:
        return self.path / "state" / "last.safetensors"

    def start(self, settings: Mapping[str, Any]) -> None:
        """What is known before the first step."""
        lines = [f"{name}: {json.dumps(_plain(value))}" for name, value in settings.items()]  # JSON is YAML
        self._write("args.yaml", "\n".join(lines) + "\n")
        self._write("env.json", json.dumps(environment(), indent=1) + "\n")

    def event(self, kind: str, **facts: Any) -> None:
        """Add a line to the events."""
        line = json.dumps({"type": kind, "time": round(time.time(), 3), **{k: _plain(v) for k, v in facts.items()}})
        try:
            with open(self.path / "events.jsonl", "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise RunError("train", f"events cannot be written: {error.strerror or error}.") from error

    def rows(self, history: Sequence[Mapping[str, float]], best: Mapping[str, float]) -> None:
        """The table of epochs and the summary, written anew: after a resume they hold no row twice."""
        names = list(dict.fromkeys(name for row in history for name in row))
        text = io.StringIO()
        table = csv.DictWriter(text, names, lineterminator="\n")
        table.writeheader()
        table.writerows(history)
        self._write("metrics.csv", text.getvalue())
        summary = {"best": best, "last": history[-1] if history else {}, "epochs": len(history)}
        self._write("summary.json", json.dumps(summary, indent=1) + "\n")

    def scalars(self, row: Mapping[str, float]) -> None:
        """The numbers of an epoch for TensorBoard."""
        if self._board is None:
            self._board = EventWriter(self.path)
        for name, value in row.items():
            if name not in ("epoch", "steps"):
                self._board.scalar(name.replace("_", "/", 1), value, int(row["steps"]))
        self._board.flush()

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
            self._board = None

    def weights(self, name: str, model: Module) -> None:
        save(self.path / "weights" / f"{name}.safetensors", model.named_tensors())

    def _write(self, name: str, text: str) -> None:
        replace_file(self.path / name, [text.encode()])


def environment() -> dict[str, Any]:
    """The machine and the versions, for those who want to repeat a run."""
    return {
        "python": platform.python_version(), "numpy": np.__version__, "system": platform.platform(), "machine": platform.machine(),
        "cores": os.cpu_count(), "threads": thread_count(), "command": sys.argv,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """The value as JSON can hold it: numbers stay numbers, all else becomes text."""
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return repr(value)
