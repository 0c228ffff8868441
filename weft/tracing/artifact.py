"""A traced function as a value: plain data and the text of a graph, with references to state by name.

`weft.jit(f).artifact(*args)` gives it. Two traces of one function for arguments of the same structure give equal artifacts; another
option, shape or constant gives another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Literal

from ..graph import Graph
from ..options import CompileOptions
from ..records import dataclass
from ..tensor import Tensor
from ..tree import Structure
from .naming import names_of
from .state import StateTensor
from .traced import TracedFunction


@dataclass(frozen=True)
class GraphInput:
    """What an input of the graph stands for."""

    kind: Literal["stream", "argument", "number", "state", "constant"]
    name: str  # of a stream its position is passed; of an argument the path to it in (args, kwargs)
    is_replaced: bool = False  # state or a donated argument, which the program overwrites
    order: tuple[int, ...] | None = None  # of its axes in memory, if not the usual one
    content: bytes | None = None  # of a constant

    def __str__(self) -> str:
        digest = "" if self.content is None else f", content {_digest(self.content)}"
        order = "" if self.order is None else f", axes in memory {self.order}"
        return f"{self.kind} {self.name}{', replaced' if self.is_replaced else ''}{order}{digest}"


@dataclass(frozen=True)
class GraphOutput:
    """What an output of the graph is: the next position of a stream, new state, a new .grad or argument, or a computed result."""

    kind: Literal["stream", "state", "grad", "argument", "result"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, eq=False)
class Artifact:
    """See the head of this file. `print` it; compare it with `==`; use it as a key, or its `digest`, which is the same in every process.

    >>> import weft
    >>> w = weft.asarray([1.0, 2.0])
    >>> @weft.jit
    ... def step(x):
    ...     w.assign(w - 0.5 * x)
    >>> artifact = step.artifact(weft.ones(2))
    >>> [str(i) for i in artifact.inputs], [str(o) for o in artifact.outputs]
    (['argument args.0', 'state w, replaced'], ['state w'])
    >>> artifact == step.artifact(weft.zeros(2)), artifact == step.artifact(weft.zeros(1))
    (True, False)
    """

    graph: Graph
    options: CompileOptions
    inputs: tuple[GraphInput, ...]  # one for each of the graph
    outputs: tuple[GraphOutput, ...]  # likewise
    arguments: Structure  # of (args, kwargs)
    static: tuple[str, ...]  # arguments that are part of the program: path=value
    numbers: tuple[str, ...]  # arithmetic on numbers that Python does before each run: n2 = add(n0, 1) -> int
    result: Structure  # of what the function gives
    results: tuple[str, ...]  # where each leaf of it comes from: computed 0, argument 1, number 2, or outside w

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the tensors from outside that the function reads or replaces."""
        return tuple(i.name for i in self.inputs if i.kind == "state")

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the random streams that it draws from."""
        return tuple(i.name for i in self.inputs if i.kind == "stream")

    def text(self) -> str:
        """All of it, constants by their digests."""
        return "\n".join([*self._lines(), "", self.graph.text()])

    def _lines(self) -> Iterator[str]:
        yield f"options    {self.options}"
        yield f"arguments  {self.arguments}"
        for title, lines in (("static", self.static), ("numbers", self.numbers)):
            yield from (f"{title:10} {line}" for line in lines)
        yield from (f"input      {i}: {node.type}" for i, node in zip(self.inputs, self.graph.inputs, strict=True))
        yield from (f"output     {o}: {node.type}" for o, node in zip(self.outputs, self.graph.outputs, strict=True))
        yield f"result     {self.result}"
        yield from (f"leaf       {leaf}" for leaf in self.results)

    @cached_property
    def digest(self) -> str:
        """A hash of all of it, in hexadecimal."""
        return _digest(repr(self.options).encode() + self.text().encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Artifact) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<artifact {self.digest[:12]}: {self.graph!r}>"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def artifact_of(function: Callable[..., Any], traced: TracedFunction) -> Artifact:
    """A traced function as plain data."""
    return _Describer(function, traced).artifact()


class _Describer:
    def __init__(self, function: Callable[..., Any], traced: TracedFunction) -> None:
        self.traced, self.names = traced, names_of(function)
        self.states = [self._state(i, state) for i, state in enumerate(traced.states)]
        self.paths = leaf_paths(traced.call.structure)
        self.values = [path for path, is_value in zip(self.paths, traced.call.is_value, strict=True) if is_value]

    def artifact(self) -> Artifact:
        traced, given = self.traced, self.traced.arguments
        static = [p for p, is_value in zip(self.paths, traced.call.is_value, strict=True) if not is_value]
        return Artifact(
            traced.graph,
            traced.options,
            tuple(self._inputs()),
            tuple(self._outputs()),
            traced.call.structure,
            tuple(f"{path}={leaf!r}" for path, leaf in zip(static, traced.call.static, strict=True)),
            tuple(given.number_recorder.texts()),
            given.structure,
            tuple(f"{r.source} {self._outside(r.value) if r.source == 'outside' else r.number}" for r in given.results),
        )

    def _outside(self, value: Any) -> str:
        return self._name(value, "tensor") if isinstance(value, Tensor) else repr(value)

    def _name(self, thing: Any, otherwise: str) -> str:
        return self.names.get(id(thing), otherwise)

    def _streams(self) -> list[str]:
        return [self._name(stream, f"stream{i}") for i, stream in enumerate(self.traced.streams)]

    def _inputs(self) -> Iterator[GraphInput]:
        given = self.traced.arguments
        yield from (GraphInput("stream", name) for name in self._streams())
        donated = {donation.value for donation in self.traced.donations}
        yield from (GraphInput("argument", self.values[i], i in donated) for i in given.arrays)
        for index, dtype in given.number_recorder.inputs:
            yield GraphInput("number", f"n{index} as {dtype.name}")
        yield from self.states

    def _state(self, number: int, state: StateTensor) -> GraphInput:
        tensor = state.find()
        if state.is_constant:
            return GraphInput("constant", f"constant{number}", False, state.order, tensor.numpy().tobytes())
        return GraphInput("state", self._name(tensor, f"state{number}"), state.written, state.order)

    def _outputs(self) -> Iterator[GraphOutput]:
        traced = self.traced
        yield from (GraphOutput("stream", name) for name in self._streams())
        first = traced.states[0].position if traced.states else 0
        yield from (GraphOutput("state", self.states[position - first].name) for position in traced.updates.values())
        replaced = [t for t, number in traced.grads if number is not None]
        yield from (GraphOutput("grad", f"{self._name(t, f'tensor{i}')}.grad") for i, t in enumerate(replaced))
        changed = traced.arguments.changed
        computed = len(traced.tracked) - len(changed)
        yield from (GraphOutput("result", str(i)) for i in range(computed))
        yield from (GraphOutput("argument", self.values[i]) for i in changed)


def leaf_paths(structure: Structure) -> list[str]:
    """For each leaf of (args, kwargs) the path to it: args.0, kwargs.rate, args.1.weight."""
    found: list[str] = []
    waiting = [("args", structure.children[0]), ("kwargs", structure.children[1])][::-1]
    while waiting:
        path, part = waiting.pop()
        if part.kind is None:
            found.append(path)
            continue
        keys = part.keys or getattr(part.kind, "_fields", None) or range(len(part.children))
        waiting += [(f"{path}.{key}", child) for key, child in zip(keys, part.children, strict=True)][::-1]
    return found
