"""What is known of the networks of the zoo."""

from __future__ import annotations

from functools import cache

from ...errors import WeftError
from ...jobs.networks import VECTORS, WRITERS, built, vector
from ...nn.module import without_values
from ...nn.summary import Summary, summary
from ...zoo.catalogue import FACTS


def tasks() -> list[str]:
    """What networks are for."""
    return sorted({facts.task for facts in FACTS.values()})


@cache
def layers_of(name: str) -> Summary | None:
    """The layers of a network for its usual input; None for networks of text. Nothing is computed or allocated."""
    facts = FACTS[name]
    if name in WRITERS or facts.input is None:
        return None
    channels, height, width = facts.input
    try:
        with without_values():
            if name in VECTORS and name != "lenet_300_100":
                model = vector(name, channels * height * width, facts.classes or 10)
            else:
                model = built(name, facts.classes or 10, channels, (height, width))
            return summary(model, (1, channels, height, width))
    except WeftError:
        return None
