"""The network of a training whose layers are split between processes (parallel="model:2"): which, how, and what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import nn
from ..errors import UserError
from ..graph.node import Type
from ..mesh.parts import Part, part_of
from ..nn.module import Module
from ..parallel.forms import MODEL
from ..parallel.sizes import ParallelSizes
from ..parallel.split.choose import WHOLE, SplitChoice, choose_split
from ..parallel.split.layer import ByBatch
from ..parallel.split.rules import FOLLOWING, SPLITS
from ..parallel.split.split import split
from ..report.text_format import listed
from .ranks import Ranks


class SplitNetwork:
    """The part of the network that this process holds: all of it, or shards of its layers."""

    def __init__(
        self, model: Module, input: Type, train: Any, ranks: Ranks, tell: Callable[[str], None] = lambda text: None
    ) -> None:
        self.model, self.tell = model, tell if ranks.leads else lambda text: None
        self.parts: dict[str, Part] = {}  # how tensors were cut, by name
        self.multiple = 1  # of examples that it takes
        if ranks.sizes.model == 1:
            return
        micro_batch = Type((train.batch // ranks.micro_batches, *input.shape[1:]), input.dtype)
        choice = layer_splits(model, micro_batch, ranks.sizes)
        self.tell(_text(choice))
        self.multiple = ranks.sizes.model if ByBatch.how in choice.plan.values() else 1
        self.model = split(model, micro_batch, axis=MODEL, plan=choice.plan)
        found = {name: part_of(tensor) for name, tensor in self.model.named_tensors().items()}
        self.parts = {name: part for name, part in found.items() if part is not None}


def layer_splits(model: Module, micro_batch: Type, sizes: ParallelSizes) -> SplitChoice:
    """How the layers of a network are split between processes; an error if they cannot be."""
    _check_rules(model, micro_batch, sizes)
    choice = choose_split(model, micro_batch, ranks=sizes.model, all_layers=True)
    if not choice.plan:
        raise _refused(sizes, f"no layer of the network can be cut into {sizes.model} equal parts")
    return choice


def _check_rules(model: Module, input: Type, sizes: ParallelSizes) -> None:
    """Raise an error if layers that compute products have no rule by which they are split."""
    paths = model.named_modules()
    split = {path for path, layer in paths.items() if type(layer) in SPLITS}
    unknown: dict[str, None] = {}
    for line in nn.summary(model, input).lines:
        above = [path for path in _above(line.name) if path in paths]
        if (
            line.macs
            and line.parameters
            and type(paths.get(line.name)) not in FOLLOWING
            and not split.intersection(above)
        ):
            unknown[_outermost(above, split)] = None
    if unknown:
        shown = listed([f"{path or 'the network'} ({type(paths[path]).__name__})" for path in unknown])
        verb, it = ("has", "it") if len(unknown) == 1 else ("have", "them")
        raise _refused(sizes, f"{shown} {verb} no rule by which several processes compute {it} together")


def _above(path: str) -> list[str]:
    """A path and those of the modules that it lies in, the innermost first.

    >>> _above("body.lstm")
    ['body.lstm', 'body', '']
    """
    names = path.split(".") if path else []
    return [".".join(names[:n]) for n in range(len(names), -1, -1)]


def _outermost(above: Sequence[str], split: set[str]) -> str:
    """The largest module around a layer in which nothing can be split: users know its name better than those of its parts."""
    alone = [path for path in above if not any(one == path or one.startswith(f"{path}.") or not path for one in split)]
    return alone[-1] if alone else above[0]


def _refused(sizes: ParallelSizes, why: str) -> UserError:
    kinds = sorted({kind.__name__ for kind in SPLITS})
    return UserError(
        "fit",
        f"parallel={sizes} splits layers between {sizes.model} processes, and {why}. What can be split: {', '.join(kinds)}. "
        f"Use parallel=data:{sizes.processes} or parallel=pipeline:{sizes.processes}, or other layers.",
    )


def _text(choice: SplitChoice) -> str:
    whole = [layer.path for layer in choice.layers if layer.how == WHOLE]
    left = f"\ncomputed whole by each process, for want of equal parts: {listed(whole)}" if whole else ""
    return f"layers are split between {choice.ranks} processes, by a model of what each choice costs:\n{choice}{left}"
