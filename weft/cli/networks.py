"""Networks by name, fitted to data."""

from __future__ import annotations

import inspect

from .. import nn, zoo
from ..errors import UserError
from .words import nearest

ALIASES = {"lenet": "lenet5", "mlp": "lenet_300_100"}
# The side of the images that a network is made for, where it does not take any.
SIDES = {
    "lenet5": 28, "lenet5_classic": 28, "lenet_300_100": 28, "alexnet": 224, "vgg11": 224, "vgg13": 224, "vgg16": 224, "vgg19": 224,
    "inception_v3": 299, "inception_resnet_v2": 299, "vit_tiny": 224, "vit_small": 224, "vit_base": 224,
}  # fmt: skip


def full_name(name: str) -> str:
    """The name in the zoo; a mistake is answered with the nearest."""
    found = ALIASES.get(name, name)
    if found not in zoo.names():
        raise UserError("weft", f"there is no network {name!r}. {nearest(name, [*zoo.names(), *ALIASES])}")
    return found


def built(name: str, classes: int, channels: int) -> nn.Module:
    """The network for so many classes and channels."""
    make = zoo.find(full_name(name))
    known = inspect.signature(make).parameters
    wanted = {"classes": classes, "channels": channels}
    made: nn.Module = make(**{k: v for k, v in wanted.items() if k in known})
    return nn.Sequential(nn.Flatten(), made) if full_name(name) == "lenet_300_100" else made


def side(name: str) -> int | None:
    """The side of the images it needs; None: any."""
    return SIDES.get(full_name(name))
