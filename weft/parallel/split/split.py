"""`split`: a network whose layers are computed by several processes together, each a part.

    mesh = parallel.Mesh(data=2, model=4)
    model = parallel.split(model, (32, 784), plan={"layers.0": "output", "layers.2": "input"})

Every process builds the same network (from the same seed), and keeps its parts of the parameters. A tensor that is cut between two
layers stays so if the next one wants it so; else it is gathered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from ...errors import UserError
from ...hints import nearest
from ...mesh import mesh as meshes
from ...mesh.parts import part_of
from ...nn.module import Module, own_tensors
from ...nn.replace import replace_layers
from ...nn.transformer import SelfAttentionLayer
from .flow import Flow, flow_of
from .layer import Place, Shapes, SplitLayer
from .propagate import Layouts, Rules, propagate, rule_of
from .rules import FOLLOWING, splits_of

M = TypeVar("M", bound=Module)
Plan = Mapping[
    str, str | None
]  # how to split layers, by their paths, in which * stands for any name; the last that fits holds


def split(model: M, *examples: Any, axis: str = "model", plan: Plan) -> M:
    """Replace layers of a network by split ones, in place. The examples are inputs or their shapes, with the batch.

    Linear layers are split by "output", "input" or "batch", convolutions also by "region", embeddings by "vocabulary" or "output",
    MultiHeadAttention by "heads", FeedForward by "hidden", and a whole TransformerBlock by "heads". Norms, pooling and activations
    between them follow. Random numbers must be drawn alike in all processes along the axis.
    """
    rules = read_plan(model, plan)
    flow = flow_of(model, examples, [m for m in model.modules() if m in rules or type(m) in FOLLOWING])
    _check_called(model, rules, flow)
    ranks = meshes.current().size(axis)
    layouts = propagate(flow, rules, ranks)
    new = _split_layers(flow, rules, layouts, axis, ranks)
    _check_cuts(model, flow, new)
    if model in new:
        return new[model]  # type: ignore[return-value]
    replace_layers(model, new)
    return model


def read_plan(model: Module, plan: Plan) -> Rules:
    """How each layer is split, given a plan by paths."""
    modules = model.named_modules()
    found: dict[Module, type[SplitLayer] | None] = {}
    for pattern, how in plan.items():
        paths = [path for path in modules if _fits(path, pattern)]
        if not paths:
            raise UserError("split", f"there is no layer {pattern!r}. {nearest(pattern, [p for p in modules if p])}")
        for path in paths:
            for layer, wanted in _parts_to_split(modules[path], how):
                found[layer] = None if wanted is None else _rule(path, layer, wanted)
    return {layer: rule for layer, rule in found.items() if rule is not None}


def _fits(path: str, pattern: str) -> bool:
    """Whether a path fits a pattern, name by name: "blocks.*" fits "blocks.0", not "blocks.0.norm"."""
    names, patterns = path.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))


def _parts_to_split(layer: Module, how: str | None) -> list[tuple[Module, str | None]]:
    if isinstance(layer, SelfAttentionLayer) and how in ("heads", None):
        return [(layer.attention, how), (layer.feed_forward, how and "hidden")]
    return [(layer, how)]


def _rule(path: str, layer: Module, how: str) -> type[SplitLayer]:
    known = splits_of(layer)
    if how not in known:
        ways = f"can be split by {', '.join(known)}" if known else "cannot be split"
        raise UserError("split", f"{path or 'the network'} is a {type(layer).__name__}, which {ways}, got {how!r}.")
    return known[how]


def _check_called(model: Module, rules: Rules, flow: Flow) -> None:
    called = {call.layer for call in flow.calls}
    for path, layer in model.named_modules().items():
        if layer in rules and layer not in called:
            raise UserError(
                "split", f"{path} is not called by the network, so it is not known where its inputs come from."
            )


def _split_layers(flow: Flow, rules: Rules, layouts: Layouts, axis: str, ranks: int) -> dict[Module, Module]:
    """The split layers that take the places of layers."""
    places: dict[Module, Place] = {}
    chosen: dict[Module, type[SplitLayer]] = {}
    for call in flow.calls:
        rule, given = rule_of(call.layer, rules), layouts[call.source]
        if rule is None or (given is None and call.layer not in rules):
            continue  # it follows whole inputs: it stays as it is
        shapes = Shapes(call.x, call.y, ranks)
        chosen[call.layer] = rule
        found = rule.layouts(call.layer, given, shapes)
        assert found is not None
        place = Place(axis, given, *found, layouts[call.result], shapes)
        if places.setdefault(call.layer, place).shapes.x[1:] != call.x[1:]:
            raise UserError(
                "split", f"{type(call.layer).__name__} is called with inputs of several shapes and cannot be split."
            )
    return {layer: chosen[layer](layer, place) for layer, place in places.items()}


def _check_cuts(model: Module, flow: Flow, new: Mapping[Module, Module]) -> None:
    """Raise an error if a parameter that was cut is used elsewhere, too."""
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
