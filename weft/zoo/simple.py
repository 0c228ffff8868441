"""Simple networks: linear models and multilayer perceptrons. Inputs are vectors, or are flattened to vectors."""

from __future__ import annotations

from itertools import pairwise

from .. import nn
from ..errors import UserError
from .facts import network


@network("regression", input=(1, 28, 28), classes=10, parameters=7_850, macs=7_840, takes_vectors=True)
def linear_regression(inputs: int, outputs: int = 1) -> nn.Linear:
    """y = W x + b, for the squared error. The problem is convex, so weights are initialized to zero.

    >>> from weft import nn
    >>> nn.summary(linear_regression(3), (1, 3)).parameters
    4
    """
    return nn.Linear(inputs, outputs, init="zeros")


@network("classification", input=(1, 28, 28), classes=10, parameters=7_850, macs=7_840, takes_vectors=True)
def logistic_regression(inputs: int, classes: int = 2) -> nn.Linear:
    """softmax(W x + b), as logits, for the cross entropy. The problem is convex, so weights are initialized to zero."""
    return nn.Linear(inputs, classes, init="zeros")


@network("classification", input=(1, 28, 28), classes=10, parameters=7_850, macs=7_840, takes_vectors=True)
def perceptron(inputs: int, outputs: int = 1) -> nn.Linear:
    """Rosenblatt's threshold unit, sign(w x + b), without the sign (Rosenblatt 1958).

    The perceptron rule, for targets t of -1 and 1, is gradient descent with learning rate 1 on relu(-t y): only misclassified
    examples change the weights. They are initialized near zero, not to zero, where the derivative of relu is zero.
    """
    return nn.Linear(inputs, outputs, init="normal")


@network("classification", input=(1, 28, 28), classes=10, parameters=266_610, macs=266_200, takes_vectors=True)
def mlp(*sizes: int, activation: str = "relu", dropout: float = 0.0) -> nn.Sequential:
    """Linear layers of the given sizes with an activation between them, and optional dropout after each activation.

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
