"""`choose_split`: how to split a network, by a model of what every choice costs.

The time of a training step is that of its products and convolutions, divided among the processes where a layer is split, plus that of
the messages between them. A collective of p processes on n bytes takes, with latency a and bandwidth b, as rings do:
all_reduce 2 (p - 1) a + 2 (p - 1) / p n / b;  all_gather and reduce_scatter half of that;  shift a + n / b.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from typing import Any

from ...errors import UserError
from ...nn.module import Module, own_tensors
from .flow import FlowCall, flow_of
from .layer import ByBatch, Message, Shapes, SplitLayer
from .layout import Whole
from .propagate import Layouts, layouts_around, propagate, rule_of
from .region import ConvByRegion
from .rules import FOLLOWING, SPLITS, Plan, Rules, read_plan, splits_of

PASSES = 3  # a training step is a forward pass and a backward pass of twice its work
WHOLE = "whole"


@dataclass(frozen=True)
class Speeds:
    """What a step is computed and sent with; the defaults are those of processes on one machine."""

    flops: float = 3e10  # a second, of one process
    latency: float = 5e-6  # seconds of a message
    bandwidth: float = 5e9  # bytes a second between two processes

    def message_seconds(self, message: Message, ranks: int) -> float:
        """The time of a collective."""
        return _rounds(message, ranks) * self.latency + sent_bytes(message, ranks) / self.bandwidth


def _rounds(message: Message, ranks: int) -> int:
    return {"all_reduce": 2 * (ranks - 1), "shift": 1}.get(message.collective, ranks - 1)


def sent_bytes(message: Message, ranks: int) -> int:
    """The bytes that one process sends."""
    if message.collective == "shift":
        return message.nbytes
    times = 2 if message.collective == "all_reduce" else 1
    return times * message.nbytes * (ranks - 1) // ranks


@dataclass(frozen=True)
class LayerCosts:
    """What one layer does in a training step of one process."""

    flops: int
    messages: tuple[Message, ...]

    def seconds(self, speeds: Speeds, ranks: int) -> float:
        """The modelled time."""
        return self.flops / speeds.flops + sum(speeds.message_seconds(m, ranks) for m in self.messages)

    def sent(self, ranks: int) -> int:
        """The bytes that one process sends."""
        return sum(sent_bytes(m, ranks) for m in self.messages)


@dataclass(frozen=True)
class LayerChoice:
    """How one layer is split, what that costs, and the time of a step for every choice of this layer, all others unchanged."""

    path: str
    how: str
    costs: LayerCosts
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class SplitChoice:
    """A plan for `split`, and why. Print it."""

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


def choose_split(model: Module, *examples: Any, ranks: int, speeds: Speeds | None = None) -> SplitChoice:
    """The best plan found for `split`, given inputs or their shapes, with the batch. Nothing is computed or changed.

    >>> from weft import nn
    >>> net = nn.Sequential(nn.Linear(1024, 4096, activation="relu"), nn.Linear(4096, 1024))
    >>> choose_split(net, (512, 1024), ranks=4).plan
    {'layers.0': 'output', 'layers.1': 'input'}
    """
    search = PlanSearch(model, examples, ranks, speeds or Speeds())
    rules = search.best()
    paths = {layer: path for path, layer in model.named_modules().items()}
    costs = search.layer_costs(rules)
    layers = tuple(
        LayerChoice(
            paths[layer], rules[layer].how if layer in rules else WHOLE, costs[layer], search.alternatives(layer, rules)
        )
        for layer in search.options
    )
    plan = {paths[layer]: rule.how for layer, rule in rules.items()}
    return SplitChoice(dict(sorted(plan.items())), layers, ranks, search.seconds(rules), search.seconds({}))


def split_costs(model: Module, *examples: Any, plan: Plan, ranks: int) -> dict[str, LayerCosts]:
    """What every layer computes and sends in a training step of one process, by path. Nothing is computed or changed."""
    search = PlanSearch(model, examples, ranks, Speeds())
    costs = search.layer_costs(read_plan(model, plan))
    return {path: costs[layer] for path, layer in model.named_modules().items() if layer in costs}


class PlanSearch:
    """Descent over plans, from several uniform ones, by changing one layer or two that follow each other."""

    def __init__(self, model: Module, examples: Sequence[Any], ranks: int, speeds: Speeds) -> None:
        self.ranks, self.speeds = ranks, speeds
        self.flow = flow_of(model, examples, [m for m in model.modules() if type(m) in SPLITS or type(m) in FOLLOWING])
        self._found: dict[Any, tuple[Whole, Whole] | None] = {}  # layouts and costs that were asked for before
        self._costs: dict[Any, LayerCosts] = {}
        tied = _tied_tensors(model)
        self.options: dict[Module, list[type[SplitLayer] | None]] = {}
        for call in self.flow.calls:
            if type(call.layer) in SPLITS:
                self.options[call.layer] = [None, *self._possible(call, tied)]

    def find(self, call: FlowCall, rule: type[SplitLayer], given: Whole, ranks: int) -> tuple[Whole, Whole] | None:
        """The layouts that a split layer reads and computes."""
        key = id(call), id(rule), given
        if key not in self._found:
            self._found[key] = layouts_around(call, rule, given, ranks)
        return self._found[key]

    def _possible(self, call: FlowCall, tied: set[int]) -> Iterator[type[SplitLayer]]:
        shared = any(id(t) in tied or t.node in self.flow.outside for t in call.layer.named_tensors().values())
        for rule in splits_of(call.layer).values():
            if shared and rule not in (ByBatch, ConvByRegion):
                continue  # tied parameters are not cut
            with suppress(UserError):
                self.find(call, rule, None, self.ranks)
                yield rule

    def best(self) -> dict[Module, type[SplitLayer]]:
        """The fastest plan that was found."""
        starts = [
            self._uniform(order) for order in ((), ("batch",), ("region", "batch"), ("heads", "hidden", "output"))
        ]
        return min(map(self._descend, starts), key=self.seconds)

    def _uniform(self, order: Sequence[str]) -> dict[Module, type[SplitLayer]]:
        found = {}
        for layer, options in self.options.items():
            named = {o.how: o for o in options if o is not None}
            for how in order:
                if how in named:
                    found[layer] = named[how]
                    break
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

    def seconds(self, rules: Rules) -> float:
        """The modelled time of a training step."""
        return sum(costs.seconds(self.speeds, self.ranks) for _, costs in self._call_costs(rules))

    def layer_costs(self, rules: Rules) -> dict[Module, LayerCosts]:
        """The costs of every layer, all of its calls together."""
        found: dict[Module, LayerCosts] = {}
        for call, costs in self._call_costs(rules):
            before = found.get(call.layer, LayerCosts(0, ()))
            found[call.layer] = LayerCosts(before.flops + costs.flops, before.messages + costs.messages)
        return found

    def _call_costs(self, rules: Rules) -> list[tuple[FlowCall, LayerCosts]]:
        layouts: Layouts = propagate(self.flow, rules, self.ranks, self.find)
        return [
            (
                call,
                self._known_costs(call, self._active(call, rules, layouts), layouts[call.source], layouts[call.result]),
            )
            for call in self.flow.calls
        ]

    def _active(self, call: FlowCall, rules: Rules, layouts: Layouts) -> type[SplitLayer] | None:
        """How a layer is split; None if it is computed whole."""
        return None if layouts[call.source] is None and call.layer not in rules else rule_of(call.layer, rules)

    def _known_costs(self, call: FlowCall, rule: type[SplitLayer] | None, given: Whole, result: Whole) -> LayerCosts:
        key = id(call), id(rule), given, result
        if key not in self._costs:
            self._costs[key] = self._costs_of(call, rule, given, result)
        return self._costs[key]

    def _costs_of(self, call: FlowCall, rule: type[SplitLayer] | None, given: Whole, result: Whole) -> LayerCosts:
        flops = 2 * PASSES * call.macs
        if rule is None:
            return LayerCosts(flops, ())
        found = self.find(call, rule, given, self.ranks)
        assert found is not None
        wanted, natural = found
        messages = list(rule.traffic(call.layer, wanted, Shapes(call.x, call.y, self.ranks), call.itemsize))
        nbytes = prod(call.x) * call.itemsize
        if given is None and call.differentiated:
            messages.append(Message("all_reduce", nbytes))  # of the derivatives of the input
        elif given is not None and given != wanted:
            messages += [Message("all_gather", nbytes), Message("reduce_scatter", nbytes)]
        if natural is not None and result is None:
            messages.append(Message("all_gather", prod(call.y) * call.itemsize))
        return LayerCosts(flops // self.ranks, tuple(messages))


def _tied_tensors(model: Module) -> set[int]:
    """The ids of tensors that several modules have."""
    seen: set[int] = set()
    tied: set[int] = set()
    for module in model.modules():
        for _, tensor in own_tensors(module):
            (tied if id(tensor) in seen else seen).add(id(tensor))
    return tied
