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
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from functools import cached_property
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
from ..precision import LossScale
from ..random import default_generator
from ..records import dataclass
from ..tensor import Tensor, as_tensor
from .folder import DescribedNetwork
from .places import TensorPlaces
from .ranks import Ranks

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
    ranks: Ranks = field(default_factory=Ranks)
    described: DescribedNetwork | None = None  # the whole network, for the folder of the run
    given_places: TensorPlaces | None = None  # None: in every process
    cuts: Sequence[str] = ()  # the last layers of the stages of a pipeline but the last

    @cached_property
    def places(self) -> TensorPlaces:
        """Where its tensors are."""
        return self.given_places or TensorPlaces(self.model, self.optimizer)

    @property
    def calls_per_batch(self) -> int:
        """The micro-batches of every batch that this process computes. A checkpoint counts whole batches, so any number of processes can resume."""
        return self.loader.shard.count if isinstance(self.loader, Loader) else 1

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, the network has the moving averages of its parameters, if the optimizer keeps any."""
        return self.optimizer.averaged() if self.optimizer.averages else nullcontext()

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of this process that a step reads or changes, by name."""
        found = {f"model.{name}": t for name, t in self.places.network().items()}
        found |= {f"optimizer.{name}": t for name, t in self.optimizer.named_state().items()}
        return found | self._others()

    def _others(self) -> dict[str, Tensor]:
        """Those that belong neither to the network nor to the optimizer."""
        found = {f"meter.{name}.{n}": t for name, meter in self.meters.items() for n, t in _tensors(meter)}
        if self.scale is not None:
            found |= {"scale.scale": self.scale.scale, "scale.good_steps": self.scale.good_steps}
        return found

    def whole_tensors(self) -> dict[str, Any]:
        """The same, of the whole network and of the examples of all processes; a collective call."""
        found = {f"model.{name}": t for name, t in self.places.whole_network().items()}
        found |= {f"optimizer.{name}": t for name, t in self.places.whole_optimizer().items()}
        merged = {name: self.ranks.merged(meter) for name, meter in self.meters.items()}
        counts = {f"meter.{name}.{n}": t for name, meter in merged.items() for n, t in _tensors(meter)}
        return found | self._others() | counts

    def save(self, path: Path, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Write a checkpoint. The last one stays until this one is complete, and then becomes the previous one."""
        key, offset = default_generator.state
        facts = {
            "loader": self.loader.state(), "epoch": self.epoch, "steps": self.steps // self.calls_per_batch,
            "batches": self.batches // self.calls_per_batch,
            "seconds": self.seconds, "history": self.history, "best": self.best, "micro_batches": self.ranks.micro_batches,
            "cuts": list(self.cuts),
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
        local = self._local(path, values)
        for name, tensor in self.tensors().items():
            if name in local:
                tensor.assign(as_tensor(local[name]).astype(tensor.dtype))
        default_generator.state = (values["random.key"], values["random.offset"])
        self.loader.load(facts["loader"])
        self.epoch = facts["epoch"]
        self.steps, self.batches = (facts[name] * self.calls_per_batch for name in ("steps", "batches"))
        self.seconds = facts["seconds"]
        self.history, self.best = facts["history"], facts["best"]

    def _local(self, path: Path, values: Mapping[str, Tensor]) -> dict[str, Any]:
        """The parts of a checkpoint's tensors that belong to this process; an error unless all of them fit."""
        given = {n: v for n, v in values.items() if not n.startswith(("optimizer.", "random."))}
        shapes = {f"model.{n}": shape for n, shape in self.places.shapes().items()}
        shapes |= {n: t.shape for n, t in self._others().items()}
        state, missing, extra = self.places.local_optimizer(_below(values, "optimizer."))
        missing += [n for n in shapes if n not in given]
        extra += [n for n in given if n not in shapes]
        wrong = [n for n, shape in shapes.items() if n in given and given[n].shape != shape]
        own = self.optimizer.named_state()
        wrong += [f"optimizer.{n}" for n, v in state.items() if as_tensor(v).shape != own[n].shape]
        if missing or extra or wrong:
            words = f"missing: {missing[:5]}, not known here: {extra[:5]}, other shapes: {wrong[:5]}"
            raise RunError("resume", f"{path} belongs to another network or other settings. {words}.")
        found = {f"model.{n}": v for n, v in self.places.local_network(_below(values, "model.")).items()}
        found |= {f"optimizer.{n}": v for n, v in state.items()}
        found |= {n: v for n, v in given.items() if n in self._others()}
        for name, meter in self.meters.items():
            for attribute, _ in _tensors(meter):
                key = f"meter.{name}.{attribute}"
                found[key] = self.ranks.own_share(found[key], meter.combine.get(attribute, "sum"))
        return found


def saved_micro_batches(path: Path) -> int | None:
    """The micro-batches of every batch of a run that is resumed, so that another number of processes trains as before; None if it had one.

    A checkpoint that cannot be read is ignored here: loading it is an error.
    """
    try:
        count = _content(path)[1].get("micro_batches", 1)
    except RunError:
        return None
    return count if isinstance(count, int) and count > 1 else None


def saved_cuts(path: Path) -> list[str] | None:
    """Where the network of a run that is resumed was cut into stages; None if it was not. Its tensors do not depend on it."""
    try:
        found = _content(path)[1].get("cuts")
    except RunError:
        return None
    return found if isinstance(found, list) and found else None


def _below(values: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _tensors(meter: Metric) -> list[tuple[str, Tensor]]:
    return [(name, tensor) for name, tensor in vars(meter).items() if isinstance(tensor, Tensor)]


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
