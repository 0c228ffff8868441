"""Networks that are written as text: what a text is worth while it is typed, and the words that complete it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from ...records import dataclass
from ...zoo.catalogue import FACTS
from ...zoo.definition import (
    DefinitionError,
    NetworkCosts,
    NetworkPlan,
    NotExpressible,
    TextProblem,
    layer_specs,
    network_costs,
    network_picture,
    parse_network,
    plan_network,
    zoo_network_as_text,
)

NOT_AS_TEXT = frozenset({"gpt", "gpt2", "whitened_cnn"})  # networks of the zoo that the language has no layers for
BATCHES = (1, 8, 16, 32, 64, 128, 256)
USUAL_BATCH = 64
START = """\
# Layers from the input to the classes. Ctrl Space completes.
name: {name}
input: [3, 64, 64]
classes: 10
layers:
  - conv_norm: {{out: 32, kernel: 5, stride: 2}}
  - repeat:
      times: 2
      layers:
        - conv_norm: double
        - residual:
            layers:
              - conv_norm: same
              - conv_norm: {{out: same, activation: none}}
            activation: relu
        - max_pool: 2
  - global_avg_pool
  - dropout: 0.2
  - linear: classes
"""


@dataclass(frozen=True)
class DesignCheck:
    """What is known of a text: its problems, or the network with its costs."""

    text: str
    problems: tuple[TextProblem, ...] = ()
    plan: NetworkPlan | None = None
    costs: NetworkCosts | None = None

    @property
    def is_valid(self) -> bool:
        return self.plan is not None

    def as_json(self, batch: int = USUAL_BATCH) -> dict[str, Any]:
        """For programs and for the editor of the page."""
        found: dict[str, Any] = {"valid": self.is_valid, "problems": [problem_as_json(one) for one in self.problems]}
        if self.plan is not None and self.costs is not None:
            found |= {
                "name": self.plan.definition.name, "input": self.plan.input, "output": self.plan.output, "classes": self.plan.classes,
                "parameters": self.costs.parameters, "macs": self.costs.macs, "batch": batch, "training_bytes": self.costs.training_bytes(batch),
                "layers": [asdict(layer) for layer in self.costs.layers],
            }  # fmt: skip
        return found


def problem_as_json(problem: TextProblem) -> dict[str, Any]:
    """A problem with its place and, where there is one, the change that repairs it."""
    fix = problem.fix and {**asdict(problem.fix.place), "text": problem.fix.text, "title": problem.fix.title}
    return {**asdict(problem.place), "message": problem.message, "hint": problem.hint, "fix": fix}


@lru_cache(64)
def check_design(text: str) -> DesignCheck:
    """Check a text. Equal texts are checked once: several pages may show one network."""
    try:
        plan = plan_network(parse_network(text))
    except DefinitionError as error:
        return DesignCheck(text, error.problems)
    return DesignCheck(text, (), plan, network_costs(plan))


def picture_of(check: DesignCheck, detailed: bool = False, bad_line: int | None = None) -> str:
    """The picture of a network as SVG; empty if there is none."""
    return "" if check.plan is None else network_picture(check.plan, detailed).svg(bad_line)


@lru_cache(64)
def zoo_text(name: str) -> str | None:
    """A network of the zoo as text; None if the language cannot express it."""
    try:
        return zoo_network_as_text(name).text
    except NotExpressible:
        return None


def why_not_text(name: str) -> str:
    """Why a network of the zoo has no text; empty if it has one."""
    try:
        zoo_network_as_text(name)
    except NotExpressible as error:
        return error.message
    return ""


def vocabulary() -> Mapping[str, Any]:
    """What the editor completes: layers with their arguments, and words of counts."""
    layers = [
        {
            "name": spec.name, "about": spec.about, "group": spec.group, "main": spec.main,
            "arguments": [
                {"name": one.name, "help": one.help, "default": one.default_text, "choices": list(one.type.choices), "type": one.type.name}
                for one in spec.arguments.values()
            ],
        }
        for spec in layer_specs().values()
    ]  # fmt: skip
    words = {
        "same": "as many as the input",
        "double": "twice the input channels",
        "half": "half the input channels",
        "classes": "one for each class",
    }
    return {"layers": layers, "words": words, "settings": ["name", "about", "input", "classes", "blocks", "layers"]}


def startable() -> list[str]:
    """The networks of the zoo that a new one can start from."""
    return [name for name in sorted(FACTS) if name not in NOT_AS_TEXT]
