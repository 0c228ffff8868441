"""The layout of every group of values, given how layers are split: what they compute flows on until something needs it whole."""

from __future__ import annotations

from collections.abc import Mapping

from ...nn.module import Module
from .flow import Flow, LayerCall
from .layer import Shapes, SplitLayer
from .layout import Whole
from .rules import FOLLOWING

Rules = Mapping[Module, type[SplitLayer]]  # how layers are split
Layouts = Mapping[int, Whole]  # of groups of values


def rule_of(layer: Module, rules: Rules) -> type[SplitLayer]:
    """How a layer is split: as planned, or as its input is."""
    return rules.get(layer) or FOLLOWING[type(layer)]


def propagate(flow: Flow, rules: Rules, ranks: int) -> Layouts:
    """The layout of each group: the one that all layers which compute a value of it agree on, else whole.

    Groups begin unknown. Layers that follow their input are asked once that is known; a group changes at most twice, so this ends.
    """
    known: dict[int, Whole] = dict.fromkeys(flow.whole)
    changed = True
    while changed:
        before = dict(known)
        for call in flow.calls:
            _step(call, known, rules, ranks)
        changed = known != before
    return {group: known.get(group) for call in flow.calls for group in (call.source, call.result)}


def _step(call: LayerCall, known: dict[int, Whole], rules: Rules, ranks: int) -> None:
    follows, given = call.layer not in rules, known.get(call.source)
    if follows and call.source not in known:
        return
    natural = None
    if not follows or given is not None:
        found = rule_of(call.layer, rules).layouts(call.layer, given, Shapes(call.x, call.y, ranks))
        if found is None:
            known[call.source] = None
        else:
            natural = found[1]
    if known.setdefault(call.result, natural) != natural:
        known[call.result] = None
