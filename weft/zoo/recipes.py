"""Recipes: named settings, each with the accuracy it reached with weft, when and how often it was run, and what was published.

benchmarks/recipes.py runs a recipe with several seeds and records what it reaches.

weft train recipe=digits
weft train recipe=cifar10-resnet20 epochs=40     # settings of the command replace those of the recipe
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from ..hints import nearest
from ..records import dataclass


@dataclass(frozen=True)
class Measurement:
    """What a recipe reached with weft: a metric on held-out data, one value a run; runs differ in their seed."""

    metric: str
    values: tuple[float, ...]
    date: str
    weft: str  # version
    device: str
    changed: str = ""  # settings that differed from the recipe
    on: str = ""  # the data, where the recipe leaves them open

    def __str__(self) -> str:
        shown = ", ".join(f"{100 * v:.2f} %" if "accuracy" in self.metric else f"{v:.4f}" for v in self.values)
        runs = "1 run" if len(self.values) == 1 else f"{len(self.values)} runs"
        changed = (f" on {self.on}" if self.on else "") + (f" with {self.changed}" if self.changed else "")
        return f"{self.metric} {shown}{changed} ({runs} on {self.device}, {self.date}, weft {self.weft})"


@dataclass(frozen=True)
class Recipe:
    """Settings of `weft train`, what they are for, and what is known about the result."""

    about: str
    settings: Mapping[str, Any]
    measured: Measurement | None = None
    published: str = ""  # the figure of a publication, and which one

    def results(self) -> list[str]:
        """What it reaches: measured with weft, and published by others, which is not the same."""
        measured = "not yet" if self.measured is None else str(self.measured)
        return [f"measured with weft: {measured}", *([f"published: {self.published}"] if self.published else [])]


RECIPES: dict[str, Recipe] = {
    "digits": Recipe(
        "LeNet-5 on the digits that ship with weft: under a minute on a laptop",
        {"data": "digits", "model": "lenet5_classic", "epochs": 20, "augment": "light", "flip": False},
        Measurement("test accuracy", (0.9833, 0.9889, 0.9805), "2026-11-16", "0.1.0", "CPU"),
    ),
    "mnist": Recipe(
        "LeNet-5 (Caffe's form) on MNIST in two epochs",
        {"data": "mnist", "model": "lenet5", "epochs": 2, "batch": 128, "rate": 2e-3},
        Measurement("test accuracy", (0.9910, 0.9900, 0.9906), "2026-11-16", "0.1.0", "CPU"),
    ),
    "fashion-mnist": Recipe(
        "A small convolutional network on Fashion-MNIST",
        {
            "data": "fashion-mnist", "model": "small_cnn", "epochs": 40, "batch": 128, "rate": 3e-3, "augment": "light",
            "flip": True,
        },
        Measurement("test accuracy", (0.9231, 0.9203, 0.9219), "2026-11-17", "0.1.0", "NVIDIA H200"),
        published="test accuracy 91.6 % for two convolutional layers with pooling (benchmark of the Fashion-MNIST repository)",
    ),
    "fashion-mnist-resnet20": Recipe(
        "ResNet-20 on Fashion-MNIST",
        {
            "data": "fashion-mnist", "model": "resnet20", "epochs": 30, "batch": 128, "augment": "light", "flip": True,
        },
        Measurement("test accuracy", (0.9423, 0.9401, 0.9415), "2026-11-17", "0.1.0", "NVIDIA H200"),
    ),
    "cifar10-resnet20": Recipe(
        "ResNet-20 on CIFAR-10: SGD with momentum, flips and crops, 160 epochs",
        {
            "data": "cifar10", "model": "resnet20", "epochs": 160, "batch": 128, "augment": "light", "optimizer": "sgd",
            "rate": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "schedule": "cosine", "warmup": 1,
        },
        published="test accuracy 91.25 % (He et al. 2016, table 6; with a step schedule)",
    ),
    "speedrun": Recipe(
        "94 % of CIFAR-10 in seconds on a GPU: whitened patches, six convolutions, an epoch in one program",
        {
            "data": "cifar10", "model": "whitened_cnn", "views": 6, "epochs": 10, "batch": 1024, "augment": "shift", "alternate_flips": True,
            "resident": True, "optimizer": "sgd", "rate": 1.5, "bias_rate": 64.0, "momentum": 0.85, "nesterov": True,
            "weight_decay": 0.00133, "label_smoothing": 0.2, "schedule": "linear", "warmup": 2.3, "final_rate": 0.1, "precision": "bfloat16",
        },
        published="test accuracy 94.01 % in 9.9 epochs, 3.29 s on an A100 (Jordan 2024), whose recipe also has lookahead",
    ),
    "flowers-transfer": Recipe(
        "MobileNetV2 on a few hundred photographs, from published weights: first the new layer, then the last blocks: data=FOLDER weights=mobilenet_v2",
        {
            "model": "mobilenet_v2", "size": (320, 320), "resize": "crop", "augment": "light", "epochs": 14, "batch": 16,
            "freeze": 7, "freeze_layers": 16, "body_rate": 0.05, "optimizer": "adamw", "rate": 2e-3, "weight_decay": 0.01,
            "label_smoothing": 0.1,
        },
    ),
    "char-text": Recipe(
        "A small GPT on characters of a text file: data=FILE.txt",
        {
            "model": "gpt", "hidden": 192, "layers": 4, "dropout": 0.1, "length": 128, "epochs": 10, "batch": 32,
            "optimizer": "adamw", "rate": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1, "schedule": "cosine", "warmup": 0.5,
        },
        Measurement(
            "validation loss", (1.6342, 1.6284, 1.6255), "2026-11-17", "0.1.0", "NVIDIA H200", on="tiny shakespeare",
        ),
        published="validation loss 1.47 for a larger network, 6 layers of 384, on tiny shakespeare (nanoGPT)",
    ),
    "shakespeare-gpt": Recipe(
        "A GPT of 6 layers of 384 on characters, as nanoGPT trains it on tiny shakespeare: data=FILE.txt",
        {
            "model": "gpt", "hidden": 384, "layers": 6, "dropout": 0.2, "length": 256, "stride": 16, "steps": 250, "epochs": 20, "batch": 64,
            "optimizer": "adamw", "rate": 1e-3, "final_rate": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.1, "schedule": "cosine",
            "warmup": 0.4, "precision": "bfloat16", "patience": 5,
        },
        Measurement(
            "validation loss", (1.4373, 1.4415, 1.4396), "2026-11-18", "0.1.0", "NVIDIA H200", on="tiny shakespeare",
        ),
        published="validation loss 1.4697 on tiny shakespeare, estimated on 200 batches (nanoGPT)",
    ),
}  # fmt: skip


def find_recipe(name: str) -> Recipe:
    """A recipe by its name.

    >>> find_recipe("digits").settings["model"]
    'lenet5_classic'
    """
    if name not in RECIPES:
        raise UserError("recipes", f"there is no recipe {name!r}. {nearest(name, list(RECIPES))}")
    return RECIPES[name]
