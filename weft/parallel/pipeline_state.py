"""The tensors of a pipeline's stages: which stage holds which, and checkpoints of the whole network.

A checkpoint uses the names of a network and its optimizer in a single process, so it does not depend on the number of stages.
"""

from __future__ import annotations

import json
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

_OF_GROUP = re.compile(
    r"(\d+)\.(\d+)\.(\d+)\.(.*)"
)  # names of optimizer state: group, transform, parameter of the group, name of the state
_AVERAGE = re.compile(r"average\.(\d+)")  # of a parameter: its index among the parameters of all groups


def owners(model: Module, network: NetworkTrace, cuts: Sequence[CutPoint]) -> dict[str, list[int]]:
    """The stages that use each tensor. Unused tensors belong to the first stage."""
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
    """Free the values of all tensors except the named ones; names and shapes remain."""
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
        """Load this stage's tensors from those of the whole network."""
        missing, extra = [n for n in self.whole if n not in values], [n for n in values if n not in self.whole]
        wrong = [n for n, t in self.whole.items() if n in values and as_tensor(values[n]).shape != t.shape]
        if missing or extra or wrong:
            raise UserError(
                "Pipeline",
                f"the tensors of this network are required, got others. Missing: {missing}, extra: {extra}, wrong shapes: {wrong}.",
            )
        for name, tensor in self.own.items():
            tensor.assign(as_tensor(values[name]).astype(tensor.dtype))

    # --- the optimizer ------------------------------------------------------------------------------------------------------------

    def note_groups(self, optimizer: Optimizer) -> None:
        """Exchange to which optimizer group the parameters of each stage belong: names of the state contain their index in the group."""
        names = {id(tensor): name for name, tensor in self.parameters.items()}
        self._mine = [[names[id(p)] for p in group.parameters] for group in optimizer.groups]
        found = np.full(len(self.trained), -1, np.int64)
        for number, group in enumerate(self._mine):
            found[[self.trained.index(name) for name in group]] = number
        if self.mesh.size(self.axis) > 1:
            found = run_collective("all_reduce", found, self.axis, self.mesh.axes, "max", "summed")
        groups = range(max(len(self._mine), int(found.max()) + 1))
        self._groups = [[n for n, g in zip(self.trained, found.tolist(), strict=True) if g == number] for number in groups]  # fmt: skip

    def gather_optimizer(self, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The optimizer state of the whole network, gathered from the stages, in every process."""
        state = {name: as_tensor(value) for name, value in given.items()}
        found = {name: np.asarray(t.numpy()) for name, t in state.items() if self._owner(name) is None}
        local = {self._whole_name(name): tensor for name, tensor in state.items() if self._owner(name) is not None}
        for stage in range(self.mesh.size(self.axis)):
            mine = {n: (t.shape, t.dtype.name) for n, t in local.items() if stage == self._first(n) == self.here}
            for name, (shape, dtype) in json.loads(self._broadcast_text(json.dumps(mine), stage)).items():
                value = local[name] if stage == self.here else zeros(tuple(shape), dtype=as_dtype(dtype))
                found[name] = self._broadcast(np.asarray(value.numpy()), stage)
        return dict(sorted(found.items(), key=lambda item: _order(item[0])))

    def local_optimizer(self, names: Sequence[str], values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The values for the named state of this stage's optimizer, taken from that of the whole network; and the names left over."""
        places = {name: name if self._owner(name) is None else self._whole_name(name) for name in names}
        used = set(places.values())
        extra = [n for n in values if n not in used and self.parameter_of(n) in (None, *self.parameters)]
        return {name: values[place] for name, place in places.items() if place in values}, extra

    def load_optimizer(self, optimizer: Optimizer, values: Mapping[str, Any]) -> None:
        """Load the state of this stage's optimizer from that of the whole network."""
        found, extra = self.local_optimizer(list(optimizer.named_state()), values)
        optimizer.load({**found, **{name: values[name] for name in extra}})

    def parameter_of(self, name: str) -> str | None:
        """The parameter that a tensor of the whole optimizer state belongs to."""
        return _member(self._groups, name)

    def _owner(self, name: str) -> str | None:
        """The parameter that a tensor of this stage's optimizer belongs to."""
        return _member(self._mine, name)

    def _whole_name(self, name: str) -> str:
        parameter = self._owner(name)
        assert parameter is not None
        found = _OF_GROUP.fullmatch(name)
        if found is None:
            return f"average.{[n for group in self._groups for n in group].index(parameter)}"
        return f"{found[1]}.{found[2]}.{self._groups[int(found[1])].index(parameter)}.{found[4]}"

    def _first(self, name: str) -> int:
        """The first stage that has the state of this name in the whole network."""
        parameter = self.parameter_of(name)
        assert parameter is not None
        return self.stages_of[parameter][0]

    # --- exchange -----------------------------------------------------------------------------------------------------------------

    def _from_owner(self, name: str, local: Tensor | None, shape: Sequence[int], dtype: Any) -> np.ndarray:
        root = self.stages_of[name][0]
        value = local if self.here == root and local is not None else zeros(tuple(shape), dtype=dtype)
        return self._broadcast(np.asarray(value.numpy()), root)

    def _broadcast(self, value: np.ndarray, root: int) -> np.ndarray:
        if self.mesh.size(self.axis) == 1:
            return value
        return run_collective("broadcast", value, self.axis, self.mesh.axes, root)

    def _broadcast_text(self, text: str, root: int) -> str:
        content = np.frombuffer(text.encode(), np.uint8)
        length = int(self._broadcast(np.asarray(len(content)), root))
        return self._broadcast(np.resize(content, length), root).tobytes().decode()


def _order(name: str) -> tuple[int, ...]:
    """The sort key of a tensor of the optimizer state: tensors of no parameter first, averages last."""
    found, average = _OF_GROUP.fullmatch(name), _AVERAGE.fullmatch(name)
    return (
        (1, *map(int, found.groups()[:3])) if found is not None else (0,) if average is None else (2, int(average[1]))
    )


def _member(groups: Sequence[Sequence[str]], name: str) -> str | None:
    """The parameter of a tensor of an optimizer's state, given its name and the parameters of all groups."""
    found, average = _OF_GROUP.fullmatch(name), _AVERAGE.fullmatch(name)
    if found is None and average is None:
        return None
    members = (
        [n for group in groups for n in group] if found is None else dict(enumerate(groups)).get(int(found[1]), ())
    )
    number = int(found[3] if found is not None else average[1])  # type: ignore[index]
    return members[number] if number < len(members) else None
