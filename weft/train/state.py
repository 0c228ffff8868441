"""Everything that changes while a network is trained, and its checkpoints: going on from one is exact.

A checkpoint is one file, written beside its place and renamed: a kill at any moment leaves the old one or the new one, whole.
It holds all tensors (parameters, running statistics, moments, counts of metrics, positions of random streams) and, as text, where the
data stood and what has been measured so far. The same steps on the same values give the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..io import load, save
from ..io.safetensors import metadata
from ..metrics import Metric
from ..nn.module import Module
from ..optim import Optimizer
from ..precision import LossScale
from ..random import default_generator
from ..tensor import Tensor, as_tensor

FORMAT = "1"


@dataclass
class Training:
    """A network being trained: what is changed by steps, and what has been measured."""

    model: Module
    optimizer: Optimizer
    loader: Any  # of training examples: state() and load()
    meters: Mapping[str, Metric]
    scale: LossScale | None = None
    epoch: int = 0  # that are done
    steps: int = 0
    batches: int = 0  # of the present epoch
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)  # a row an epoch
    best: dict[str, float] = field(default_factory=dict)  # the row with the best result

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that a step reads or changes, by name."""
        found = {f"model.{name}": t for name, t in self.model.named_tensors().items()}
        found |= {f"optimizer.{name}": t for name, t in self.optimizer.named_state().items()}
        for name, meter in self.meters.items():
            found |= {f"meter.{name}.{n}": t for n, t in vars(meter).items() if isinstance(t, Tensor)}
        if self.scale is not None:
            found |= {"scale.scale": self.scale.scale, "scale.good_steps": self.scale.good_steps}
        return found

    def save(self, path: Path) -> None:
        """Write a checkpoint. The one that was there stays until this one is complete."""
        key, offset = default_generator.state
        facts = {
            "loader": self.loader.state(), "epoch": self.epoch, "steps": self.steps, "batches": self.batches,
            "seconds": self.seconds, "history": self.history, "best": self.best,
        }  # fmt: skip
        random = {"random.key": key, "random.offset": offset}
        save(path, {**self.tensors(), **random}, {"format": FORMAT, "training": json.dumps(facts)})

    def load(self, path: Path) -> None:
        """Go on from a checkpoint; it must be of the same network and settings. Nothing changes unless all of it fits."""
        values, texts = load(path), metadata(path)
        if texts.get("format") != FORMAT:
            raise RunError("resume", f"{path} is no checkpoint of this version of weft.")
        own = self.tensors()
        missing = [n for n in own if n not in values]
        extra = [n for n in values if n not in own and not n.startswith("random.")]
        wrong = [n for n in own if n in values and values[n].shape != own[n].shape]
        if missing or extra or wrong:
            words = f"missing: {missing[:5]}, not known here: {extra[:5]}, other shapes: {wrong[:5]}"
            raise RunError("resume", f"{path} belongs to another network or other settings. {words}.")
        for name, tensor in own.items():
            tensor.assign(as_tensor(values[name]).astype(tensor.dtype))
        default_generator.state = (values["random.key"], values["random.offset"])
        facts = json.loads(texts["training"])
        self.loader.load(facts["loader"])
        self.epoch, self.steps, self.batches = facts["epoch"], facts["steps"], facts["batches"]
        self.seconds = facts["seconds"]
        self.history, self.best = facts["history"], facts["best"]
