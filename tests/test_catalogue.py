"""Counts what the catalogue says of each network on its graph."""

from math import prod

import pytest

from weft import nn, zoo
from weft.jobs.networks import VECTORS, built, vector
from weft.nn.module import without_values
from weft.zoo.catalogue import FACTS


def test_every_network_is_in_the_catalogue() -> None:
    assert list(FACTS) == zoo.names()


@pytest.mark.parametrize("name", FACTS)
def test_parameters_and_multiply_adds(name: str) -> None:
    facts = FACTS[name]
    with without_values():
        if facts.input is None or facts.classes is None:
            model = zoo.gpt2() if name == "gpt2" else zoo.find(name)(65)
            assert sum(prod(p.shape) for p in model.parameters()) == facts.parameters
            return
        channels, *size = facts.input
        if name in VECTORS and name != "lenet_300_100":
            model = vector(name, prod(facts.input), facts.classes)
        else:
            model = built(name, facts.classes, channels, (size[0], size[1]))
        found = nn.summary(model, (1, *facts.input))
    assert (found.parameters, found.macs) == (facts.parameters, facts.macs)
