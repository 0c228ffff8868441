"""Counts what the catalogue says of each network on its graph."""

import re
from math import prod
from pathlib import Path

import pytest

from weft import nn, zoo
from weft.jobs.networks import VECTORS, build_network, build_vector_network
from weft.nn.module import without_values
from weft.zoo.catalogue import FACTS, MODULES, declared_networks
from weft.zoo.facts import DECLARED


def test_the_catalogue_reads_what_the_decorators_declare() -> None:
    for name in zoo.names():
        assert zoo.find(name).__name__ == name
    assert FACTS == DECLARED
    assert list(FACTS) == zoo.names()
    folder = Path(zoo.__file__).parent
    declaring = {path.stem for path in folder.glob("*.py") if re.search(r"^@network\(", path.read_text(), re.MULTILINE)}
    assert declaring == set(MODULES), "a module of networks is missing in the list, or has none"


def test_facts_are_literals() -> None:
    with pytest.raises(ValueError, match="malformed node"):
        declared_networks("@network('text', parameters=COUNT)\ndef tiny(): ...")
    with pytest.raises(TypeError, match="sise"):
        declared_networks("@network('text', parameters=1, sise=3)\ndef tiny(): ...")


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
            model = build_vector_network(name, prod(facts.input), facts.classes)
        else:
            model = build_network(name, facts.classes, channels, (size[0], size[1]))
        found = nn.summary(model, (1, *facts.input))
    assert (found.parameters, found.macs) == (facts.parameters, facts.macs)
