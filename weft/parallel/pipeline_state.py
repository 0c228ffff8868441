"""The tensors of a pipeline's stages: which stage has which, and whole checkpoints of all of them.

A checkpoint has the names that the network and its optimizer have in one process, so it does not depend on the number of stages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dtypes import as_dtype
from ..errors import UserError
from ..mesh.mesh import Mesh, run_collective
from ..nn.module import Module, own_tensors, without_value
from ..ops.creation import zeros
from ..optim import Optimizer
from ..tensor import Tensor, as_tensor
from .pipeline_cuts import CutPoint, NetworkTrace

_OF_PARAMETER = re.compile(
    r"(\d+\.\d+\.|collected\.|average\.)(\d+)(.*)"
)  # names of optimizer state: which parameter's


def owners(model: Module, network: NetworkTrace, cuts: Sequence[CutPoint]) -> dict[str, list[int]]:
    """The stages that have each tensor: those that use it. Tensors that nothing uses belong to the first."""
    used: dict[Tensor, list[int]] = {}
    ends = [*cuts, None]
    for stage, (begin, end) in enumerate(zip([None, *cuts], ends, strict=True)):
        first = -1 if begin is None else begin.call.last
        last = len(network.calls) if end is None else end.call.last
        found = [network.tensors[n] for n in network.between(begin, end) if n in network.tensors]
        inside = [c.module for c in network.calls if first < c.number <= last]
        found += [t for module in inside for _, t in own_tensors(module) if not t.requires_grad]
        for tensor in dict.fromkeys(found):
            used.setdefault(tensor, []).append(stage)
    return {name: used.get(tensor, [0]) for name, tensor in model.named_tensors().items()}


def drop_others(model: Module, kept: set[str]) -> None:
    """Free the values of all tensors but those of these names; names and shapes remain."""
    others = {tensor: without_value(tensor) for name, tensor in model.named_tensors().items() if name not in kept}
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if not name.startswith("_") and not isinstance(value, Module):
                new = _replaced(value, others)
                if new is not value:
                    setattr(module, name, new)


def _replaced(value: Any, others: Mapping[Tensor, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return others.get(value, value)
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        new = [_replaced(v, others) for v in value]
        return value if all(a is b for a, b in zip(new, value, strict=True)) else type(value)(new)
    if isinstance(value, dict):
        made = {k: _replaced(v, others) for k, v in value.items()}
        return value if all(made[k] is v for k, v in value.items()) else made
    return value


class StageTensors:
    """The tensors of one stage by their names in the whole network."""

    def __init__(self, model: Module, mesh: Mesh, axis: str, stages_of: Mapping[str, list[int]]) -> None:
        self.model, self.mesh, self.axis, self.stages_of = model, mesh, axis, dict(stages_of)
        self.here = mesh.index(axis)
        self.whole = model.named_tensors()
        self.trained = list(model.named_parameters())  # of the whole network, in the order of its optimizer
        own = {name: tensor for name, tensor in self.whole.items() if self.here in stages_of[name]}
        self.own = own
        self.parameters = {name: own[name] for name in self.trained if name in own}
        self.state = {name: tensor for name, tensor in model.named_state().items() if name in own}
        self.shared = [name for name in self.trained if len(stages_of[name]) > 1]

    def gather(self) -> dict[str, np.ndarray]:
        """All tensors of the network, in every process."""
        return {name: self._from_owner(name, self.own.get(name), t.shape, t.dtype) for name, t in self.whole.items()}

    def load(self, values: Mapping[str, Any]) -> None:
        """Load this stage's tensors from those of a whole network."""
        missing, extra = [n for n in self.whole if n not in values], [n for n in values if n not in self.whole]
        wrong = [n for n, t in self.whole.items() if n in values and as_tensor(values[n]).shape != t.shape]
        if missing or extra or wrong:
            raise UserError(
                "Pipeline", f"values of another network. Missing: {missing}, extra: {extra}, other shapes: {wrong}."
            )
        for name, tensor in self.own.items():
            tensor.assign(as_tensor(values[name]).astype(tensor.dtype))

    # --- the optimizer ------------------------------------------------------------------------------------------------------------

    def gather_optimizer(self, optimizer: Optimizer) -> dict[str, np.ndarray]:
        """The state of an optimizer of the whole network, in every process."""
        own, found = optimizer.named_state(), dict[str, np.ndarray]()
        mine = list(self.parameters)
        for name, tensor in own.items():
            if not _OF_PARAMETER.fullmatch(name):
                found[name] = np.asarray(tensor.numpy())
        patterns = self._patterns(own)
        for number, parameter in enumerate(self.trained):
            for begin, end in patterns:
                local = own.get(f"{begin}{mine.index(parameter)}{end}") if parameter in self.parameters else None
                shape, dtype = self._shape_from_owner(parameter, local)
                found[f"{begin}{number}{end}"] = self._from_owner(parameter, local, shape, dtype)
        return found

    def load_optimizer(self, optimizer: Optimizer, values: Mapping[str, Any]) -> None:
        """Load the state of this stage's optimizer from that of the whole network."""
        mine = list(self.parameters)
        found = {}
        for name in optimizer.named_state():
            match = _OF_PARAMETER.fullmatch(name)
            place = name if match is None else f"{match[1]}{self.trained.index(mine[int(match[2])])}{match[3]}"
            if place not in values:
                raise UserError("Pipeline", f"this is another optimizer's state: {place} is missing.")
            found[name] = values[place]
        optimizer.load(found)

    def _patterns(self, own: Mapping[str, Tensor]) -> list[tuple[str, str]]:
        """What the names of one parameter's state begin and end with; the same for all parameters."""
        found = [m for name in own if (m := _OF_PARAMETER.fullmatch(name))]
        return list(dict.fromkeys((m[1], m[3]) for m in found))

    def _shape_from_owner(self, name: str, local: Tensor | None) -> tuple[tuple[int, ...], Any]:
        """The shape and dtype of a tensor that only its owner knows."""
        known = [len(local.shape), *local.shape] if local is not None else [0]
        words = np.zeros(16, np.int64)
        words[: len(known)] = known
        kind = np.zeros(16, np.uint8)
        if local is not None:
            kind[: len(local.dtype.name)] = list(local.dtype.name.encode())
        words, kind = (self._broadcast(a, self.stages_of[name][0]) for a in (words, kind))
        shape = tuple(int(n) for n in words[1 : 1 + words[0]])
        return shape, as_dtype(bytes(kind).rstrip(b"\0").decode())

    def _from_owner(self, name: str, local: Tensor | None, shape: Sequence[int], dtype: Any) -> np.ndarray:
        root = self.stages_of[name][0]
        value = local if self.here == root and local is not None else zeros(tuple(shape), dtype=dtype)
        return self._broadcast(np.asarray(value.numpy()), root)

    def _broadcast(self, value: np.ndarray, root: int) -> np.ndarray:
        if self.mesh.size(self.axis) == 1:
            return value
        return run_collective("broadcast", value, self.axis, self.mesh.axes, root)
