"""Networks by name, fitted to data."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

from .. import nn, zoo
from ..data import Dataset, Text
from ..errors import UserError
from ..hints import nearest
from ..nn.losses import hinge
from ..report.text_format import counted, listed
from ..zoo.catalogue import ALIASES, FACTS
from .definitions import is_definition

# The image size of networks that require one.
SIDES = {name: facts.input[1] for name, facts in FACTS.items() if facts.needs_size and facts.input}
VECTORS = tuple(name for name, facts in FACTS.items() if facts.takes_vectors)
WRITERS = tuple(name for name, facts in FACTS.items() if facts.task == "text")
HIDDEN = (300, 100)  # hidden sizes of an mlp
OF_GPT = ("heads", "key_heads", "positions", "window")  # settings
HEAD_SIZE = 64  # features of an attention head, unless heads are given


def full_name(name: str) -> str:
    """The name in the zoo; an unknown name is an error with the nearest one."""
    if is_definition(name):
        raise UserError("weft", f"a network of the zoo is required, got the file {name}.")
    found = ALIASES.get(name, name)
    if found not in zoo.names():
        raise UserError("weft", f"there is no network {name!r}. {nearest(name, [*zoo.names(), *ALIASES])}")
    return found


def dataset_text(dataset: Dataset, count: bool = True) -> str:
    """Data as text, with the number of examples or with the class names."""
    shape, classes = " x ".join(map(str, dataset.shape)) or "one number", len(dataset.classes)
    if not count:
        return f"examples of {shape}" + (f" of the classes {listed(dataset.classes)}" if classes else "")
    examples = f"{counted(len(dataset), 'example')} of {shape}"
    if isinstance(dataset, Text):
        examples = f"{counted(len(dataset), 'window')} of {shape} tokens"
    return f"{dataset.name or 'data'}: {examples}" + (f", {counted(classes, 'class', 'classes')}" if classes else "")


def default_network(dataset: Dataset) -> str:
    """The default network for this data."""
    if isinstance(dataset, Text):
        return "char_lstm"
    if len(dataset.shape) != 3:
        return "mlp"
    return "lenet5" if dataset.shape[0] == 1 and max(dataset.shape[1:]) <= 64 else "resnet18"


def build_network(
    name: str, classes: int, channels: int, size: tuple[int, int] | None = None, views: int | None = None
) -> nn.Module:
    """A network of the zoo for images with these channels, of this size if it requires one, and with views if it averages several."""
    make = zoo.find(full_name(name))
    known = inspect.signature(make).parameters
    wanted = {"classes": classes, "channels": channels}
    if views is not None:
        check_views(name)
        wanted["views"] = views
    if size is not None and check_size(name, size):
        wanted["size"] = size[0]
    made: nn.Module = make(**{k: v for k, v in wanted.items() if k in known})
    return nn.Sequential(nn.Flatten(), made) if full_name(name) == "lenet_300_100" else made


def check_views(name: str) -> None:
    """An error if a network does not average views of an image."""
    if "views" not in inspect.signature(zoo.find(full_name(name))).parameters:
        raise UserError("weft train", f"views= requires the network whitened_cnn, got {name}.")


def build_vector_network(name: str, inputs: int, outputs: int) -> nn.Module:
    """A network for vectors."""
    sizes = (inputs, *HIDDEN, outputs) if name == "mlp" else (inputs, outputs)
    return nn.Sequential(nn.Flatten(), zoo.find(name)(*sizes))


def check_gpt(name: str, settings: Mapping[str, Any]) -> None:
    """An error if settings of a gpt are given for another network, or do not fit together."""
    given = [setting for setting in OF_GPT if settings[setting] is not None]
    if name != "gpt":
        if given:
            raise UserError("weft train", f"{given[0]}= requires the network gpt, got {name}.")
        return
    hidden, heads, key_heads = settings["hidden"], gpt_heads(settings), settings["key_heads"]
    if hidden % heads:
        told = f"heads={heads}" + (f" (hidden / {HEAD_SIZE})" if settings["heads"] is None else "")
        raise UserError("weft train", f"hidden= must be a multiple of heads=, got hidden={hidden} and {told}.")
    if key_heads is not None and heads % key_heads:
        raise UserError(
            "weft train", f"heads= must be a multiple of key_heads=, got heads={heads} and key_heads={key_heads}."
        )
    if settings["positions"] == "rotary" and hidden // heads % 2:
        raise UserError(
            "weft train",
            f"positions=rotary requires an even number of features in each head, got {hidden // heads}: hidden={hidden} and heads={heads}.",
        )


def gpt_heads(settings: Mapping[str, Any]) -> int:
    """The attention heads of a gpt."""
    heads = settings["heads"]
    return max(1, settings["hidden"] // HEAD_SIZE) if heads is None else int(heads)


def check_size(name: str, size: tuple[int, int]) -> bool:
    """Whether the image size must be given to the constructor; an error if the network requires another."""
    own = side(name)
    if own is None or size == (own, own):
        return False
    if "size" not in inspect.signature(zoo.find(full_name(name))).parameters or size[0] != size[1]:
        raise UserError("weft", f"{name} takes images of {own} x {own}, not of {size[0]} x {size[1]}.")
    return True


def fitted_network(name: str, dataset: Dataset, size: tuple[int, int] | None, settings: Mapping[str, Any]) -> nn.Module:
    """The network for this dataset, with images of this size."""
    check_gpt(name, settings)
    writes, reads = name in WRITERS, isinstance(dataset, Text)
    if writes != reads:
        raise UserError(
            "weft train",
            f"{name} is a network for {'text' if writes else 'images and numbers'}, got {dataset_text(dataset)}.",
        )
    if isinstance(dataset, Text):
        return _text_network(name, dataset, settings)
    outputs = len(dataset.classes) or prod(dataset.labels.shape[1:])
    if name == "linear_regression" and dataset.classes:
        raise UserError(
            "weft train", "linear_regression is for labels that are numbers; use logistic_regression for classes."
        )
    if name in VECTORS and name != "lenet_300_100":
        inputs = prod(dataset.shape) if size is None else dataset.shape[0] * prod(size)
        return build_vector_network(name, inputs, outputs)
    if len(dataset.shape) != 3:
        raise UserError(
            "weft train",
            f"{name} requires images, got {dataset_text(dataset)}. Use one of {', '.join(n for n in VECTORS if n != 'lenet_300_100')}.",
        )
    return build_network(name, outputs, dataset.shape[0], size, settings["views"])


def _text_network(name: str, dataset: Text, settings: Mapping[str, Any]) -> nn.Module:
    vocabulary, dropout = len(dataset.vocabulary), settings["dropout"]
    if name == "char_lstm":
        features = min(64, settings["hidden"])  # a vocabulary of characters is small
        return zoo.char_lstm(vocabulary, settings["hidden"], settings["layers"], features=features, dropout=dropout)
    if name == "gpt":
        options = {n: settings[n] for n in OF_GPT if settings[n] is not None} | {"heads": gpt_heads(settings)}
        return zoo.gpt(
            vocabulary, dataset.length, settings["hidden"], layers=settings["layers"], dropout=dropout, **options
        )
    return zoo.gpt2(vocabulary, dropout=dropout)


def loss_of(name: str, asked: str | None) -> Any:
    """The loss by name; by default a perceptron uses Rosenblatt's, which only misclassified examples contribute to."""
    return partial(hinge, margin=0.0) if name == "perceptron" and asked is None else asked


def side(name: str) -> int | None:
    """The image size that it requires; None: any."""
    return SIDES.get(full_name(name))
