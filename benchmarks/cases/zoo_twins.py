"""The twins of the zoo's own modules; importing this makes `twins.twin` know them."""

from __future__ import annotations

from typing import Any

import torch

from weft.zoo.building_blocks import Branches, SqueezeExcite
from weft.zoo.convnext import ChannelNorm, ConvNeXtBlock
from weft.zoo.densenet import DenseLayer
from weft.zoo.googlenet import GoogLeNet
from weft.zoo.gpt import GPT
from weft.zoo.inception import InceptionV3
from weft.zoo.inception_resnet import InceptionResNetBlock
from weft.zoo.recurrent import CharLSTM
from weft.zoo.resnet import Shortcut
from weft.zoo.unet import UNet
from weft.zoo.vit import ViT
from weft.zoo.whitened import WhitenedCNN

from . import twin_blocks as blocks
from .twins import Twins, makes
from .zoo_networks import LastOutput


@makes(Branches)
def _branches(twins: Twins, m: Any) -> torch.nn.Module:
    return blocks.Branches(twins.all(m.branches))


@makes(SqueezeExcite)
def _squeeze_excite(twins: Twins, m: Any) -> torch.nn.Module:
    return blocks.SqueezeExcite(*twins.all([m.reduce, m.activation, m.expand, m.gate]))


@makes(Shortcut)
def _shortcut(twins: Twins, m: Any) -> torch.nn.Module:
    return blocks.Shortcut(m.before, m.after, m.stride)


@makes(DenseLayer)
def _dense(twins: Twins, m: Any) -> torch.nn.Module:
    return blocks.DenseLayer(twins.of(m.body))


@makes(InceptionResNetBlock)
def _inception_resnet(twins: Twins, m: Any) -> torch.nn.Module:
    return blocks.ScaledBranches(twins.of(m.branches), twins.of(m.up), m.scale, m.last)


@makes(InceptionV3)
def _inception(twins: Twins, m: Any) -> torch.nn.Module:
    assert m.aux is None, "auxiliary heads have no twin"
    return torch.nn.Sequential(*twins.all([m.lower, m.upper, m.top]))


@makes(GoogLeNet)
def _googlenet(twins: Twins, m: Any) -> torch.nn.Module:
    assert not m.heads, "auxiliary heads have no twin"
    return torch.nn.Sequential(*twins.all([m.stem, *m.parts.values(), m.top]))


@makes(ChannelNorm)
def _channel_norm(twins: Twins, m: Any) -> torch.nn.Module:
    return blocks.ChannelNorm(twins.of(m.norm))


@makes(ConvNeXtBlock)
def _convnext_block(twins: Twins, m: Any) -> torch.nn.Module:
    parts = twins.all([m.depthwise, m.norm, m.widen, m.narrow])
    made = blocks.ConvNeXtBlock(m.scale.shape[0], *parts)
    twins.copy(made.scale, m.scale)
    return made


@makes(UNet)
def _unet(twins: Twins, m: Any) -> torch.nn.Module:
    down, grow, up = (twins.all(part) for part in (m.down, m.grow, m.up))
    return blocks.UNet(twins.of(m.first), down, grow, up, twins.of(m.pool), twins.of(m.top))


@makes(CharLSTM)
def _char_lstm(twins: Twins, m: Any) -> torch.nn.Module:
    return blocks.Outputs(twins.of(m.embedding), twins.of(m.lstm), twins.of(m.top))


@makes(GPT)
def _gpt(twins: Twins, m: Any) -> torch.nn.Module:
    return blocks.GPT(twins.of(m.tokens), twins.of(m.places), twins.all(m.blocks), twins.of(m.norm))


@makes(ViT)
def _vit(twins: Twins, m: Any) -> torch.nn.Module:
    made = blocks.ViT(twins.of(m.patches), m.places.shape, twins.all(m.blocks), twins.of(m.norm), twins.of(m.top))
    twins.copy(made.first, m.first)
    twins.copy(made.places, m.places)
    return made


@makes(WhitenedCNN)
def _whitened(twins: Twins, m: Any) -> torch.nn.Module:
    assert m.views == 1, "views of an image have no twin"
    outputs, inputs, *kernel = m.whitening.weight.shape
    first = torch.nn.Conv2d(inputs, outputs, kernel)
    first.weight.requires_grad = False
    twins.copy(first.weight, m.whitening.weight)
    twins.copy(first.bias, m.whitening.bias)
    parts = [first, *twins.all([m.gelu, *m.blocks, m.pool, m.head])]
    return blocks.Scaled(torch.nn.Sequential(*parts), m.scale)


@makes(LastOutput)
def _last_output(twins: Twins, m: Any) -> torch.nn.Module:
    return blocks.Outputs(None, twins.of(m.recurrent), twins.of(m.top), last=True)
