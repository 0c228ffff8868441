"""Cost model of a plan: the compute and communication of every layer in a training step, from traced shapes alone.

The time of a training step is that of its products and convolutions, divided among the processes where a layer is split, plus that of
communication. A ring collective of p processes on n bytes takes, with latency a and bandwidth b:
all_reduce 2 (p - 1) a + 2 (p - 1) / p n / b;  all_gather and reduce_scatter half of that;  shift a + n / b.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ...graph.node import Shape
from ...mesh.parts import part_length
from ...nn.module import Module
from ...records import dataclass
from .flow import Flow, FlowCall, flow_of
from .layer import Message, Shapes, SplitLayer
from .layout import Whole
from .propagate import Layouts, layouts_around, propagate, rule_of
from .rules import FOLLOWING, SPLITS, Plan, Rules, read_plan

PASSES = 3  # a backward pass takes twice the work of a forward pass


@dataclass(frozen=True)
class Speeds:
    """The speeds of computation and communication; the defaults are for processes on one machine."""

    flops: float = 3e10  # per second, of one process
    latency: float = 5e-6  # seconds per message
    bandwidth: float = 5e9  # bytes per second between two processes

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
    """The work of one layer in a training step of one process."""

    flops: int
    messages: tuple[Message, ...]

    def seconds(self, speeds: Speeds, ranks: int) -> float:
        """The modelled time."""
        return self.flops / speeds.flops + sum(speeds.message_seconds(m, ranks) for m in self.messages)

    def sent(self, ranks: int) -> int:
        """The bytes that one process sends."""
        return sum(sent_bytes(m, ranks) for m in self.messages)


def split_costs(model: Module, *examples: Any, plan: Plan, ranks: int) -> dict[str, LayerCosts]:
    """The compute and communication of every layer in a training step of one process, by path. Nothing is computed or changed."""
    costs = PlanCosts(flow_of_all(model, examples), ranks).by_layer(read_plan(model, plan))
    return {path: costs[layer] for path, layer in model.named_modules().items() if layer in costs}


def flow_of_all(model: Module, examples: Any) -> Flow:
    """How values flow between all layers that can be split or that follow their input."""
    return flow_of(model, examples, [m for m in model.modules() if type(m) in SPLITS or type(m) in FOLLOWING])


class PlanCosts:
    """The costs of plans for one network. Results for one plan are cached for the next."""

    def __init__(self, flow: Flow, ranks: int) -> None:
        self.flow, self.ranks = flow, ranks
        self._found: dict[Any, tuple[Whole, Whole] | None] = {}
        self._costs: dict[Any, LayerCosts] = {}

    def seconds(self, rules: Rules, speeds: Speeds) -> float:
        """The modelled time of a training step."""
        return sum(costs.seconds(speeds, self.ranks) for _, costs in self._by_call(rules))

    def by_layer(self, rules: Rules) -> dict[Module, LayerCosts]:
        """The costs of every layer, summed over its calls."""
        found: dict[Module, LayerCosts] = {}
        for call, costs in self._by_call(rules):
            before = found.get(call.layer, LayerCosts(0, ()))
            found[call.layer] = LayerCosts(before.flops + costs.flops, before.messages + costs.messages)
        return found

    def find(self, call: FlowCall, rule: type[SplitLayer], given: Whole, ranks: int) -> tuple[Whole, Whole] | None:
        """The layouts of a split layer's input and result."""
        key = id(call), id(rule), given
        if key not in self._found:
            self._found[key] = layouts_around(call, rule, given, ranks)
        return self._found[key]

    def _by_call(self, rules: Rules) -> list[tuple[FlowCall, LayerCosts]]:
        layouts: Layouts = propagate(self.flow, rules, self.ranks, self.find)
        found, made = [], set()
        for call in self.flow.calls:
            given, result = layouts[call.source], layouts[call.result]
            whole = given is None and call.layer not in rules
            rule = None if whole else rule_of(call.layer, rules)
            again = rule is not None and self._shares_input(call, rule, given) and call.value in made
            if rule is not None and self._shares_input(call, rule, given):
                made.add(call.value)
            key = id(call), id(rule), given, result, again
            if key not in self._costs:
                self._costs[key] = self._costs_of(call, rule, given, result, again)
            found.append((call, self._costs[key]))
        return found

    def _shares_input(self, call: FlowCall, rule: type[SplitLayer], given: Whole) -> bool:
        """Whether layers that read the same value share its communication: its all-gather, or the all-reduce of its gradients."""
        wanted = self._layouts(call, rule, given)[0]
        return wanted is None if given is None else given != wanted

    def _layouts(self, call: FlowCall, rule: type[SplitLayer], given: Whole) -> tuple[Whole, Whole]:
        found = self.find(call, rule, given, self.ranks)
        assert found is not None
        return found

    def _costs_of(
        self, call: FlowCall, rule: type[SplitLayer] | None, given: Whole, result: Whole, again: bool
    ) -> LayerCosts:
        flops = 2 * PASSES * call.macs
        if rule is None:
            return LayerCosts(flops, ())
        wanted, natural = self._layouts(call, rule, given)
        shapes = Shapes(call.x, call.y, self.ranks)
        messages = rule.traffic(call.layer, wanted, shapes, call.itemsize, call.differentiated)
        messages += [] if again else self._input_messages(call, given, wanted)
        if natural is not None and result is None:
            messages.append(Message("all_gather", self._nbytes(call, call.y, natural)))
        return LayerCosts(flops // self.ranks, tuple(messages))

    def _input_messages(self, call: FlowCall, given: Whole, wanted: Whole) -> list[Message]:
        """The messages that convert an input to the layout that a layer needs, and its gradients back."""
        if given is not None and given != wanted:
            return [Message(name, self._nbytes(call, call.x, given)) for name in ("all_gather", "reduce_scatter")]
        if given is not None or not call.differentiated:
            return []
        return [Message("all_reduce" if wanted is None else "all_gather", self._nbytes(call, call.x, wanted))]

    def _nbytes(self, call: FlowCall, shape: Shape, layout: Whole) -> int:
        """The bytes of a tensor, with the padding of its parts."""
        count = prod(shape) * call.itemsize
        if layout is None or layout.size is None:
            return count
        return count // layout.size * part_length(layout.size, self.ranks) * self.ranks
