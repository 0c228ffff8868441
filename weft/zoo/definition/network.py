"""A network from its text."""

from __future__ import annotations

from collections.abc import Sequence

from ... import nn
from .parse import parse_network
from .plan import plan_network


def network_from_text(text: str, input_shape: Sequence[int] | None = None, classes: int | None = None) -> nn.Module:
    """Build a network from its text, for examples of this shape and this number of classes; by default, those that the text names.

    The text is parsed and checked, never executed. DefinitionError says what is wrong with it, and where.

    >>> from weft import nn
    >>> model = network_from_text("layers: [flatten, {linear: {out: 8, activation: relu}}, linear: classes]", (1, 4, 4), 3)
    >>> nn.summary(model, (1, 1, 4, 4)).parameters
    163
    """
    return plan_network(parse_network(text), input_shape, classes).build()
