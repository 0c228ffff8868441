"""Where the tensors of a training are: in every process, cut into parts between some of them, or in one stage of a pipeline.

Checkpoints do not depend on it: they hold whole tensors, under the names that they have in a single process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..mesh.parts import Part
from ..nn.module import Module
from ..optim import Optimizer
from ..optim.optimizer import COLLECTED
from ..parallel.pipeline_state import StageTensors
from ..parallel.split.state import gathered_parts, make_whole, own_parts, own_value, whole_value
from ..tensor import Tensor


class TensorPlaces:
    """The tensors of a network and its optimizer that this process has, and the whole ones.

    `parts` says how tensors were cut along the axis `model`, by name; `stages` which of them this stage of a pipeline has.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        parts: Mapping[str, Part] | None = None,
        stages: StageTensors | None = None,
    ) -> None:
        self.model, self.optimizer, self.parts, self.stages = model, optimizer, dict(parts or {}), stages

    def network(self) -> dict[str, Tensor]:
        """The tensors of the network that this process has, by name."""
        return self.model.named_tensors() if self.stages is None else self.stages.own

    def whole_network(self) -> dict[str, Any]:
        """All tensors of the network; a collective call."""
        if self.stages is None and not self.parts:
            return dict(self.network())
        here = self.network() if self.stages is None else self.stages.gather()
        return {name: whole_value(value, self.parts.get(name)) for name, value in here.items()}

    def whole_optimizer(self) -> dict[str, Any]:
        """The state of the optimizer of the whole network; a collective call."""
        state: dict[str, Any] = self.optimizer.whole_state()
        if self.parts:
            state = gathered_parts(self.optimizer, state)
        return state if self.stages is None else self.stages.gather_optimizer(state)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all whole tensors of the network."""
        found = {name: t.shape for name, t in self.model.named_tensors().items()}
        for name, part in self.parts.items():
            found[name] = (*found[name][: part.dim], part.size, *found[name][part.dim + 1 :])
        return found

    def local_network(self, whole: Mapping[str, Any]) -> dict[str, Any]:
        """The parts of a whole network's tensors that belong to this process; their shapes were checked."""
        return {name: own_value(whole[name], self.parts.get(name), name) for name in self.network()}

    def local_optimizer(self, whole: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
        """The part of a whole optimizer's state that belongs to this process; missing names, and unknown names."""
        names = [n for n in self.optimizer.named_state() if n in whole or not n.startswith(COLLECTED)]
        extra = [name for name in whole if name not in names]
        if self.stages is not None:
            whole, extra = self.stages.local_optimizer(names, whole)
        missing = [f"optimizer.{name}" for name in names if name not in whole]
        known = {name: value for name, value in whole.items() if name in names}
        if missing or extra:
            return {}, missing, [f"optimizer.{name}" for name in extra]
        return self.optimizer.local_state(own_parts(self.optimizer, known)), [], []

    def make_whole(self, model: Module) -> None:
        """Restore all layers and values of the network that was passed to `fit`; a collective call."""
        if self.stages is not None or self.parts:
            make_whole(model, self.whole_network())
