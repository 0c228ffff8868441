"""Blocks that `torch.nn` does not have, as users of torch write them; `twins.py` and `zoo_twins.py` build networks of them."""

# mypy: allow-subclassing-any

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Module, ModuleList
from torch.nn import functional as F


class GlobalAvgPool(Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class GlobalMaxPool(Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.amax((2, 3))


class Scaled(Module):
    def __init__(self, body: Module, scale: float) -> None:
        super().__init__()
        self.body, self.scale = body, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * self.scale


class SameConv2d(torch.nn.Conv2d):
    """TensorFlow's padding: as many results as inputs divided by the stride, with the larger half of the border at the end."""

    def forward(self, x: Tensor) -> Tensor:
        border: list[int] = []
        for size, kernel, stride in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
            border += [total // 2, total - total // 2]
        return super().forward(F.pad(x, border))


class Residual(Module):
    def __init__(self, body: Module, shortcut: Module | None, activation: Module | None) -> None:
        super().__init__()
        self.body, self.shortcut, self.activation = body, shortcut, activation

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x) + (x if self.shortcut is None else self.shortcut(x))
        return y if self.activation is None else self.activation(y)


class Branches(Module):
    def __init__(self, branches: Sequence[Module]) -> None:
        super().__init__()
        self.branches = ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class SqueezeExcite(Module):
    def __init__(self, reduce: Module, activation: Module, expand: Module, gate: Module) -> None:
        super().__init__()
        self.gates = torch.nn.Sequential(reduce, activation, expand, gate)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gates(x.mean((2, 3), keepdim=True))


class Shortcut(Module):
    """Subsampled pixels and channels of zeros."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.before, self.after, self.stride = before, after, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class DenseLayer(Module):
    def __init__(self, body: Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


class ScaledBranches(Module):
    """relu(x + scale * up(branches(x)))"""

    def __init__(self, branches: Module, up: Module, scale: float, last: bool) -> None:
        super().__init__()
        self.branches, self.up, self.scale, self.last = branches, up, scale, last

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.scale * self.up(self.branches(x))
        return y if self.last else F.relu(y)


class ChannelNorm(Module):
    """Layer norm over the channels of each pixel."""

    def __init__(self, norm: Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(Module):
    def __init__(self, channels: int, depthwise: Module, norm: Module, widen: Module, narrow: Module) -> None:
        super().__init__()
        self.depthwise, self.norm, self.widen, self.narrow = depthwise, norm, widen, narrow
        self.scale = torch.nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.depthwise(x).permute(0, 2, 3, 1)
        pixels = self.narrow(self.widen(self.norm(pixels))) * self.scale
        return x + pixels.permute(0, 3, 1, 2)


class UNet(Module):
    def __init__(
        self, first: Module, down: Sequence[Module], grow: Sequence[Module], up: Sequence[Module], pool: Module, top: Module
    ) -> None:  # fmt: skip
        super().__init__()
        self.first, self.pool, self.top = first, pool, top
        self.down, self.grow, self.up = ModuleList(down), ModuleList(grow), ModuleList(up)

    def forward(self, x: Tensor) -> Tensor:
        seen = [self.first(x)]
        for down in self.down:
            seen.append(down(self.pool(seen[-1])))
        x = seen.pop()
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(torch.cat([seen.pop(), grow(x)], 1))
        return self.top(x)


class Attention(Module):
    """Self-attention, with one product for queries, keys and values."""

    def __init__(self, features: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.joined, self.output = torch.nn.Linear(features, 3 * features), torch.nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, features = x.shape
        split = self.joined(x).view(batch, time, 3, self.heads, features // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.output(y.transpose(1, 2).reshape(batch, time, features))


class TransformerLayer(Module):
    def __init__(self, attention_norm: Module, attention: Module, norm: Module, feed_forward: Module) -> None:
        super().__init__()
        self.attention_norm, self.attention = attention_norm, attention
        self.norm, self.feed_forward = norm, feed_forward

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.norm(x))


class GPT(Module):
    """Logits by the tied token embedding."""

    def __init__(self, tokens: Module, places: Module, blocks: Sequence[Module], norm: Module) -> None:
        super().__init__()
        self.tokens, self.places, self.blocks, self.norm = tokens, places, ModuleList(blocks), norm

    def forward(self, x: Tensor) -> Tensor:
        y = self.tokens(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            y = block(y)
        return F.linear(self.norm(y), self.tokens.weight)


class ViT(Module):
    def __init__(self, patches: Module, shape: torch.Size, blocks: Sequence[Module], norm: Module, top: Module) -> None:
        super().__init__()
        self.patches, self.blocks, self.norm, self.top = patches, ModuleList(blocks), norm, top
        self.first = torch.nn.Parameter(torch.empty(1, 1, shape[-1]))
        self.places = torch.nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.places
        for block in self.blocks:
            y = block(y)
        return self.top(self.norm(y)[:, 0])


class Outputs(Module):
    """Token ids or vectors through a recurrent layer to logits of every time step, or of the last one."""

    def __init__(self, embedding: Module | None, recurrent: Module, top: Module, *, last: bool = False) -> None:
        super().__init__()
        self.embedding, self.recurrent, self.top, self.last = embedding, recurrent, top, last

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.recurrent(x if self.embedding is None else self.embedding(x))
        return self.top(outputs[:, -1] if self.last else outputs)
