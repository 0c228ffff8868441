"""Tracing at several sizes of free dimensions: the graphs of a program, and the names of the tensors that they use."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any

import numpy as np

from ..derivatives import CUSTOM
from ..dtypes import DEFAULT_FLOAT, DType, DTypeLike, as_dtype
from ..errors import UserError
from ..graph import Graph
from ..graph.graph import substitute
from ..graph.node import ITEM, PLACEHOLDER, Node, Type, placeholder
from ..graph.text import externs, subgraphs, to_text
from ..nn.module import Module
from ..options import CompileOptions
from ..random import Generator, default_generator
from ..records import dataclass
from ..tensor import Tensor, wrap
from ..tracing.context import free_sizes
from ..tracing.naming import names_of
from ..tracing.traced import TracedFunction, traced
from ..tree import Structure, flatten, unflatten
from .dimensions import Sizes, merge_texts, merge_types, sample_sizes, show_sizes
from .invariants import (
    check_adds_to_no_gradient,
    check_reads_no_changing_value,
    check_same_at_all_sizes,
    content_of,
    uses_same_tensors,
    with_gradients,
)
from .manifest import CONSTANTS, DEFAULT_STREAM, FunctionManifest, Port

INPUT, OUTPUT = "input", "output"  # the names of an only argument and an only result, which a manifest does not repeat
_OPTIONS = CompileOptions("reference")  # nothing is compiled: the graph is the same for every device


@dataclass(frozen=True)
class TensorSpec:
    """The type of an input. A size may be a name, which makes the dimension free; `length<=512` limits it.

    >>> TensorSpec(("batch", 3, 224, 224)).text
    'float32[batch, 3, 224, 224]'
    """

    shape: tuple[int | str, ...]
    dtype: DTypeLike = DEFAULT_FLOAT

    def __post_init__(self) -> None:
        limits: dict[str, int | None] = {}
        sizes: list[int | str] = []
        for size in self.shape:
            name, _, most = size.partition("<=") if isinstance(size, str) else ("", "", "")
            is_name = name.isidentifier() and not keyword.iskeyword(name) and (not most or most.strip().isdecimal())
            if not is_name and not (isinstance(size, int) and not isinstance(size, bool) and size >= 0):
                raise UserError(
                    "TensorSpec",
                    f"a size is a number of 0 or more, or a name such as 'batch' or 'length<=512'; got {size!r}.",
                )
            sizes.append(name if is_name else size)
            if is_name:
                limits[name] = int(most) if most else None
        object.__setattr__(self, "shape", tuple(sizes))
        object.__setattr__(self, "dtype", as_dtype(self.dtype, "TensorSpec"))
        object.__setattr__(self, "dimensions", limits)

    dimensions: Mapping[str, int | None] = field(init=False, default_factory=dict)  # free ones, with their limits

    @property
    def text(self) -> str:
        assert isinstance(self.dtype, DType)
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        assert isinstance(self.dtype, DType)
        found: np.dtype[Any] = np.dtype(self.dtype.numpy)
        return found

    def at(self, sizes: Mapping[str, int]) -> Tensor:
        """A tensor without a value, for tracing."""
        assert isinstance(self.dtype, DType)
        shape = tuple(sizes[n] if isinstance(n, str) else n for n in self.shape)
        return wrap(placeholder(object(), Type(shape, self.dtype)))

    def zeros(self, sizes: Mapping[str, int]) -> np.ndarray:
        """An array of this type."""
        return np.zeros(self.at(sizes).shape, self.numpy_dtype)


def example_sizes(inputs: Any, dimensions: Mapping[str, int | None]) -> Sizes:
    """The sizes of free dimensions in examples; 1 for those of a `TensorSpec`."""
    examples = [leaf for leaf in flatten(inputs)[0] if isinstance(leaf, Tensor | np.ndarray) and leaf.ndim]
    return {name: examples[0].shape[0] if name == "batch" and examples else 1 for name in dimensions}


def call_specs(inputs: Any, dynamic: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments as trees of `TensorSpec`."""
    args, kwargs = (
        ((), inputs) if isinstance(inputs, dict) else (inputs if isinstance(inputs, tuple) else (inputs,), {})
    )
    leaves, structure = flatten((args, kwargs))
    _check_keys(structure)
    found: tuple[tuple[Any, ...], dict[str, Any]] = unflatten(structure, [_spec(leaf, dynamic) for leaf in leaves])
    return found


def _spec(leaf: Any, dynamic: bool) -> TensorSpec:
    if isinstance(leaf, TensorSpec):
        return leaf
    if not isinstance(leaf, Tensor | np.ndarray):
        raise UserError(
            "save",
            f"inputs must be arrays, tensors or TensorSpec, got {leaf!r}. Pass a number as weft.asarray(number) to keep it an input, "
            "or fix it: weft.save(path, lambda x: f(x, 0.1), x).",
        )
    shape: tuple[int | str, ...] = tuple(leaf.shape)
    return TensorSpec(("batch", *shape[1:]) if dynamic and shape else shape, leaf.dtype)


def _check_keys(structure: Structure) -> None:
    if structure.kind is dict and not all(isinstance(key, str) for key in structure.keys):
        raise UserError("save", f"keys of dicts must be text, got {structure.keys}.")
    for child in structure.children:
        _check_keys(child)


def _result_types(found: Sequence[TracedFunction], points: Sequence[Sizes]) -> Iterator[str]:
    """The types of gradients and results, in terms of the free dimensions."""
    for versions in zip(*(one.graph.outputs[one.first_result :] for one in found), strict=True):
        yield merge_types([str(output.type) for output in versions], points)


@contextmanager
def in_mode(module: Module, training: bool) -> Iterator[None]:
    """Inside, the module is in training or in evaluation mode."""
    before = [(part, part.training) for part in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for part, was in before:
            part.training = was


@contextmanager
def _nothing_rebound(function: Callable[..., Any]) -> Iterator[None]:
    """Refuse a network that replaces a tensor by another one: the file has a place for values of the first. The network stays as it was."""
    parts = function.modules() if isinstance(function, Module) else []
    before = [(part, {n: v for n, v in vars(part).items() if isinstance(v, Tensor)}) for part in parts]
    try:
        yield
    finally:
        rebound = [(part, n, v) for part, known in before for n, v in known.items() if vars(part).get(n) is not v]
        for part, name, tensor in rebound:
            vars(part)[name] = tensor
    if rebound:
        names = ", ".join(f"{type(part).__name__}.{name}" for part, name, _ in rebound)
        raise UserError(
            "save",
            f"the function replaces the tensor {names} by another one, which a program cannot keep. Assign its new value instead: "
            f"self.{rebound[0][1]}.assign(value).",
        )


@dataclass
class ProgramTracer:
    """Collects the functions of a program and the tensors that they use."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    functions: dict[str, FunctionManifest] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    ops: dict[str, int] = field(default_factory=dict)
    constants: dict[Any, str] = field(default_factory=dict)  # names of arrays by their content
    graphs: dict[str, list[tuple[Sizes, Graph]]] = field(default_factory=dict)  # of each function, at all sizes

    def __post_init__(self) -> None:
        leaves, self.structure = flatten((self.args, self.kwargs))
        self.specs: list[TensorSpec] = leaves
        self.dimensions: dict[str, int | None] = {}
        for spec in self.specs:
            for name, most in spec.dimensions.items():
                known = self.dimensions.get(name)
                self.dimensions[name] = known if most is None else most if known is None else min(most, known)

    def add(self, name: str) -> None:
        """Trace the function, as it is now, at several sizes."""
        points, found = self._traced_at_points()
        if not uses_same_tensors(found):
            with free_sizes():  # layers compute their tables, of positions for example, by the graph
                points, found = self._traced_at_points()
        self._name_tensors()
        check_same_at_all_sizes(found, points)
        check_reads_no_changing_value(found[0], self.names)
        with with_gradients(found[0]) as any_missing:
            if any_missing:
                check_adds_to_no_gradient(self._traced(points[0]))
        graphs = [_without_rules(t.graph) for t in found]
        text = merge_texts([to_text(graph, layers=True) for graph, _ in graphs], points)
        self.texts[name] = text
        self.graphs[name] = [(at, graph) for at, (graph, _) in zip(points, graphs, strict=True)]
        self.functions[name] = self._describe(name, found[0], graphs[0][1], _result_types(found, points))
        for graph in [*subgraphs(graphs[0][0]), graphs[0][0]]:
            self.ops |= {n.op.name: n.op.version for n in graph.nodes if n.op is not PLACEHOLDER}

    def _traced_at_points(self) -> tuple[list[Sizes], list[TracedFunction]]:
        points = self._points()
        return points, [self._traced_or_refused(at) for at in points]

    def _points(self) -> list[Sizes]:
        """Sizes that differ from all numbers of the graph that are the same at two sizes."""
        if not self.dimensions:
            return [{}]
        some = sample_sizes(self.dimensions)
        return sample_sizes(
            self.dimensions,
            frozenset.intersection(*(_numbers(self._traced_or_refused(some[i]).graph) for i in (0, -3))),
        )

    def _traced_or_refused(self, sizes: Sizes) -> TracedFunction:
        """Traced at sizes that were not the user's, and for which the function may not be made."""
        try:
            return self._traced(sizes)
        except UserError as error:
            if not sizes:
                raise
            raise UserError(
                "save",
                f"the function fails for {show_sizes(sizes)}: [{error.where}] {error.message} If a size has a limit, name it, such as "
                "TensorSpec(('batch', 'length<=512')); or fix all sizes with dynamic=False.",
            ) from None

    def _traced(self, sizes: Sizes) -> TracedFunction:
        leaves = [spec.at(sizes) for spec in self.specs]
        args, kwargs = unflatten(self.structure, leaves)
        with _nothing_rebound(self.function):
            return traced(self.function, args, kwargs, (), _OPTIONS, for_device=False)

    def _name_tensors(self) -> None:
        """Paths by which the function reaches its tensors; of a network those of its parameters."""
        prefix = "self." if isinstance(self.function, Module) else ""
        known = {i: n.removeprefix(prefix) for i, n in names_of(self.function).items()}
        if isinstance(self.function, Module):
            self.tensors |= self.function.named_tensors()
            known |= {id(t): n for n, t in self.tensors.items()}
        self.names |= known

    def merge_equal(self) -> None:
        """A network that computes the same in both modes has one function."""
        both = self.functions["eval"], self.functions.get("train")
        if both[1] is None or self.texts["train"] != self.texts["eval"]:
            return
        if both[0] == replace(both[1], graph=both[0].graph):  # equal texts may read different tensors
            del self.functions["train"], self.texts["train"]

    def _describe(self, name: str, found: TracedFunction, has_rules: bool, types: Iterator[str]) -> FunctionManifest:
        titles = [name if name != INPUT else "" for name in argument_names(self.function, self.structure)]
        streams = {id(s.key): self._stream(s) for s in found.streams}
        states = [self._state(i, state.find(), state.is_constant, streams) for i, state in enumerate(found.states)]
        inputs = [
            *(Port("stream", self._stream(s)) for s in found.streams),
            *(Port("argument", str(i), self.specs[i].text, titles[i]) for i in found.arguments.arrays),
            *states,
        ]
        first = found.states[0].position if found.states else 0
        computed = len(found.tracked) - len(found.arguments.changed)
        replaced = [t for t, number in found.grads if number is not None]
        result = found.arguments.structure
        _check_keys(result)
        given = zip(found.arguments.results, result_names(result), strict=True)
        results = {one.number: title for one, title in given if one.source == "computed" and title != OUTPUT}
        outputs = [
            *(Port("stream", self._stream(s)) for s in found.streams),
            *(Port("state", states[position - first].name) for position in found.updates.values()),
            *(Port("grad", self._known(t), next(types)) for t in replaced),
            *(Port("result", str(i), next(types), results.get(i, "")) for i in range(computed)),
            *(Port("argument", str(i)) for i in found.arguments.changed),
        ]
        return FunctionManifest(
            f"{name}.py", self.structure, tuple(inputs), tuple(outputs), result,
            tuple(self._source(r.source, r.number, r.value) for r in found.arguments.results),
            tuple(self._known(t) for t, number in found.grads if number is None), not has_rules,
        )  # fmt: skip

    def _stream(self, stream: Generator) -> str:
        if stream is default_generator:
            return DEFAULT_STREAM
        name = self.names.get(id(stream), f"stream{len(self.names)}")
        self.tensors |= {f"{name}.key": stream.key, f"{name}.offset": stream.offset}
        self.names[id(stream)] = name
        return name

    def _state(self, number: int, tensor: Tensor, is_constant: bool, streams: Mapping[int, str]) -> Port:
        if id(tensor) in streams:
            return Port("state", f"{streams[id(tensor)]}.key")
        if is_constant:
            return Port("state", self._constant(tensor))
        name = self._known(tensor, f"state{number}")
        if name.endswith(".grad"):
            raise UserError(
                "save",
                f"the function reads {name}, which was computed outside of it. Clear it before saving (w.grad = None), or compute it inside.",
            )
        return Port("state", name)

    def _constant(self, tensor: Tensor) -> str:
        """The name of an array that the function made while it was traced. Equal ones are saved once."""
        name = self.constants.setdefault(content_of(tensor), f"{CONSTANTS}{len(self.constants)}")
        self.tensors.setdefault(name, tensor)
        return name

    def _known(self, tensor: Tensor, otherwise: str = "tensor") -> str:
        name = self.names.setdefault(id(tensor), otherwise)
        self.tensors.setdefault(name, tensor)
        return name

    def _source(self, source: str, number: int, value: Any) -> tuple[str, Any]:
        if source == "outside":
            return ("tensor", self._known(value)) if isinstance(value, Tensor) else ("value", value)
        return source, number


def stated(function: Any, name: str, otherwise: Any) -> Any:
    """What a network that was loaded from a file states about itself: `facts` and `argument_names`. Layers of others may have these names."""
    return getattr(function, name) if isinstance(getattr(type(function), name, None), property) else otherwise


def argument_names(function: Any, structure: Structure) -> list[str]:
    """Names of the arguments: those of the function's parameters, with positions where one argument holds several tensors."""
    stored: list[str] = stated(function, "argument_names", [])
    if len(stored) == structure.leaves:
        return stored
    args, kwargs = structure.children
    called = function.forward if isinstance(function, Module) else function
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    known = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    named = [(known[i] if i < len(known) else f"input_{i}", child) for i, child in enumerate(args.children)]
    named += list(zip(map(str, kwargs.keys), kwargs.children, strict=True))
    if len(named) == 1 and not kwargs.children:
        named = [(INPUT, named[0][1])]
    return _leaf_names(named)


def result_names(structure: Structure) -> list[str]:
    """ "output", or its names in a dict, or its positions in a tuple."""
    if structure.leaves == 1:
        return [OUTPUT]
    children, keys = structure.children, structure.keys
    labels = map(str, keys) if structure.kind is dict else (f"output_{i}" for i in range(len(children)))
    return _leaf_names(list(zip(labels, children, strict=True)))


def _leaf_names(named: list[tuple[str, Structure]]) -> list[str]:
    return [
        name if child.leaves == 1 else f"{name}_{i}"
        for name, child in named
        for i in range(child.leaves)
    ]  # fmt: skip


def _numbers(graph: Graph) -> frozenset[int]:
    """All sizes and whole numbers in a graph."""
    found: set[int] = set()
    for part in [*subgraphs(graph), graph]:
        for node in part.nodes:
            waiting = [*node.shape, *(node.params if node.op is not PLACEHOLDER else ())]
            while waiting:
                value = waiting.pop()
                if isinstance(value, tuple):
                    waiting += value
                elif isinstance(value, int | float):
                    found.add(int(value) if value == int(value) else 0) if abs(value) < 1e9 else None
    return frozenset(found)


def _without_rules(graph: Graph) -> tuple[Graph, bool]:
    """The graph without derivatives written in Python (`custom_vjp`), which a file cannot hold, and whether there were any."""
    seen = {
        node: node.inputs[0].inputs[node.param("index")]
        for node in graph.nodes
        if node.op is ITEM and node.inputs[0].op is CUSTOM
    }
    if seen:
        # A replacement may itself contain another custom value: substitute from the inputs on.
        done: dict[Node, Node] = {}
        for node, value in seen.items():
            (done[node],) = substitute([value], done)
        graph = Graph(graph.inputs, substitute(graph.outputs, done))
    rest = externs(graph)
    if rest:
        raise UserError("save", f"the function uses a value that cannot be saved: {rest[0]!r}.")
    return graph, bool(seen)
