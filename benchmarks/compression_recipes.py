"""How the networks of benchmarks/compression.py are trained and compressed: a recipe for each row."""

from __future__ import annotations

from typing import Any, NamedTuple

from weft import nn, zoo

NETWORKS: dict[str, Any] = {
    "lenet_300_100": lambda: nn.Sequential(nn.Flatten(), zoo.lenet_300_100()),
    "lenet5": zoo.lenet5,
    "small_cnn": lambda: zoo.small_cnn(size=28),
    "resnet20": lambda: zoo.resnet20(channels=1),
}
NORMALIZE = {"mnist": ((0.1307,), (0.3081,)), "fashion-mnist": ((0.286,), (0.353,))}


class Recipe(NamedTuple):
    """The settings of a row. All trainings are one cycle of the learning rate up to the one that is given."""

    network: str
    method: str = "pack"  # or "fixed", "int8"
    data: str = "mnist"
    batch: int = 100
    shift: int = 0  # pixels, of training images
    flip: bool = False

    epochs: int = 30
    rate: float = 0.1
    weight_decay: float = 5e-4

    channels: tuple[float, ...] = ()  # the share of the channels of each layer but the last that is kept
    channel_epochs: int = 8  # after that
    density: float | tuple[float, ...] = 1.0  # of all weights, chosen by LAMP scores, or of each layer, by magnitude
    steps: int = 4  # of pruning
    step_epochs: int = 4  # after each step
    final_epochs: int = 60  # after the last one, or with fixed point
    retrain_rate: float = 0.03
    retrain_shift: int = 0  # pixels, of training images from pruning on
    retrain_weight_decay: float = 1e-4
    distill: float = 0.0  # the share of the teacher's predictions in the loss
    teacher: str = ""  # the row whose uncompressed network teaches; default: this one
    teacher_epochs: int = 10
    shrink: bool = False  # remove neurons that pruning left without readers

    bits: int | tuple[int, ...] = 4  # of shared weights
    bias_bits: int = 0  # of shared biases; 0: float16
    share_epochs: int = 6
    share_rate: float = 1e-4
    fixed_bits: tuple[int, ...] = (8, 6)

    @property
    def normalize(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of the pixels."""
        return NORMALIZE[self.data]

    def make(self) -> nn.Module:
        made: nn.Module = NETWORKS[self.network]()
        return made

    def scaled(self, factor: float) -> Recipe:
        """The recipe with fewer or more epochs, at least one for each training that it has."""
        names = ("epochs", "teacher_epochs", "channel_epochs", "step_epochs", "final_epochs", "share_epochs")
        return self._replace(**{name: max(1, round(factor * getattr(self, name))) for name in names})


_HAN300 = Recipe("lenet_300_100", density=(0.083, 0.09, 0.26), bits=5)
_TAUGHT: dict[str, Any] = {"batch": 200, "distill": 0.7, "teacher": "int8-lenet5"}
_LENET5 = Recipe("lenet5", batch=200, epochs=10, rate=0.05, retrain_rate=0.03)
_SMALL = Recipe(
    "small_cnn", data="fashion-mnist", batch=200, epochs=20, rate=0.05, retrain_rate=0.03, shift=2, flip=True
)
_RESNET = _SMALL._replace(network="resnet20", batch=250, epochs=12, rate=0.2, retrain_rate=0.1)

RECIPES = {
    # the bits of Deep Compression and about its densities, layer by layer; "taught" with the predictions of LeNet-5
    "han-lenet_300_100": _HAN300._replace(batch=200, epochs=20, final_epochs=40, retrain_shift=1, distill=0.5),
    "han-lenet_300_100-taught": _HAN300._replace(**_TAUGHT),
    "han-lenet5": _LENET5._replace(
        epochs=20, density=(0.66, 0.12, 0.075, 0.19), bits=(6, 6, 5, 5), retrain_shift=1, distill=0.5
    ),
    # the smallest files at no loss
    "best-lenet_300_100": _HAN300._replace(density=0.038, bits=4, steps=10, step_epochs=3, bias_bits=5, **_TAUGHT),
    "best-lenet5": _LENET5._replace(
        channels=(0.5, 0.5, 0.2),
        channel_epochs=4,
        density=0.175,
        steps=4,
        step_epochs=2,
        final_epochs=40,
        share_epochs=3,
        retrain_shift=1,
        bias_bits=4,
        distill=0.7,
        shrink=True,
    ),
    "fashion-small_cnn": _SMALL._replace(
        density=0.23, distill=0.5, teacher="fashion-resnet20", teacher_epochs=12, step_epochs=3, final_epochs=20
    ),
    "fashion-resnet20": _RESNET._replace(density=0.12, distill=0.5, step_epochs=1, final_epochs=12, share_epochs=2),
    "fixed-lenet5": _LENET5._replace(method="fixed", distill=0.5, final_epochs=2),
    "fixed-small_cnn": _SMALL._replace(method="fixed", distill=0.5, final_epochs=2, share_rate=1e-5),
    "int8-lenet_300_100": Recipe("lenet_300_100", method="int8", batch=200, epochs=20),
    "int8-lenet5": _LENET5._replace(method="int8"),
    "int8-small_cnn": _SMALL._replace(method="int8"),
    "int8-resnet20": _RESNET._replace(method="int8"),
}
