"""Networks made by random choice of layers: a guard against tuning for the networks that are known.

A seed gives the same network for ever; channel counts, kernels and image sizes are odd on purpose.
"""

from __future__ import annotations

from random import Random

from weft import nn

ACTIVATIONS = (nn.ReLU, nn.SiLU, nn.Tanh, nn.ReLU6, nn.GELU, nn.HardSwish)
WIDEST = 192  # channels
SMALLEST = 6  # a side below which nothing gets smaller


def random_network(seed: int) -> tuple[nn.Sequential, tuple[int, ...]]:
    """A convolutional network and the shape of its input (batch, channels, height, width).

    >>> network, shape = random_network(0)
    >>> len(shape), network is not random_network(0)[0], repr(network) == repr(random_network(0)[0])
    (4, True, True)
    """
    choose = Random(seed)
    side, batch = choose.randrange(24, 65), choose.randrange(8, 51)
    made = _Builder(choose, channels=choose.choice((1, 3)), side=side)
    shape = (batch, made.channels, side, side)
    for _ in range(choose.randrange(4, 9)):
        choose.choice((made.convolution, made.convolution, made.residual, made.depthwise, made.grouped, made.pool))()
    return made.finished(classes=choose.randrange(5, 101)), shape


class _Builder:
    """The layers so far, and the shape of what they give."""

    def __init__(self, choose: Random, channels: int, side: int) -> None:
        self.choose, self.channels, self.side = choose, channels, side
        self.layers: list[nn.Module] = []

    def convolution(self) -> None:
        kernel, outputs = self.choose.choice((1, 3, 3, 3, 5, 7)), self._width()
        stride = 2 if self.side > SMALLEST and self.choose.random() < 0.4 else 1
        self._add(nn.Conv2d(self.channels, outputs, kernel, stride=stride, padding=kernel // 2))
        self.channels, self.side = outputs, -(-self.side // stride)
        self._norm_and_activation()

    def residual(self) -> None:
        conv = nn.Conv2d(self.channels, self.channels, 3, padding=1)
        body = nn.Sequential(conv, nn.BatchNorm2d(self.channels), self._activation())
        self._add(nn.Residual(body, activation="relu"))

    def depthwise(self) -> None:
        kernel = self.choose.choice((3, 5, 7))
        self._add(nn.Conv2d(self.channels, self.channels, kernel, padding=kernel // 2, groups=self.channels))
        self._norm_and_activation()

    def grouped(self) -> None:
        groups = self.choose.choice([g for g in (1, 2, 3, 4, 6, 8) if self.channels % g == 0])
        outputs = groups * max(1, self._width() // groups)
        self._add(nn.Conv2d(self.channels, outputs, 3, padding=1, groups=groups))
        self.channels = outputs
        self._norm_and_activation()

    def pool(self) -> None:
        if self.side <= SMALLEST:
            return
        kind = self.choose.choice((nn.MaxPool2d, nn.AvgPool2d))
        overlapping = self.choose.random() < 0.5
        self._add(kind(3, stride=2, padding=1) if overlapping else kind(2))
        self.side = (self.side + 1) // 2 if overlapping else self.side // 2

    def finished(self, classes: int) -> nn.Sequential:
        if self.choose.random() < 0.5 or self.channels * self.side**2 > 20_000:
            self._add(nn.GlobalAvgPool())
            features = self.channels
        else:
            self._add(nn.Flatten())
            features = self.channels * self.side**2
        hidden = self.choose.randrange(20, 300)
        return nn.Sequential(*self.layers, nn.Linear(features, hidden, activation="relu"), nn.Linear(hidden, classes))

    def _width(self) -> int:
        if self.channels <= 3:
            return self.choose.randrange(8, 50)
        return min(WIDEST, max(8, int(self.channels * self.choose.uniform(0.7, 3.0))))

    def _norm_and_activation(self) -> None:
        norm = self.choose.random()
        if norm < 0.7:
            self._add(nn.BatchNorm2d(self.channels))
        elif norm < 0.85:
            groups = self.choose.choice([g for g in (1, 2, 3, 4) if self.channels % g == 0])
            self._add(nn.GroupNorm(groups, self.channels))
        self._add(self._activation())

    def _activation(self) -> nn.Module:
        return self.choose.choice(ACTIVATIONS)()

    def _add(self, layer: nn.Module) -> None:
        self.layers.append(layer)
