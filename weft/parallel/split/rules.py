"""Which layers can be split and which follow the layout of their input; plans that assign a split to layers."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from ... import nn
from ...errors import UserError
from ...hints import nearest
from ...nn.module import Module
from .attention import AttentionByHeads, FeedForwardByHidden
from .channels import (
    ConvByInput,
    ConvByOutput,
    EmbeddingByOutput,
    EmbeddingByVocabulary,
    LinearByInput,
    LinearByOutput,
)
from .follow import BatchNormFollowing, DropoutFollowing, ExamplesFollowing, FlattenFollowing, GlobalPoolFollowing
from .layer import ByBatch, SplitLayer
from .region import ConvByRegion, PoolByRegion

Rules = Mapping[Module, type[SplitLayer]]  # how layers are split
Plan = Mapping[
    str, str | None
]  # how to split layers, by path pattern, in which * stands for any name; the last match wins

_CONVOLUTION: list[type[SplitLayer]] = [ConvByOutput, ConvByInput, ByBatch, ConvByRegion]
SPLITS: dict[type[Module], list[type[SplitLayer]]] = {
    nn.Linear: [LinearByOutput, LinearByInput, ByBatch],
    nn.Embedding: [EmbeddingByVocabulary, EmbeddingByOutput],
    nn.Conv1d: _CONVOLUTION,
    nn.Conv2d: _CONVOLUTION,
    nn.Conv3d: _CONVOLUTION,
    nn.DepthwiseConv2d: [ConvByOutput, ByBatch, ConvByRegion],
    nn.MultiHeadAttention: [AttentionByHeads],
    nn.FeedForward: [FeedForwardByHidden],
}
FOLLOWING: dict[type[Module], type[SplitLayer]] = {
    **dict.fromkeys((nn.BatchNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), BatchNormFollowing),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), PoolByRegion),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), PoolByRegion),
    **dict.fromkeys((nn.GlobalAvgPool, nn.GlobalMaxPool), GlobalPoolFollowing),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.InstanceNorm, nn.LRN), ExamplesFollowing),
    nn.Flatten: FlattenFollowing,
    nn.Dropout: DropoutFollowing,
}


def splits_of(layer: Module) -> dict[str, type[SplitLayer]]:
    """The possible splits of a layer, by name."""
    return {rule.how: rule for rule in SPLITS.get(type(layer), ())}


def read_plan(model: Module, plan: Plan) -> Rules:
    """How each layer is split, given a plan by path patterns."""
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
    """Whether a path matches a pattern, name by name: "blocks.*" matches "blocks.0", not "blocks.0.norm"."""
    names, patterns = path.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))


def _parts_to_split(layer: Module, how: str | None) -> list[tuple[Module, str | None]]:
    if isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerBlock) and how in ("heads", None):
        return [(layer.attention, how), (layer.feed_forward, how and "hidden")]
    return [(layer, how)]


def _rule(path: str, layer: Module, how: str) -> type[SplitLayer]:
    known = splits_of(layer)
    if how not in known:
        ways = f"can be split by {', '.join(known)}" if known else "cannot be split"
        raise UserError("split", f"{path or 'the network'} is a {type(layer).__name__}, which {ways}, got {how!r}.")
    return known[how]
