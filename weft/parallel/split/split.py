"""`split`: a network whose layers are computed by several processes together, each a part of every layer.

    mesh = parallel.Mesh(data=2, model=4)
    model = parallel.split(model, (32, 784), plan={"layers.0": "output", "layers.2": "input"})

Every process builds the same network (from the same seed), and keeps its parts of the parameters. A tensor that is split between two
layers stays split if the next one needs the same layout; else it is gathered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from ...errors import UserError
from ...mesh import mesh as meshes
from ...mesh.parts import part_of
from ...nn.module import Module, own_tensors, without_value
from ...nn.replace import replace_layers, replace_tensors
from .choose import choose_split
from .flow import Flow, flow_of
from .layer import Shapes, SplitLayer, SplitPlace
from .propagate import Layouts, propagate, rule_of
from .rules import FOLLOWING, Plan, Rules, read_plan

M = TypeVar("M", bound=Module)


def split(
    model: M, *examples: Any, axis: str = "model", plan: Plan | Literal["auto"] = "auto", gather: bool = True
) -> M:
    """Replace layers of a network with split ones, in place. The examples are inputs or their shapes, including the batch.

    Linear layers are split by "output", "input" or "batch", convolutions also by "region", embeddings by "vocabulary" or "output",
    MultiHeadAttention by "heads", FeedForward by "hidden", and a whole TransformerBlock by "heads". Norms, pooling and activations
    between them follow. "auto" is the plan of `choose_split`. Without `gather`, split outputs of the network stay split, for
    `split_cross_entropy`. All processes along the axis must draw the same random numbers.
    """
    ranks = meshes.current().size(axis)
    rules = read_plan(model, choose_split(model, *examples, ranks=ranks).plan if plan == "auto" else plan)
    layers = [m for m in model.modules() if m in rules or type(m) in FOLLOWING]
    flow = flow_of(model, examples, layers, whole_results=gather)
    _check_called(model, rules, flow)
    layouts = propagate(flow, rules, ranks)
    new = _split_layers(flow, rules, layouts, axis, ranks)
    _check_cuts(model, flow, new)
    _free_whole_tensors(new)
    if model in new:
        return new[model]  # type: ignore[return-value]
    replace_layers(model, new)
    return model


def _check_called(model: Module, rules: Rules, flow: Flow) -> None:
    called = {call.layer for call in flow.calls}
    for path, layer in model.named_modules().items():
        if layer in rules and layer not in called:
            raise UserError(
                "split", f"{path} is not called by the network, so it is not known where its inputs come from."
            )


def _split_layers(flow: Flow, rules: Rules, layouts: Layouts, axis: str, ranks: int) -> dict[Module, Module]:
    """The split layers that replace layers."""
    places: dict[Module, SplitPlace] = {}
    chosen: dict[Module, type[SplitLayer]] = {}
    for call in flow.calls:
        rule, given = rule_of(call.layer, rules), layouts[call.source]
        if rule is None or (given is None and call.layer not in rules):
            continue  # it follows whole inputs: it stays unchanged
        shapes = Shapes(call.x, call.y, ranks)
        chosen[call.layer] = rule
        found = rule.layouts(call.layer, given, shapes)
        assert found is not None
        place = SplitPlace(axis, given, *found, layouts[call.result], shapes)
        if places.setdefault(call.layer, place).shapes.x[1:] != call.x[1:]:
            raise UserError(
                "split", f"{type(call.layer).__name__} is called with inputs of several shapes and cannot be split."
            )
    return {layer: chosen[layer](layer, place) for layer, place in places.items()}


def _free_whole_tensors(new: Mapping[Module, Module]) -> None:
    """Free the values of tensors of which each process now has its part; the replaced layers keep their shapes."""
    for layer, made in new.items():
        parts = made.named_tensors()
        cut = {t: without_value(t) for name, t in layer.named_tensors().items() if part_of(parts[name]) is not None}
        replace_tensors(layer, cut)


def _check_cuts(model: Module, flow: Flow, new: Mapping[Module, Module]) -> None:
    """Raise an error if a parameter that was split is also used elsewhere."""
    uses = Counter(id(tensor) for module in model.modules() for _, tensor in own_tensors(module))
    paths = {id(tensor): path for path, tensor in model.named_tensors().items()}
    for layer, made in new.items():
        after = made.named_tensors()
        for name, tensor in layer.named_tensors().items():
            if part_of(after[name]) and (uses[id(tensor)] > 1 or tensor.node in flow.outside):
                raise UserError(
                    "split",
                    f"{paths[id(tensor)]} is used by something else than its layer (tied weights), so it cannot be cut. "
                    f"Leave that layer out of the plan.",
                )
