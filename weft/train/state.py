"""Training state and its checkpoints: resuming from one is exact.

A checkpoint is one file, written beside its place and renamed: if the process is killed, either the old or the new one is there, complete.
It holds all tensors (parameters, running statistics, moments, counts of metrics, positions of random streams) and, as text, the
position in the data and the metrics so far. The same steps on the same values give the same bits.

It has a checksum, so that a flipped bit is detected when it is loaded, and the previous one is kept as a fallback.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data.loader import Loader
from ..errors import RunError
from ..io import save
from ..io.files import cannot_write
from ..io.safetensors import Content, read
from ..metrics import Metric
from ..nn.module import Module
from ..optim import Optimizer
from ..optim.optimizer import COLLECTED
from ..precision import LossScale
from ..random import default_generator
from ..tensor import Tensor, as_tensor

FORMAT = "2"  # 1 had no checksum
PREVIOUS = "previous.safetensors"  # the checkpoint before the last, in the same folder
FACTS = {"loader", "epoch", "steps", "batches", "seconds", "history", "best"}


@dataclass
class Training:
    """A network being trained: what steps change, and the metrics so far."""

    model: Module
    optimizer: Optimizer
    loader: Any  # of training examples: state() and load()
    meters: Mapping[str, Metric]
    scale: LossScale | None = None
    epoch: int = 0  # that are done
    steps: int = 0
    batches: int = 0  # of the current epoch
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)  # a row an epoch
    best: dict[str, float] = field(default_factory=dict)  # the row with the best result

    @property
    def calls_per_batch(self) -> int:
        """The micro-batches of every batch that this process has. A checkpoint counts whole batches: any number of processes can go on."""
        return self.loader.shard.count if isinstance(self.loader, Loader) else 1

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, the network has the moving averages of its parameters, if the optimizer keeps any."""
        return self.optimizer.averaged() if self.optimizer.averages else nullcontext()

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that a step reads or changes, by name."""
        found = {f"model.{name}": t for name, t in self.model.named_tensors().items()}
        found |= {f"optimizer.{name}": t for name, t in self.optimizer.named_state().items()}
        for name, meter in self.meters.items():
            found |= {f"meter.{name}.{n}": t for n, t in vars(meter).items() if isinstance(t, Tensor)}
        if self.scale is not None:
            found |= {"scale.scale": self.scale.scale, "scale.good_steps": self.scale.good_steps}
        return found

    def whole_tensors(self) -> dict[str, Tensor]:
        """The same, of whole parameters: state that processes share is gathered, so all of them come here."""
        others = {name: t for name, t in self.tensors().items() if not name.startswith("optimizer.")}
        return others | {f"optimizer.{name}": t for name, t in self.optimizer.whole_state().items()}

    def save(self, path: Path, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Write a checkpoint. The last one stays until this one is complete, and then becomes the previous one."""
        key, offset = default_generator.state
        facts = {
            "loader": self.loader.state(), "epoch": self.epoch, "steps": self.steps // self.calls_per_batch,
            "batches": self.batches // self.calls_per_batch,
            "seconds": self.seconds, "history": self.history, "best": self.best,
        }  # fmt: skip
        random = {"random.key": key, "random.offset": offset}
        _keep(path)
        save(
            path,
            {**(self.whole_tensors() if tensors is None else tensors), **random},
            {"format": FORMAT, "training": json.dumps(facts)},
        )

    def load(self, path: Path) -> None:
        """Restore a checkpoint of the same network and settings. Nothing changes unless all of it fits."""
        values, facts = _read(path)
        kept = self.optimizer.local_state(
            {n.removeprefix("optimizer."): t for n, t in values.items() if n.startswith("optimizer.")}
        )
        values |= {f"optimizer.{name}": t for name, t in kept.items()}
        own = self.tensors()
        missing = [n for n in own if n not in values and not n.startswith(f"optimizer.{COLLECTED}")]
        extra = [n for n in values if n not in own and not n.startswith("random.")]
        wrong = [n for n in own if n in values and values[n].shape != own[n].shape]
        if missing or extra or wrong:
            words = f"missing: {missing[:5]}, not known here: {extra[:5]}, other shapes: {wrong[:5]}"
            raise RunError("resume", f"{path} belongs to another network or other settings. {words}.")
        for name, tensor in own.items():
            if name in values:
                tensor.assign(as_tensor(values[name]).astype(tensor.dtype))
        default_generator.state = (values["random.key"], values["random.offset"])
        self.loader.load(facts["loader"])
        self.epoch = facts["epoch"]
        self.steps, self.batches = (facts[name] * self.calls_per_batch for name in ("steps", "batches"))
        self.seconds = facts["seconds"]
        self.history, self.best = facts["history"], facts["best"]


def _keep(path: Path) -> None:
    """Link the current checkpoint to the name of the previous one, before the next one replaces it."""
    beside, previous = path.with_name(f".{PREVIOUS}.{os.getpid()}.0"), path.with_name(PREVIOUS)
    if not path.exists() or (previous.exists() and previous.samefile(path)):  # the same after a save that failed
        return
    try:
        beside.unlink(missing_ok=True)
        try:
            os.link(path, beside)
        except OSError:  # a file system without links: the same with a copy
            shutil.copyfile(path, beside)
        os.replace(beside, previous)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise cannot_write("save", previous, error) from error


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the facts of a checkpoint; if it is damaged, the error names the last intact one."""
    try:
        return _content(path)
    except RunError as error:
        raise RunError("resume", f"{error.message} {_way_out(path)}") from error


def _content(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    content: Content = read(path)
    form = content.metadata.get("format")
    if form not in ("1", FORMAT):
        raise RunError("resume", f"{path} is no checkpoint of this version of weft.")
    try:
        facts = json.loads(content.metadata["training"])
        whole = content.checked or form == "1"
    except (KeyError, ValueError, RecursionError):
        whole = False
    if not whole or not FACTS.issubset(facts) or not {"random.key", "random.offset"} <= set(content.tensors):
        raise RunError("resume", f"{path} is damaged: parts of the checkpoint are missing.")
    return content.tensors, facts


def _way_out(path: Path) -> str:
    """What to do if a checkpoint cannot be read."""
    previous = path.with_name(PREVIOUS)
    if previous.exists() and previous != path:
        try:
            facts = _content(previous)[1]
        except RunError:
            return f"The one before it, {previous}, is damaged too."
        run = path.parent.parent
        return (
            f"The one before it is intact (epoch {facts['epoch'] + 1}, after step {facts['steps']}). Continue from it with: "
            f"cp {shlex.quote(str(previous))} {shlex.quote(str(path))} && weft resume {shlex.quote(str(run))}"
        )
    return "There is no checkpoint before it."
