"""Structured pruning of whole channels of convolutions and neurons of linear layers; `shrink` removes them from the tensors.

    prune_channels(model, example, 0.5)     # masks: half of the channels of every layer is kept; retrain
    shrink(model, example)                  # smaller tensors and the same results

Channels that are tied by an addition, a depthwise convolution or a concatenation are removed together. The layers that read them, also batch norms
and linear layers after a flatten, are cut accordingly: the graph is followed to find where (channel_labels.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import UserError
from ..graph.node import Node, placeholder
from ..hints import nearest
from ..nn.conv import Conv1d, Conv2d, Conv3d
from ..nn.module import Module
from ..nn.replace import replace_tensors
from ..nn.summary import traced_calls
from ..ops.convert import asarray
from ..ops.convert import parameter as as_parameter
from ..records import dataclass
from ..tensor import Tensor, wrap
from ..zoo.resnet import Shortcut
from .channel_labels import FIXED, ChannelLabels
from .layers import Weight, weights_of
from .masks import Mask
from .parametrize import parametrizations
from .prune import Scope, densities, set_mask


@dataclass(frozen=True)
class ChannelGroup:
    """Tied channels, in the layers that produce them; `labels` names each channel."""

    layers: tuple[str, ...]
    labels: np.ndarray
    importance: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


def channel_groups(model: Module, example: Any) -> list[ChannelGroup]:
    """The channels of a network that can be removed. Their importance is the norm of their filters, relative to the mean of the layer."""
    return _groups(model, _labelled(model, example)[0])


def prune_channels(
    model: Module, example: Any, density: float | dict[str, float], *, scope: Scope = "layer"
) -> dict[str, float]:
    """Mask the least important channels to reach this density, in each layer or in the whole network; returns the densities of all weights.

    `example` is an input of the network, or its shape with the batch. A density by layer applies to all layers tied to it.
    """
    if scope not in ("layer", "global"):
        raise UserError("prune_channels", f"scope must be 'layer' or 'global', got {scope!r}.")
    for one in weights_of(model).values():
        one.finite_value("prune_channels")
    labels, _ = _labelled(model, example)
    groups = _groups(model, labels)
    wanted = _wanted(model, labels, groups, density)
    if scope == "global":
        if isinstance(density, dict):
            raise UserError("prune_channels", "one density is required with scope='global', got one for each layer.")
        wanted = _shares_of_all(groups, density)
    gone = np.concatenate([groups[i].labels[~_most_important(groups[i], share)] for i, share in wanted.items()])
    for one in weights_of(model).values():
        axes = labels.leaves.get(_leaf(one))
        if axes is not None:
            keep = np.logical_and.reduce(np.meshgrid(*(~np.isin(labels.find(a), gone) for a in axes), indexing="ij"))
            if not keep.all():
                set_mask(one, keep)
    return densities(model)


def shrink(model: Module, example: Any) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Remove all channels that no layer reads, because their weights are zero; returns the shapes of changed tensors before and after.

    The network computes the same as before. Optimizers created before refer to tensors that are no longer part of it.
    """
    labels, pads = _labelled(model, example)
    dead = _dead(model, labels)
    tensors = model.named_tensors()
    new: dict[Tensor, Tensor] = {}
    for path, axes in labels.leaves.items():
        keep = [np.flatnonzero(~np.isin(labels.find(axis), dead)) for axis in axes]
        if any(len(k) != n for k, n in zip(keep, tensors[path].shape, strict=True)):
            new[tensors[path]] = _cut(tensors[path], keep)
    paths = {tensor: path for path, tensor in tensors.items()}
    changed = {paths[before]: (before.shape, after.shape) for before, after in new.items()}
    settings = _settings(model, labels, pads, dead, new)
    before = {(layer, name): getattr(layer, name) for layer, name in settings}
    replace_tensors(model, new)
    _apply(settings)
    try:
        traced_calls(model, example)
    except UserError as error:
        replace_tensors(model, {after: was for was, after in new.items()})
        _apply(before)
        raise UserError(
            "shrink",
            f"layers that take their sizes from their weights are required, but after removing channels: {error.message} "
            "Nothing was changed.",
        ) from error
    return changed


# --- labels of a network -----------------------------------------------------------------------------------------------------


def _labelled(model: Module, example: Any) -> tuple[ChannelLabels, dict[Shortcut, np.ndarray]]:
    """The labels of a network's parameters and state, and those of channels that shortcuts pad."""
    for path, _, name, made in parametrizations(model):
        if type(made) is not Mask:
            raise UserError(
                "shrink",
                f"plain or masked weights are required, got {path}.{name}, which is a {type(made).__name__}. Bake it, or remove channels before.",
            )
    with _as_placeholders(model) as leaves:
        traced, calls = traced_calls(model, example)
        results = {call.module: call.result._node for call in calls if isinstance(call.module, Shortcut)}
        labels = ChannelLabels(traced.outputs, leaves, set(results.values()))
    return labels, {module: labels.of(node)[1] for module, node in results.items()}


@contextmanager
def _as_placeholders(model: Module) -> Iterator[dict[Node, str]]:
    """While active, each tensor of a network is a separate node: equal values of two layers, such as zeros, would be one node."""
    model.named_tensors()  # all sizes must be known
    stand_ins = {tensor: wrap(placeholder(object(), tensor._node.type)) for tensor in model.named_tensors().values()}
    leaves = {stand_ins[tensor]._node: path for path, tensor in model.named_tensors().items()}
    replace_tensors(model, stand_ins)
    try:
        yield leaves
    finally:
        replace_tensors(model, {after: before for before, after in stand_ins.items()})


def _leaf(one: Weight) -> str:
    """The path of the tensor under a weight: itself, or the original of a mask."""
    return one.path if one.parametrization is None else f"{one.path}_parametrization.original"


def _groups(model: Module, labels: ChannelLabels) -> list[ChannelGroup]:
    made = _filters(model, labels)
    groups: list[tuple[set[str], set[int]]] = []
    for path, (roots, _) in made.items():
        mine = set(roots.tolist())
        layers = {path.rpartition(".")[0]}
        for other in [g for g in groups if g[1] & mine]:
            groups.remove(other)
            layers, mine = layers | other[0], mine | other[1]
        groups.append((layers, mine))
    return [_group(layers, np.array(sorted(mine)), made) for layers, mine in groups]


def _group(layers: set[str], roots: np.ndarray, made: dict[str, tuple[np.ndarray, np.ndarray]]) -> ChannelGroup:
    total, count = np.zeros(len(roots)), np.zeros(len(roots))
    order = [path for path in made if path.rpartition(".")[0] in layers]
    for path in order:
        own, norms = made[path]
        places = np.searchsorted(roots, own)
        np.add.at(total, places, norms / max(norms.mean(), np.finfo(np.float64).tiny))
        np.add.at(count, places, 1)
    return ChannelGroup(tuple(path.rpartition(".")[0] for path in order), roots, total / count)


def _filters(model: Module, labels: ChannelLabels) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The weights that produce removable channels, along their first axis (transposed convolutions: the second); and the norm of each filter."""
    found = {}
    columns = labels.columns()
    for path, one in weights_of(model).items():
        axes = labels.leaves.get(_leaf(one))
        if axes is None:
            continue
        made = int(np.isin(axes[0], columns).any())
        roots = labels.find(axes[made])
        if (roots != FIXED).all() and not np.isin(axes[made], columns).any():
            squares = np.moveaxis(one.value.astype(np.float64) ** 2, made, 0).reshape(len(roots), -1)
            found[path] = roots, np.sqrt(squares.sum(axis=1))
    return found


# --- selection of channels ---------------------------------------------------------------------------------------------------


def _wanted(
    model: Module, labels: ChannelLabels, groups: list[ChannelGroup], density: float | dict[str, float]
) -> dict[int, float]:
    """The density of each group by its index."""
    if not groups:
        raise UserError(
            "prune_channels", f"a network with channels that can be removed is required. {_why(model, labels)}"
        )
    given = density if isinstance(density, dict) else {}
    for path, share in given.items() if given else [("all layers", density)]:
        if not isinstance(share, float | int) or not 0.0 < share <= 1.0:
            raise UserError("prune_channels", f"a density above 0 and up to 1 is required, got {share} for {path}.")
    if not isinstance(density, dict):
        return dict.fromkeys(range(len(groups)), density)
    wanted: dict[int, float] = {}
    for path, share in density.items():
        found = [i for i, group in enumerate(groups) if path in group.layers]
        if not found:
            raise UserError("prune_channels", f"channels of {path!r} cannot be removed. {_why(model, labels, path)}")
        if wanted.setdefault(found[0], share) != share:
            raise UserError(
                "prune_channels", f"one density is required for layers that are tied: {groups[found[0]].layers}."
            )
    return wanted


def _why(model: Module, labels: ChannelLabels, path: str | None = None) -> str:
    """Why the channels of one layer, or of all layers, are fixed."""
    layers = {path.rpartition(".")[0]: _leaf(one) for path, one in weights_of(model).items()}
    if path is not None and path not in layers:
        return nearest(path, list(layers))
    for layer in layers if path is None else [path]:
        axes = labels.leaves.get(layers[layer])
        return f"{layer or 'The network itself'}: " + (
            "nothing is used." if axes is None else f"{labels.reason(axes[0])}."
        )
    return ""


def _most_important(group: ChannelGroup, density: float) -> np.ndarray:
    count = max(1, round(density * len(group)))
    keep = np.zeros(len(group), np.bool_)
    keep[np.argsort(-group.importance, kind="stable")[:count]] = True
    return keep


def _shares_of_all(groups: list[ChannelGroup], density: float) -> dict[int, float]:
    """The density of each group if the most important channels of all groups are kept."""
    every = np.concatenate([group.importance for group in groups])
    least = np.sort(every)[::-1][max(1, round(density * len(every))) - 1]
    return {i: max(1, int((group.importance >= least).sum())) / len(group) for i, group in enumerate(groups)}


def _dead(model: Module, labels: ChannelLabels) -> np.ndarray:
    """The labels of channels whose weights are all zero. At least one channel of each axis is kept."""
    columns = labels.columns()
    read = {FIXED}
    consumed: set[int] = set()
    for one in weights_of(model).values():
        value = one.value
        for i, axis in enumerate(labels.leaves.get(_leaf(one), [])):
            roots = labels.find(axis)
            if np.isin(axis, columns).any():
                consumed |= set(roots.tolist())
                read |= set(roots[(value != 0).any(axis=tuple(j for j in range(value.ndim) if j != i))].tolist())
    dead = consumed - read
    for axes in labels.leaves.values():
        for axis in axes:
            meant = set(labels.find(axis).tolist())
            if meant and meant <= dead:
                dead.discard(min(meant))
    return np.array(sorted(dead), np.int64)


# --- removal -----------------------------------------------------------------------------------------------------------------


def _cut(tensor: Tensor, keep: list[np.ndarray]) -> Tensor:
    value = tensor.numpy()[np.ix_(*keep)]
    return as_parameter(value) if tensor.requires_grad else asarray(value).realize()


def _settings(
    model: Module, labels: ChannelLabels, pads: dict[Shortcut, np.ndarray], dead: np.ndarray, new: dict[Tensor, Tensor]
) -> dict[tuple[Module, str], int]:
    """Settings that count channels: the groups of depthwise convolutions, and the number of channels that a shortcut adds."""
    settings: dict[tuple[Module, str], int] = {}
    for one in weights_of(model).values():
        if not isinstance(one.layer, Conv1d | Conv2d | Conv3d) or one.layer.groups == 1:
            continue
        leaf = model.named_tensors()[_leaf(one)]
        if leaf in new:
            settings[one.layer, "groups"] = new[leaf].shape[0]  # depthwise: only those shrink
    for module, roots in pads.items():
        keep = ~np.isin(roots, dead)
        settings[module, "before"] = int(keep[: module.before].sum())
        settings[module, "after"] = int(keep[len(keep) - module.after :].sum())
    return settings


def _apply(settings: dict[tuple[Module, str], Any]) -> None:
    for (layer, name), value in settings.items():
        setattr(layer, name, value)
