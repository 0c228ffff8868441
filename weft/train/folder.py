"""The folder of a run: everything about it in files that can be read without weft.

args.yaml       the settings it was started with
env.json        the machine and the versions
metrics.csv     a row an epoch
events.jsonl    what happened, one typed JSON object a line: the only channel other programs need
events.out.*    the same numbers for TensorBoard, and the graph of the network
log.txt         messages, with their time
annotations.json  tags, notes, group and star, which people may change at any time (weft/jobs/annotations.py)
summary.json    the best and the last row, how many parameters, how long, why it ended
weights/        best.safetensors and last.safetensors, and those of the best epochs if asked for
state/          the last checkpoint, and the one before it
watched.*       a few validation examples and their predictions after every epoch
predictions.*   what the best network predicts for the held-out examples; thumbnails.npz has pictures of its mistakes
evaluation.json scores by class, calibration, and curves of these predictions
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import RunError, UserError
from ..io import EventWriter, save
from ..io.files import append_line, remove_stale, replace_file
from ..io.graph_def import graph_def
from ..io.json_values import json_value
from ..locks import NAME as LOCK
from ..locks import one_writer
from ..nn.module import Module
from ..runtime import device
from ..runtime.native import thread_count

LONGEST_NAME = 200  # characters; file systems allow 255 bytes
TAKEN = "Give another name, or exist_ok=true to replace it."


def check_run_name(where: str, name: str) -> None:
    """A name is a folder of its own: `..` is the folder of all runs, which exist_ok=true would replace."""
    if not name or Path(name).name != name or name == ".." or not name.isprintable() or len(name) > LONGEST_NAME:
        raise UserError(where, f"the name of a run is one word without slashes, got {name!r}.")


class DescribedNetwork(NamedTuple):
    """What the folder of a run says of its network."""

    parameters: int
    graph: bytes | None = None  # for TensorBoard

    @classmethod
    def of(cls, model: Module, *examples: Any) -> DescribedNetwork:
        """With its graph, if there are examples of its inputs."""
        graph = graph_def(model, *examples) if examples else None
        return cls(sum(prod(p.shape) for p in model.parameters()), graph)


class RunFolder:
    """The folder that a run writes to; see the head of this file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._board: EventWriter | None = None
        try:
            for part in ("", "weights", "state"):
                (self.path / part).mkdir(parents=True, exist_ok=True)
            remove_stale(self.path, self.path / "weights", self.path / "state", self.path / "plots")
        except OSError as error:
            raise RunError("train", f"the folder {self.path} cannot be made: {error.strerror or error}.") from error

    @classmethod
    def fresh(cls, root: str | os.PathLike[str], name: str) -> RunFolder:
        """A new folder root/nameN, with the first N from 1 that is not taken; after a digit comes a dash."""
        check_run_name("train", name)
        number, dash = 1, "-" if name[-1].isdigit() else ""
        while True:
            path = Path(root) / f"{name}{dash}{number}"
            try:
                path.mkdir(parents=True)
                return cls(path)
            except FileExistsError:
                number += 1
            except OSError as error:
                raise RunError("train", f"the folder {path} cannot be made: {error.strerror or error}.") from error

    @classmethod
    def named(cls, root: str | os.PathLike[str], name: str, exist_ok: bool = False) -> RunFolder:
        """A new folder root/name. One that exists is rejected; with `exist_ok` the run in it is replaced."""
        check_run_name("train", name)
        path = Path(root) / name
        try:
            if exist_ok and (path / "args.yaml").exists():
                with one_writer(path):
                    for part in path.iterdir():
                        if part.name != LOCK:
                            shutil.rmtree(part) if part.is_dir() else part.unlink()
            path.mkdir(parents=True, exist_ok=exist_ok)
        except FileExistsError:
            raise UserError("train", f"a new run is required, got the name of {path}. {TAKEN}") from None
        except OSError as error:
            raise RunError("train", f"the folder {path} cannot be made: {error.strerror or error}.") from error
        return cls(path)

    @property
    def checkpoint(self) -> Path:
        return self.path / "state" / "last.safetensors"

    def start(self, settings: Mapping[str, Any], network: DescribedNetwork) -> None:
        """Write what is known before the first step."""
        self.settings(settings)
        self._write("env.json", json.dumps(environment(), indent=1) + "\n")
        self.summary(parameters=network.parameters)
        self.event("started", parameters=network.parameters, **settings)
        if network.graph is not None:
            self._events().encoded_graph(network.graph)
            self._events().flush()

    def settings(self, settings: Mapping[str, Any]) -> None:
        """Write the settings to args.yaml; a resumed run may change them."""
        lines = [f"{name}: {json.dumps(json_value(value))}" for name, value in settings.items()]  # JSON is YAML
        self._write("args.yaml", "\n".join(lines) + "\n")

    def event(self, kind: str, **facts: Any) -> None:
        """Add a line to the events."""
        line = json.dumps({"type": kind, "time": round(time.time(), 3), **{k: json_value(v) for k, v in facts.items()}})
        self._add("events.jsonl", line)

    def log(self, text: str) -> None:
        """Add a line to log.txt, with the time of day."""
        self._add("log.txt", f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")

    def _add(self, name: str, line: str) -> None:
        append_line(self.path / name, line, "train")

    def rows(self, history: Sequence[Mapping[str, float]]) -> None:
        """Rewrite the table of epochs: after a resume no row is in it twice."""
        names = list(dict.fromkeys(name for row in history for name in row))
        text = io.StringIO()
        table = csv.DictWriter(text, names, lineterminator="\n")
        table.writeheader()
        table.writerows(history)
        self._write("metrics.csv", text.getvalue())

    def summary(self, **facts: Any) -> None:
        """Add to what summary.json says, or replace it."""
        known = {**self.known_summary(), **{k: json_value(v) for k, v in facts.items()}}
        self._write("summary.json", json.dumps(known, indent=1) + "\n")

    def known_summary(self) -> dict[str, Any]:
        """The contents of summary.json; empty if it is damaged, then it is written again."""
        try:
            found = json.loads((self.path / "summary.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def scalars(self, row: Mapping[str, float]) -> None:
        """The numbers of an epoch for TensorBoard."""
        board = self._events()
        for name, value in row.items():
            if name not in ("epoch", "steps"):
                board.scalar(name.replace("_", "/", 1), value, int(row["steps"]))
        board.flush()

    def _events(self) -> EventWriter:
        if self._board is None:
            self._board = EventWriter(self.path)
        return self._board

    def close(self, ended: str, epochs: int) -> None:
        """Record the end of the run, and why it ended."""
        board, self._board = self._board, None
        with contextlib.suppress(RunError):  # a full disk may be why
            if board is not None:
                board.close()
            self.summary(ended=ended)
            self.event("ended", why=ended, epochs=epochs)

    def weights(self, name: str, tensors: Mapping[str, Any]) -> None:
        """Write the tensors of a network."""
        save(self.path / "weights" / f"{name}.safetensors", tensors)

    def write_json(self, name: str, content: Any) -> None:
        """Write another file as JSON."""
        self._write(name, json.dumps(json_value(content), indent=1) + "\n")

    def keep_epochs(self, tensors: Mapping[str, Any], epoch: int, wanted: Sequence[int]) -> None:
        """Keep the weights of the best epochs and remove those of others."""
        folder = self.path / "weights"
        if epoch in wanted:
            self.weights(f"epoch-{epoch:04}", tensors)
        for path in folder.glob("epoch-*.safetensors"):
            if path.stem not in {f"epoch-{number:04}" for number in wanted}:
                path.unlink(missing_ok=True)

    def _write(self, name: str, text: str) -> None:
        replace_file(self.path / name, [text.encode()])


def environment() -> dict[str, Any]:
    """The machine and the versions, to reproduce a run."""
    return {
        "python": platform.python_version(), "numpy": np.__version__, "system": platform.platform(), "machine": platform.machine(),
        "cores": os.cpu_count(), "threads": thread_count(), "device": device().about(), "command": sys.argv, "folder": os.getcwd(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }  # fmt: skip
