"""A program as plain data: compiled kernels, and which of them run on which memory. It is kept on disk, and played on a GPU.

Memory is named by slots: an entry of the frame, a list of addresses, and an offset in it. Control flow has recipes for its bodies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...graph.node import Node
from ..ir.program import Program
from ..ir.storage import Slot, nbytes
from .compile import Binary
from .program import Ask, Control, Copy, Launch, Step, launches
from .source import KernelSource, Site
from .vendor.specs import to_json

Caster = Callable[[Sequence[KernelSource]], list[Binary]]
DECIDES = ("cond", "while_loop")  # control flow that asks a value what to do next


@dataclass(frozen=True)
class Start:
    """A launch: the number of a kernel, of how many programs, and on which memory."""

    kernel: int
    programs: int
    slots: tuple[Slot, ...]
    status: int  # the number of its errors' place in the status, 0 if it cannot meet any
    once: bool


@dataclass(frozen=True)
class Move:
    """A copy within the GPU's memory."""

    source: Slot
    target: Slot


@dataclass(frozen=True)
class Consult:
    """A product or convolution by a library: what it is, as text, and the memory of its arguments."""

    spec: str
    slots: tuple[Slot, ...]
    once: bool


@dataclass(frozen=True)
class Flow:
    """Control flow. Carried values come first among the inputs, then sequences, then constants."""

    kind: str  # call, cond, while_loop, scan
    bodies: tuple[Recipe, ...]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot | None, ...]
    rooms: Mapping[str, Slot]
    carried: int = 0
    sequences: int = 0
    length: int = 0
    reverse: bool = False
    history: bool = False
    sizes: tuple[int, ...] = ()  # bytes of each input; of a sequence, those of one step
    results: tuple[int, ...] = ()  # bytes of each of the body's results


Action = Start | Move | Flow | Consult


@dataclass(frozen=True)
class Recipe:
    """What is done, in order."""

    actions: tuple[Action, ...]

    @property
    def decides(self) -> bool:
        """Whether the host must look at values in between."""
        return any(
            isinstance(a, Flow) and (a.kind in DECIDES or any(b.decides for b in a.bodies)) for a in self.actions
        )

    @property
    def every(self) -> Iterator[Action]:
        """All actions, those of bodies in place of control flow."""
        for action in self.actions:
            if isinstance(action, Flow):
                for body in action.bodies:
                    yield from body.every
            else:
                yield action

    @property
    def starts(self) -> Iterator[Start]:
        return (action for action in self.every if isinstance(action, Start))


@dataclass(frozen=True)
class Prepared:
    """A recipe with its kernels, and the memory it needs beside its inputs and outputs."""

    recipe: Recipe
    kernels: tuple[Binary, ...]
    arena: int
    kept: int
    statuses: int  # launches that can meet wrong values

    def to_bytes(self) -> bytes:
        head = {
            "recipe": _plain(self.recipe), "arena": self.arena, "kept": self.kept, "statuses": self.statuses,
            "kernels": [{"symbol": k.symbol, "warps": k.warps, "shared": k.shared, "size": len(k.code)} for k in self.kernels],
        }  # fmt: skip
        return json.dumps(head).encode() + b"\n" + b"".join(k.code for k in self.kernels)

    @classmethod
    def from_bytes(cls, content: bytes) -> Prepared:
        text, _, codes = content.partition(b"\n")
        head, kernels, begin = json.loads(text), [], 0
        for known in head["kernels"]:
            code = codes[begin : begin + known["size"]]
            kernels.append(Binary(code, known["symbol"], known["warps"], known["shared"]))
            begin += known["size"]
        return cls(_recipe(head["recipe"]), tuple(kernels), head["arena"], head["kept"], head["statuses"])


def prepared(program: Program, cast: Caster) -> Prepared:
    """The program as a recipe, its kernels compiled."""
    steps = launches(program)
    numbers = {source: i for i, source in enumerate(dict.fromkeys(launch.kernel for launch in every_launch(steps)))}
    statuses = iter(range(1, 1 << 30))
    recipe = _written(steps, numbers, statuses)
    count = sum(1 for start in recipe.starts if start.status)
    memory = program.memory
    return Prepared(recipe, tuple(cast(list(numbers))), memory.arena, memory.kept, count)


def sites(program: Program) -> list[tuple[Site, ...]]:
    """The errors of each launch that can meet some, in the order of their places in the status."""
    return [launch.kernel.errors for launch in every_launch(launches(program)) if launch.kernel.errors]


def every_launch(steps: Sequence[Step]) -> Iterator[Launch]:
    """All launches, those of bodies in place of control flow."""
    for step in steps:
        if isinstance(step, Launch):
            yield step
        elif isinstance(step, Control):
            for body in step.bodies:
                yield from every_launch(body)


def _written(steps: Sequence[Step], numbers: Mapping[KernelSource, int], statuses: Iterator[int]) -> Recipe:
    actions: list[Action] = []
    for step in steps:
        if isinstance(step, Launch):
            status = next(statuses) if step.kernel.errors else 0
            actions.append(Start(numbers[step.kernel], step.kernel.programs, step.slots, status, step.once))
        elif isinstance(step, Copy):
            actions.append(Move(step.source, step.target))
        elif isinstance(step, Ask):
            actions.append(Consult(to_json(step.spec), step.slots, step.once))
        else:
            bodies = tuple(_written(body, numbers, statuses) for body in step.bodies)
            actions.append(_flow(step, bodies))
    return Recipe(tuple(actions))


def _flow(step: Control, bodies: tuple[Recipe, ...]) -> Flow:
    node: Node = step.node
    flow = Flow(node.op.name, bodies, step.inputs, step.outputs, step.rooms, sizes=tuple(map(nbytes, node.inputs)))
    if node.op.name == "while_loop":
        return replace(flow, carried=node.params[2])
    if node.op.name != "scan":
        return flow
    body, carried, sequences, length, reverse, history = node.params
    sizes = [
        size // max(1, length) if carried <= i < carried + sequences else size for i, size in enumerate(flow.sizes)
    ]
    return replace(
        flow, carried=carried, sequences=sequences, length=length, reverse=bool(reverse), history=bool(history),
        sizes=tuple(sizes), results=tuple(map(nbytes, body.outputs)),
    )  # fmt: skip


# --- as text --------------------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Recipes and what is in them as lists and dicts; a dict's "is" says what it was."""
    if isinstance(value, Slot):
        return [value.base, value.offset, value.nbytes]
    if isinstance(value, Recipe | Start | Move | Flow | Consult):
        names = value.__dataclass_fields__
        return {"is": type(value).__name__} | {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {name: _plain(v) for name, v in value.items()}
    return value


def _recipe(known: Mapping[str, Any]) -> Recipe:
    return Recipe(
        tuple(_READERS[a["is"]]({name: v for name, v in a.items() if name != "is"}) for a in known["actions"])
    )


def _slots(known: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(None if s is None else Slot(*s) for s in known)


def _flow_from(known: dict[str, Any]) -> Flow:
    return Flow(
        **known | {
            "bodies": tuple(map(_recipe, known["bodies"])), "inputs": _slots(known["inputs"]), "outputs": _slots(known["outputs"]),
            "rooms": {name: Slot(*slot) for name, slot in known["rooms"].items()},
            "sizes": tuple(known["sizes"]), "results": tuple(known["results"]),
        }
    )  # fmt: skip


_READERS: dict[str, Callable[[dict[str, Any]], Action]] = {
    "Start": lambda known: Start(**known | {"slots": _slots(known["slots"])}),
    "Move": lambda known: Move(Slot(*known["source"]), Slot(*known["target"])),
    "Flow": _flow_from,
    "Consult": lambda known: Consult(**known | {"slots": _slots(known["slots"])}),
}

__all__ = ["Action", "Consult", "Flow", "Move", "Prepared", "Recipe", "Start", "every_launch", "prepared", "sites"]
