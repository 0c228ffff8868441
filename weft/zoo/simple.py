"""The first networks: one layer, and layers one after the other. They take vectors, or anything that is flattened to them."""

from __future__ import annotations

from itertools import pairwise

from .. import nn
from ..errors import UserError


def linear_regression(inputs: int, outputs: int = 1) -> nn.Linear:
    """y = W x + b, to be trained with the squared error. That is convex: it begins at zero.

    >>> from weft import nn
    >>> nn.summary(linear_regression(3), (1, 3)).parameters
    4
    """
    return nn.Linear(inputs, outputs, init="zeros")


def logistic_regression(inputs: int, classes: int = 2) -> nn.Linear:
    """softmax(W x + b), as logits: to be trained with the cross entropy. That is convex: it begins at zero."""
    return nn.Linear(inputs, classes, init="zeros")


def perceptron(inputs: int, outputs: int = 1) -> nn.Linear:
    """Rosenblatt's threshold unit, sign(w x + b), without the sign (Rosenblatt 1958).

    His rule, for targets t of -1 and 1, is gradient descent with rate 1 on relu(-t y): only mistakes move the weights.
    They begin near zero, not at it: there relu has the derivative zero.
    """
    return nn.Linear(inputs, outputs, init="normal")


def mlp(*sizes: int, activation: str = "relu", dropout: float = 0.0) -> nn.Sequential:
    """Linear layers from size to size with an activation between them; dropout after each activation if asked for.

    >>> from weft import nn
    >>> nn.summary(mlp(2, 8, 1), (1, 2)).parameters
    33
    """
    if len(sizes) < 2:
        raise UserError("mlp", f"two sizes or more are required (inputs, hidden..., outputs), got {sizes}.")
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes[:-1]):
        layers.append(nn.Linear(inputs, outputs, activation=activation))
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1], init="glorot_uniform"))
