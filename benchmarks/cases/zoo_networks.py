"""The networks of the sweep over the zoo: all of its catalogue, a few that are not in it, and ten that were made by chance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

import weft
from weft import nn, zoo
from weft.nn.module import own_tensors
from weft.zoo.catalogue import FACTS
from weft.zoo.facts import NetworkFacts
from weft.zoo.whitened import WhitenedCNN

from .random_networks import random_network

RANDOM = 10  # networks made by chance
EXAMPLES = 8  # whose statistics batch norms begin with
NOISE = 0.1  # of parameters that begin at one value: with all results 0 any two networks would agree


@dataclass(frozen=True)
class BatchSizes:
    """How large batches are, unless a size is given: as large as the operations allow; the batch of a large network is 1."""

    macs: float  # of a batch's forward pass
    most: int  # examples of a batch
    texts: int  # times the batch of a text
    given: int | None = None

    def of(self, macs: float, most: int | None = None) -> int:
        """The batch of a network with so many multiply-adds an example."""
        return self.given or max(1, min(most or self.most, int(self.macs / macs)))

    def of_text(self, count: int) -> int:
        return self.given or self.texts * count


ON_CPU, ON_GPU = BatchSizes(2e9, 64, 1), BatchSizes(128e9, 128, 8)


@dataclass(frozen=True)
class ZooNetwork:
    """A network of the sweep."""

    group: str
    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of the inputs; of token ids if there is a vocabulary
    classes: int
    vocabulary: int = 0
    dense: bool = False  # whether every pixel has a class

    def model(self) -> nn.Module:
        """The network with weights from a fixed seed, without dropout. The running statistics of its batch norms are those of some
        examples: the usual 0 and 1 normalise nothing, and in deep networks results overflow float16 or no longer depend on the input."""
        model = self._initial()
        for norm, (mean, var) in zip(_batch_norms(model), _statistics(self), strict=True):
            norm.mean.assign(weft.asarray(mean))
            norm.var.assign(weft.asarray(var))
        return model

    def _initial(self) -> nn.Module:
        weft.seed(0)
        model = self.make()
        if not self.vocabulary:
            model.eval()(weft.zeros((1, *self.shape[1:])))  # sizes that are inferred from the first input
        model.train()
        for module in model.modules():
            if isinstance(module, nn.Dropout | nn.DropPath):
                module.rate = 0.0
        _add_noise(model)
        if isinstance(model, WhitenedCNN):
            model.whiten(self.batch()[0])
        return model

    def batch(self, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        if self.vocabulary:
            tokens = rng.integers(0, self.vocabulary, (self.shape[0], self.shape[1] + 1))
            return tokens[:, :-1].copy(), tokens[:, 1:].copy()
        places = (self.shape[0], *self.shape[2:]) if self.dense else self.shape[:1]
        return rng.standard_normal(self.shape, np.float32), rng.integers(0, self.classes, places)

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 4


def _batch_norms(model: nn.Module) -> list[nn.BatchNorm]:
    return [m for m in model.modules() if isinstance(m, nn.BatchNorm) and m.track]


@cache
def _statistics(network: ZooNetwork) -> list[tuple[np.ndarray, np.ndarray]]:
    """Means and variances, of the first examples of the batch, at every batch norm."""
    with weft.knobs.set(device="cpu"):
        model = network._initial()
        norms = _batch_norms(model)
        for norm in norms:
            norm.momentum = 1.0
        if norms:
            weft.jit(model)(weft.asarray(network.batch()[0][:EXAMPLES])).realize()
        return [(norm.mean.numpy().copy(), norm.var.numpy().copy()) for norm in norms]


def logits(result: Any) -> Any:
    """What a network says of classes; recurrent ones give their state too."""
    return result[0] if isinstance(result, tuple) else result


def _add_noise(model: nn.Module) -> None:
    rng = np.random.default_rng(1)
    for module in model.modules():
        for _, tensor in own_tensors(module):
            value = tensor.numpy()
            if tensor.requires_grad and value.size > 1 and np.ptp(value) == 0.0:
                noise = rng.standard_normal(value.shape, np.float32)
                tensor.assign(weft.asarray(value + np.float32(NOISE) * noise))


def networks(device: str = "cpu", batch: int | None = None) -> Iterator[ZooNetwork]:
    """All networks of the sweep, with batches of a given size or of one that suits them and the device."""
    sizes = replace(ON_CPU if device == "cpu" else ON_GPU, given=batch)
    for name, facts in FACTS.items():
        yield _of_zoo(name, facts, sizes)
    yield from _others(batch)
    for seed in range(RANDOM):
        network, shape = random_network(seed)
        count = sizes.of(nn.summary(network, (1, *shape[1:])).macs, shape[0])
        make: Callable[[], nn.Module] = partial(_random, seed)
        yield ZooNetwork("random", f"random {seed}", make, (count, *shape[1:]), 5)


def _random(seed: int) -> nn.Module:
    return random_network(seed)[0]


def _of_zoo(name: str, facts: NetworkFacts, sizes: BatchSizes) -> ZooNetwork:
    if facts.task == "text":
        return _text(name, sizes)
    assert facts.input is not None, name
    assert facts.macs is not None, name
    assert facts.classes is not None, name
    make: Callable[..., nn.Module] = zoo.find(name)
    count = sizes.of(facts.macs)
    shape: tuple[int, ...] = (count, *facts.input)
    if name == "mlp":
        make = partial(make, 784, 300, 100, facts.classes)
    elif facts.takes_vectors and name != "lenet_300_100":
        make, shape = partial(make, 784, facts.classes), (count, 784)
    elif facts.task == "segmentation":
        make = partial(make, facts.classes, facts.input[0])
    return ZooNetwork("zoo", name, make, shape, facts.classes, dense=facts.task == "segmentation")


# Vocabulary, batch and length: the sizes that texts of characters have, and one document of GPT-2.
_TEXTS = {"char_lstm": (65, 32, 64), "gpt": (65, 16, 128), "gpt2": (50257, 1, 256)}


def _text(name: str, sizes: BatchSizes) -> ZooNetwork:
    vocabulary, count, length = _TEXTS[name]
    make: Callable[[], nn.Module] = partial(zoo.find(name), vocabulary)
    if name == "gpt2":
        make = partial(zoo.find(name), vocabulary, dropout=0.0)
    return ZooNetwork("zoo", name, make, (sizes.of_text(count), length), vocabulary, vocabulary)


def _others(batch: int | None) -> Iterator[ZooNetwork]:
    yield ZooNetwork("other", "cnn, odd channels", _odd_cnn, (batch or 50, 3, 48, 48), 10)
    yield ZooNetwork("other", "mlp, odd widths", _odd_mlp, (batch or 50, 777), 11)
    yield ZooNetwork("other", "gru", LastOutput, (batch or 32, 50, 60), 10)
    small = partial(zoo.unet, 2, 3, width=16, depth=3, norm=True)
    yield ZooNetwork("other", "unet, 16 wide, batch norm", small, (batch or 4, 3, 128, 128), 2, dense=True)


def _odd_cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 24, 5, padding=2),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(24, 48, 3, stride=2, padding=1),
        nn.BatchNorm2d(48),
        nn.SiLU(),
        nn.Conv2d(48, 96, 3, padding=1, groups=4),
        nn.ReLU(),
        nn.GlobalAvgPool(),
        nn.Linear(96, 10),
    )


def _odd_mlp() -> nn.Module:
    return zoo.mlp(777, 333, 111, 11)


class LastOutput(nn.Module):
    """A gated recurrent layer over (batch, time, features), and a classifier of its last output."""

    def __init__(self) -> None:
        self.recurrent, self.top = nn.GRU(60, 100), nn.Linear(100, 10)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        outputs, _ = self.recurrent(x)
        scores: weft.Tensor = self.top(outputs[:, -1])
        return scores
