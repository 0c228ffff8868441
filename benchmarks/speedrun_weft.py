"""The contestant weft of speedrun.py: an epoch is one program (weft/train/epoch_program.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from speedrun import SHIFT, TESTED, WHITENED, Images, Recipe

import weft
from weft import data, nn, optim, zoo
from weft.data.loader import permutation
from weft.runtime import device
from weft.tensor import Tensor
from weft.train.epoch_program import EpochProgram


class WeftContestant:
    """See `speedrun.Contestant`."""

    def __init__(self, recipe: Recipe, images: Images, most_epochs: int) -> None:
        self.recipe, self.images, self.seed = recipe, images, 0
        self.model = self._network(0)
        normalize = data.Normalize(images.mean, images.std)
        self.augment = nn.Sequential(
            data.Augment(data.ToFloat(), data.RandomCrop(32, SHIFT, mode="reflect")), normalize
        )
        self.prepare = nn.Sequential(data.ToFloat(), normalize)
        self.steps = len(images.x) // recipe.batch
        self.most = self.steps * most_epochs
        self.rates = weft.zeros(self.most, dtype="float32").realize()
        self.optimizer = self._optimizer()
        self.program = EpochProgram(self._step, images.x, images.y, mirror=True, precision=recipe.precision)
        self.sample = weft.asarray(images.x[:WHITENED])
        self.test_x = weft.asarray(images.test_x.reshape(-1, TESTED, *images.test_x.shape[1:]))
        self.test_y = weft.asarray(images.test_y.reshape(-1, TESTED))
        self.normalized = weft.jit(self.prepare)
        self.count_right = weft.jit(self._count_right, precision=recipe.precision)
        self.reset = weft.jit(self._reset)
        self.put_filters = weft.jit(self._put_filters)
        self.draw = weft.jit(lambda: weft.random.uniform(()))

    def _network(self, seed: int) -> zoo.whitened.WhitenedCNN:
        weft.seed(seed)
        r = self.recipe
        return zoo.whitened_cnn(
            10, self.images.x.shape[1], widths=r.widths, kernel=r.kernel, momentum=r.norm_momentum, views=6
        )

    def _optimizer(self) -> optim.Optimizer:
        """Biases have a higher rate, and as much weight decay a step as the others. The loss is a sum: gradients of a mean vanish in float16."""
        r, parameters = self.recipe, self.model.parameters()
        decay = r.weight_decay * r.batch
        groups = [
            {"parameters": [p for p in parameters if p.ndim > 1], "rate": self._rate(1.0), "weight_decay": decay},
            {
                "parameters": [p for p in parameters if p.ndim == 1],
                "rate": self._rate(r.bias_rate),
                "weight_decay": decay / r.bias_rate,
            },
        ]
        return optim.sgd(groups, momentum=r.momentum, nesterov=True)

    def _rate(self, factor: float) -> Callable[[Any], Tensor]:
        return lambda done: weft.take(self.rates, weft.minimum(done, self.most - 1)) * factor  # a warm-up may be longer

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.model(self.augment(x))
        loss = weft.cross_entropy(logits, y, label_smoothing=self.recipe.smoothing, reduction="sum")
        self.optimizer.minimize(loss)
        return loss

    def _reset(self, values: dict[str, Tensor], really: Tensor) -> None:
        """New values in the memory of the old ones: recorded graphs hold addresses."""
        for name, tensor in self._state().items():
            tensor.assign(weft.where(really, values[name], tensor))

    def _state(self) -> dict[str, Tensor]:
        network = {f"model.{name}": t for name, t in self.model.named_tensors().items()}
        return (
            network
            | {"rates": self.rates}
            | {f"optimizer.{name}": t for name, t in self.optimizer.named_state().items()}
        )

    def start(self, seed: int, epochs: int) -> None:
        self.seed, stream = seed, weft.random.default_generator
        key, offset = stream.state  # they stay: recorded graphs hold addresses
        fresh = {f"model.{name}": t.numpy() for name, t in self._network(seed).named_tensors().items()}
        stream.key, stream.offset = key, offset
        self.model.train()
        values = {name: fresh.get(name, np.zeros(t.shape, t.dtype.numpy)) for name, t in self._state().items()}
        values |= {
            "optimizer.scale": np.asarray(1.0, np.float32),
            "rates": self.recipe.rates(self.steps * epochs, self.most),
        }
        self.reset({name: values[name] for name in self._state()}, np.True_)
        self.draw()  # the position of the random stream is on the device, as it is after every epoch
        device().wait()

    def whiten(self) -> None:
        self.prepare.eval()
        self.put_filters(self.model.whitening.filters(self.normalized(self.sample)), np.True_)

    def _put_filters(self, filters: Tensor, really: Tensor) -> None:
        weight = self.model.whitening.weight
        weight.assign(weft.where(really, filters, weight))

    def epoch(self, number: int) -> None:
        count, batch = len(self.images.x), self.recipe.batch
        order = permutation(count, self.seed, number)[: self.steps * batch].reshape(self.steps, batch)
        self.model.train()
        self.augment.train()
        self.program(order, number)

    def accuracy(self) -> float:
        self.model.eval()
        return float(self.count_right(self.test_x, self.test_y).item()) / self.test_y.size

    def _count_right(self, x: Tensor, y: Tensor) -> Tensor:
        def right(total: Tensor, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
            found = weft.argmax(self.model(self.prepare(batch[0])), axis=1)
            return total + (found == batch[1]).astype("int32").sum().astype("int32"), None

        total: Tensor = weft.scan(right, weft.asarray(0, dtype="int32"), (x, y))[0]
        return total
