"""The network of a training whose layers are split between processes (parallel="model:2"): which, how, and what cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import nn
from ..errors import UserError
from ..graph.node import Type
from ..mesh.parts import Part, part_of
from ..nn.module import Module
from ..parallel.sizes import MODEL
from ..parallel.split.choose import WHOLE, SplitChoice, choose_split
from ..parallel.split.rules import FOLLOWING, SPLITS
from ..parallel.split.split import split
from ..report.text_format import listed
from .ranks import Ranks


class SplitNetwork:
    """The network as this process has it: whole, or its parts of layers."""

    def __init__(
        self, model: Module, input: Type, train: Any, ranks: Ranks, tell: Callable[[str], None] = lambda text: None
    ) -> None:
        self.model, self.tell = model, tell if ranks.leads else lambda text: None
        self.parts: dict[str, Part] = {}  # how tensors were cut, by name
        size = ranks.sizes.model
        if size == 1:
            return
        micro_batch = Type((train.batch // ranks.micro_batches, *input.shape[1:]), input.dtype)
        _check_rules(model, micro_batch, size, ranks)
        choice = choose_split(model, micro_batch, ranks=size, all_layers=True)
        if not choice.plan:
            raise _refused(ranks, f"no layer of the network can be cut into {size} equal parts")
        self.tell(_text(choice))
        self.model = split(model, micro_batch, axis=MODEL, plan=choice.plan)
        found = {name: part_of(tensor) for name, tensor in self.model.named_tensors().items()}
        self.parts = {name: part for name, part in found.items() if part is not None}


def _check_rules(model: Module, input: Type, size: int, ranks: Ranks) -> None:
    """Raise an error if layers that compute products have no rule by which they are split."""
    paths = model.named_modules()
    inside = [path for path, layer in paths.items() if type(layer) in SPLITS]
    unknown: dict[str, str] = {}
    for line in nn.summary(model, input).lines:
        layer = paths.get(line.name)
        covered = any(line.name == path or line.name.startswith(f"{path}.") for path in inside)
        if layer is not None and line.macs and line.parameters and not covered and type(layer) not in FOLLOWING:
            unknown[line.name] = line.kind
    if unknown:
        shown = listed([f"{path or 'the network'} ({kind})" for path, kind in unknown.items()])
        verb = "has" if len(unknown) == 1 else "have"
        raise _refused(ranks, f"{shown} {verb} no rule by which several processes compute it together")


def _refused(ranks: Ranks, why: str) -> UserError:
    kinds = sorted({kind.__name__ for kind in SPLITS})
    return UserError(
        "fit",
        f"parallel={ranks.sizes} splits layers between {ranks.sizes.model} processes, and {why}. What can be split: {', '.join(kinds)}. "
        f"Use parallel=data:{ranks.processes} or parallel=pipeline:{ranks.processes}, or other layers.",
    )


def _text(choice: SplitChoice) -> str:
    whole = [layer.path for layer in choice.layers if layer.how == WHOLE]
    left = f"\n{listed(whole)}: computed whole by each process, because it has no equal parts" if whole else ""
    return f"layers are split between {choice.ranks} processes, by a model of what each choice costs:\n{choice}{left}"
