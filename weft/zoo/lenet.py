"""LeNet networks for handwritten digits (LeCun et al. 1998), for 28 x 28 images with one channel, and a modern CNN for any size."""

from __future__ import annotations

from .. import nn
from ..errors import UserError
from .facts import network
from .simple import mlp


@network(
    "classification",
    input=(1, 28, 28),
    classes=10,
    parameters=266_610,
    macs=266_200,
    needs_size=True,
    takes_vectors=True,
)
def lenet_300_100(classes: int = 10, channels: int = 1, *, size: int = 28) -> nn.Sequential:
    """Two hidden layers, of 300 and 100 units: 266,610 parameters. A common benchmark for pruning."""
    return mlp(channels * size * size, 300, 100, classes)


@network("classification", input=(1, 28, 28), classes=10, parameters=431_080, macs=2_293_000, needs_size=True)
def lenet5(classes: int = 10, channels: int = 1, *, size: int = 28, width: int = 1) -> nn.Sequential:
    """LeNet-5 as in Caffe: wider, with max pooling and one ReLU layer; 431,080 parameters.

    Its convolutions have no activation: max pooling is the nonlinearity.
    """
    side = ((size - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 20 * width, 5, init="lecun_uniform"),
        nn.MaxPool2d(2),
        nn.Conv2d(20 * width, 50 * width, 5, init="lecun_uniform"),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(50 * width * side * side, 500 * width, init="lecun_uniform", activation="relu"),
        nn.Linear(500 * width, classes, init="lecun_uniform"),
    )


@network("classification", input=(1, 28, 28), classes=10, parameters=61_706, macs=416_520, needs_size=True)
def lenet5_classic(
    classes: int = 10, channels: int = 1, *, size: int = 28, activation: str = "tanh", pooling: str = "mean"
) -> nn.Sequential:
    """LeNet-5 close to the paper: 6-16-120-84, tanh, average pooling; a padding of 2 gives the paper's 32 x 32 for 28 x 28 images.

    61,706 parameters. The paper's own has 60,000: its pooling is learned, its second convolution is connected to only some of the
    maps, and its last layer uses radial basis functions. With activation="relu" and pooling="max" it is the form of most tutorials.
    """
    if pooling not in ("mean", "max"):
        raise UserError("lenet5_classic", f"pooling must be 'mean' or 'max', got {pooling!r}.")
    pool = nn.AvgPool2d if pooling == "mean" else nn.MaxPool2d
    side = (size // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2, init="lecun_uniform", activation=activation),
        pool(2),
        nn.Conv2d(6, 16, 5, init="lecun_uniform", activation=activation),
        pool(2),
        nn.Flatten(),
        nn.Linear(16 * side * side, 120, init="lecun_uniform", activation=activation),
        nn.Linear(120, 84, init="lecun_uniform", activation=activation),
        nn.Linear(84, classes, init="lecun_uniform"),
    )


@network("classification", input=(1, 28, 28), classes=10, parameters=1_199_882, macs=11_992_448)
def small_cnn(
    classes: int = 10, channels: int = 1, *, size: int | None = None, dropout: float = 0.25, width: int = 32, hidden: int = 128
) -> nn.Sequential:  # fmt: skip
    """Two convolutions and two linear layers with dropout, the first example of Keras and PyTorch.

    1,199,882 parameters for 28 x 28 with one channel. Without a size it is inferred at the first call.
    The dropout rate before the last layer is doubled.
    """
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, activation="relu"),
        nn.Conv2d(width, 2 * width, 3, activation="relu"),
        nn.MaxPool2d(2),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.Linear(None if size is None else 2 * width * (size // 2 - 2) ** 2, hidden, activation="relu"),
        nn.Dropout(2 * dropout),
        nn.Linear(hidden, classes, init="glorot_uniform"),
    )
