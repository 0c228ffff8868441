"""The registry of networks by name."""

from __future__ import annotations

from collections.abc import Callable

from .. import nn
from ..errors import UserError
from .alexnet import alexnet
from .convnext import convnext_tiny
from .densenet import densenet121, densenet169
from .efficientnet import efficientnet_b0, efficientnet_b1
from .googlenet import googlenet
from .gpt import gpt, gpt2
from .inception import inception_v3
from .inception_resnet import inception_resnet_v2
from .lenet import lenet5, lenet5_classic, lenet_300_100, small_cnn
from .mobilenet import mobilenet_v1, mobilenet_v2
from .recurrent import char_lstm
from .resnet import (
    resnet18,
    resnet18_cifar,
    resnet20,
    resnet32,
    resnet34,
    resnet44,
    resnet50,
    resnet56,
    resnet101,
    resnet110,
    resnet152,
)
from .simple import linear_regression, logistic_regression, mlp, perceptron
from .unet import unet
from .vgg import vgg11, vgg11_bn, vgg13, vgg13_bn, vgg16, vgg16_bn, vgg19, vgg19_bn
from .vit import vit_base, vit_small, vit_tiny

Maker = Callable[..., nn.Module]

_MAKERS: tuple[Maker, ...] = (
    linear_regression, logistic_regression, perceptron, mlp,
    lenet_300_100, lenet5, lenet5_classic, small_cnn, alexnet,
    vgg11, vgg13, vgg16, vgg19, vgg11_bn, vgg13_bn, vgg16_bn, vgg19_bn,
    googlenet, inception_v3, inception_resnet_v2,
    resnet18, resnet34, resnet50, resnet101, resnet152, resnet18_cifar,
    resnet20, resnet32, resnet44, resnet56, resnet110,
    densenet121, densenet169, mobilenet_v1, mobilenet_v2,
    efficientnet_b0, efficientnet_b1, convnext_tiny, unet,
    char_lstm, gpt, gpt2, vit_tiny, vit_small, vit_base,
)  # fmt: skip


def names() -> list[str]:
    """The names of all networks.

    >>> names()[:3]
    ['linear_regression', 'logistic_regression', 'perceptron']
    """
    return [maker.__name__ for maker in _MAKERS]


def find(name: str) -> Maker:
    """Look up the constructor of a network by name.

    >>> find("lenet5")(classes=4)[-1].weight.shape
    (4, 500)
    """
    for maker in _MAKERS:
        if maker.__name__ == name:
            return maker
    raise UserError("zoo.find", f"there is no network {name!r}. Known: {', '.join(names())}.")
