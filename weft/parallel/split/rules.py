"""Which layers can be split, and which follow the layout of their input."""

from __future__ import annotations

from ... import nn
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
    """The ways in which a layer can be split, by name."""
    return {rule.how: rule for rule in SPLITS.get(type(layer), ())}
