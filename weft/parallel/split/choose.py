"""`choose_split`: how to split a network, by a cost model of every choice; see costs.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, product
from typing import Any

from ...errors import UserError
from ...nn.module import Module, own_tensors
from ...records import dataclass
from .costs import LayerCosts, PlanCosts, Speeds, flow_of_all
from .flow import FlowCall
from .layer import ByBatch, SplitLayer
from .region import ConvByRegion
from .rules import SPLITS, Rules, splits_of

WHOLE = "whole"


@dataclass(frozen=True)
class LayerChoice:
    """How one layer is split, its costs, and the time of a step for every choice of this layer, with all others unchanged."""

    path: str
    how: str
    costs: LayerCosts
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class SplitChoice:
    """A plan for `split`, and its reasons. Print it."""

    plan: dict[str, str]
    layers: tuple[LayerChoice, ...]
    ranks: int
    seconds: float  # of a step
    alone: float  # of a step of one process

    def __str__(self) -> str:
        rows = [("layer", "split", "MFLOP", "KB sent", "step, if split so")]
        for one in self.layers:
            times = ", ".join(f"{how} {_ms(s)}" for how, s in sorted(one.seconds.items(), key=lambda item: item[1]))
            rows.append(
                (
                    one.path or "·",
                    one.how,
                    f"{one.costs.flops / 1e6:.2f}",
                    f"{one.costs.sent(self.ranks) / 1e3:.1f}",
                    times,
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                [r[0].ljust(widths[0]), r[1].ljust(widths[1]), r[2].rjust(widths[2]), r[3].rjust(widths[3]), r[4]]
            )
            for r in rows
        ]
        speedup = self.alone / self.seconds
        total = f"{self.ranks} processes: {_ms(self.seconds)} a step, {speedup:.2f} times as fast as one ({_ms(self.alone)})"
        return "\n".join([*lines, total])


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1.0 else f"{seconds:.3g} s"


def choose_split(
    model: Module, *examples: Any, ranks: int, speeds: Speeds | None = None, all_layers: bool = False
) -> SplitChoice:
    """The best plan found for `split`, given inputs or their shapes, including the batch. Nothing is computed or changed.

    With `all_layers`, every layer that can be split is split, even where it would be faster whole.

    >>> from weft import nn
    >>> net = nn.Sequential(nn.Linear(1024, 4096, activation="relu"), nn.Linear(4096, 1024))
    >>> choose_split(net, (512, 1024), ranks=4).plan
    {'layers.0': 'output', 'layers.1': 'input'}
    """
    search = PlanSearch(model, examples, ranks, speeds or Speeds(), all_layers=all_layers)
    rules = search.best()
    paths = {layer: path for path, layer in model.named_modules().items()}
    costs = search.costs.by_layer(rules)
    layers = tuple(
        LayerChoice(
            paths[layer], rules[layer].how if layer in rules else WHOLE, costs[layer], search.alternatives(layer, rules)
        )
        for layer in search.options
    )
    plan = {paths[layer]: rule.how for layer, rule in rules.items()}
    return SplitChoice(dict(sorted(plan.items())), layers, ranks, search.seconds(rules), search.seconds({}))


class PlanSearch:
    """Local search over plans, from several uniform ones, by changing one layer or two consecutive ones."""

    def __init__(
        self, model: Module, examples: Sequence[Any], ranks: int, speeds: Speeds, *, all_layers: bool = False
    ) -> None:
        self.ranks, self.speeds = ranks, speeds
        self.flow = flow_of_all(model, examples)
        self.costs = PlanCosts(self.flow, ranks)
        tied = _tied_tensors(model)
        self.options: dict[Module, list[type[SplitLayer] | None]] = {}
        for call in self.flow.calls:
            if type(call.layer) in SPLITS:
                possible: list[type[SplitLayer] | None] = list(self._possible(call, tied))
                self.options[call.layer] = possible if all_layers and possible else [None, *possible]

    def seconds(self, rules: Rules) -> float:
        """The modelled time of a training step."""
        return self.costs.seconds(rules, self.speeds)

    def _possible(self, call: FlowCall, tied: set[int]) -> Iterator[type[SplitLayer]]:
        shared = any(id(t) in tied or t.node in self.flow.outside for t in call.layer.named_tensors().values())
        for rule in splits_of(call.layer).values():
            if shared and rule not in (ByBatch, ConvByRegion):
                continue  # tied parameters are not split
            with suppress(UserError):
                self.costs.find(call, rule, None, self.ranks)
                yield rule

    def best(self) -> dict[Module, type[SplitLayer]]:
        """The fastest plan found."""
        starts = [
            self._uniform(order) for order in ((), ("batch",), ("region", "batch"), ("heads", "hidden", "output"))
        ]
        return min(map(self._descend, starts), key=self.seconds)

    def _uniform(self, order: Sequence[str]) -> dict[Module, type[SplitLayer]]:
        found = {}
        for layer, options in self.options.items():
            named = {o.how: o for o in options if o is not None}
            chosen = next((named[how] for how in order if how in named), options[0])
            if chosen is not None:
                found[layer] = chosen
        return found

    def _descend(self, rules: Mapping[Module, type[SplitLayer]]) -> dict[Module, type[SplitLayer]]:
        current, time = dict(rules), self.seconds(rules)
        improved = True
        while improved:
            improved = False
            for changes in self._moves():
                tried = {k: v for k, v in {**current, **changes}.items() if v is not None}
                seconds = self.seconds(tried)
                if seconds < time * (1.0 - 1e-9):
                    current, time, improved = tried, seconds, True
        return current

    def _moves(self) -> Iterator[dict[Module, type[SplitLayer] | None]]:
        for layer, options in self.options.items():
            yield from ({layer: option} for option in options)
        for (a, first), (b, second) in pairwise(self.options.items()):
            yield from ({a: x, b: y} for x, y in product(first, second))

    def alternatives(self, layer: Module, rules: Rules) -> dict[str, float]:
        """The time of a step for each way to split one layer."""
        others = {k: v for k, v in rules.items() if k is not layer}
        return {
            WHOLE if option is None else option.how: self.seconds(
                others if option is None else {**others, layer: option}
            )
            for option in self.options[layer]
        }


def _tied_tensors(model: Module) -> set[int]:
    """The ids of tensors that several modules share."""
    seen: set[int] = set()
    tied: set[int] = set()
    for module in model.modules():
        for _, tensor in own_tensors(module):
            (tied if id(tensor) in seen else seen).add(id(tensor))
    return tied
