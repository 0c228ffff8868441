"""Propagates layouts through groups of values, given how layers are split: a layout is kept until something needs the value whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...nn.module import Module
from .flow import Flow, FlowCall
from .layer import Shapes, SplitLayer
from .layout import Whole
from .rules import FOLLOWING, Rules

Layouts = Mapping[int, Whole]  # of groups of values
Find = Callable[[FlowCall, type[SplitLayer], Whole, int], tuple[Whole, Whole] | None]


def rule_of(layer: Module, rules: Rules) -> type[SplitLayer] | None:
    """How a layer is split: as planned, or following its input; None if it is computed whole."""
    return rules.get(layer) or FOLLOWING.get(type(layer))


def layouts_around(call: FlowCall, rule: type[SplitLayer], given: Whole, ranks: int) -> tuple[Whole, Whole] | None:
    """The layouts of a split layer's input and result."""
    return rule.layouts(call.layer, given, Shapes(call.x, call.y, ranks))


def propagate(flow: Flow, rules: Rules, ranks: int, find: Find = layouts_around) -> Layouts:
    """The layout of each group: the one on which all layers that compute one of its values agree, else whole.

    Groups start as unknown. Layers that follow their input are evaluated once its layout is known; a group changes at most twice, so this ends.
    """
    known: dict[int, Whole] = dict.fromkeys(flow.whole)
    changed = True
    while changed:
        before = dict(known)
        for call in flow.calls:
            _step(call, known, rules, ranks, find)
        changed = known != before
    return {group: known.get(group) for call in flow.calls for group in (call.source, call.result)}


def _step(call: FlowCall, known: dict[int, Whole], rules: Rules, ranks: int, find: Find) -> None:
    rule, given, natural = rule_of(call.layer, rules), known.get(call.source), None
    follows = call.layer not in rules
    if rule is None:
        known[call.source] = None
    elif follows and call.source not in known:
        return
    elif not follows or given is not None:
        found = find(call, rule, given, ranks)
        if found is None:
            known[call.source] = None
        else:
            natural = found[1]
    if known.setdefault(call.result, natural) != natural:
        known[call.result] = None
