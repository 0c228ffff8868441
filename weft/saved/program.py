"""`weft.load`: a saved program as a module, whose parameters have their names."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from .. import packing
from ..compiler.store import CodeBundle
from ..derivatives import custom_vjp
from ..dtypes import DTypeLike
from ..errors import RunError, UserError
from ..graph import Graph
from ..graph.check import check
from ..graph.graph import substitute
from ..graph.node import Node
from ..graph.text import build, input_types, parse_syntax, split_type
from ..io.safetensors import views
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.convert import parameter as as_parameter
from ..ops.elementwise import stop_gradient
from ..random import Generator, default_generator
from ..records import dataclass
from ..tensor import Tensor, as_tensor, wrap
from ..tree import Structure, flatten, unflatten
from .archive import Archive
from .manifest import (
    DEFAULT_STREAM,
    DEFLATED_VERSION,
    PACKED_VERSION,
    FunctionManifest,
    Manifest,
    file_version,
    read_manifest,
)
from .packed_text import unpack_text
from .trust import trusted_code

_WEIGHTS = "weights.safetensors"
PACKED_WEIGHTS, PACKED_TEXT = "weights.packed", "program.packed"  # of packed programs
_DEFLATED_MANIFEST = "program.json"
_LONGEST_TEXT = 256 << 20
_OLD_CONSTANT = re.compile(
    r"constants\.\d+"
)  # names of constants in the first files of version 1; later ones have an underscore
_REMEMBERED = 64  # graphs for different sizes


class SavedFunction:
    """One function of a program: a graph for each size of the free dimensions."""

    def __init__(self, manifest: FunctionManifest, text: str, path: object) -> None:
        self.manifest, self.path, self.text = manifest, path, text
        self.arguments = [port for port in manifest.inputs if port.kind == "argument"]
        self.graph = lru_cache(_REMEMBERED)(self._graph)

    @cached_property
    def _syntax(self) -> Any:
        """The syntax tree of the graph, whose types of arguments are those of the manifest."""
        try:
            found = parse_syntax(self.text)
            types = input_types(found)
        except UserError as error:
            raise RunError("load", f"{self.manifest.graph} in {self.path} is damaged: {error.message}") from None
        for port, type_ in zip(self.manifest.inputs, types, strict=False):  # their number is checked with the graph
            if port.kind == "argument" and port.type != type_:
                raise RunError(
                    "load",
                    f"{self.path} is damaged: argument {port.name} is {port.type} in manifest.json and {type_} in {self.manifest.graph}.",
                )
        return found

    def _graph(self, sizes: tuple[tuple[str, int], ...]) -> Graph:
        syntax = self._syntax
        try:
            graph = check(build(syntax, sizes=dict(sizes)))
        except UserError as error:
            at = f"cannot be run with {', '.join(f'{n}={size}' for n, size in sizes)}, or " if sizes else ""
            raise RunError("load", f"{self.manifest.graph} in {self.path} {at}is damaged: {error.message}") from None
        wanted = len(self.manifest.inputs), len(self.manifest.outputs)
        if (len(graph.inputs), len(graph.outputs)) != wanted:
            raise RunError(
                "load", f"{self.manifest.graph} in {self.path} does not have the inputs and outputs of manifest.json."
            )
        return graph

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The arguments as tensors, in the order of the manifest."""
        self._syntax  # noqa: B018 (a damaged file is named before arguments are)
        leaves, structure = flatten((args, kwargs))
        if _plain(structure) != self.manifest.arguments:
            raise UserError(
                "Program",
                f"arguments {self.manifest.arguments} are required, got {_plain(structure)}. Where * stands, pass an array or a tensor; a list "
                "is a structure of several.",
            )
        return [self._argument(int(port.name), port.type, leaves) for port in self.arguments]

    def _argument(self, number: int, text: str, leaves: Sequence[Any]) -> Tensor:
        dtype, sizes = split_type(text)
        tensor = leaves[number] if isinstance(leaves[number], Tensor) else as_tensor(leaves[number])
        if tensor.dtype is not dtype or tensor.ndim != len(sizes):
            raise UserError("Program", f"argument {number} must be {text}, got {tensor._node.type}.")
        return tensor

    def sizes(self, tensors: Sequence[Tensor], limits: Mapping[str, int | None]) -> tuple[tuple[str, int], ...]:
        """The free dimensions of a call."""
        found: dict[str, int] = {}
        for port, tensor in zip(self.arguments, tensors, strict=True):
            for size, actual in zip(split_type(port.type)[1], tensor.shape, strict=True):
                wanted = int(size) if size.isdecimal() else found.setdefault(size, actual)
                if wanted != actual:
                    known = f" with {size} = {wanted}" if not size.isdecimal() else ""
                    raise UserError(
                        "Program", f"argument {port.name} must be {port.type}{known}, got {tensor._node.type}."
                    )
        for name, most in limits.items():
            if most is not None and found.get(name, 0) > most:
                raise UserError("Program", f"{name} of up to {most} is required, got {found[name]}.")
        return tuple(found.items())


@dataclass(frozen=True)
class ClosedFunction:
    """A function of a program for one size of each free dimension, with the tensors that it reads."""

    manifest: FunctionManifest
    graph: Graph
    tensors: dict[int, Tensor]  # inputs that are no arguments, by position


class Program(Module):
    """A saved program. It is called like what was saved, and its parameters have the names that they had.

    `labels`, `facts` and `manifest` are what was saved with it.

    >>> import weft, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     weft.save(f"{folder}/f.weft", lambda x: 2.0 * x, weft.zeros(3), licence="MIT")
    ...     program = weft.load(f"{folder}/f.weft")
    >>> program(weft.ones(2)).tolist(), program.facts["licence"]
    ([2.0, 2.0], 'MIT')
    """

    def __init__(
        self,
        manifest: Manifest,
        functions: Mapping[str, SavedFunction],
        tensors: Mapping[str, Tensor],
        path: object,
        code: Mapping[str, CodeBundle],
    ) -> None:
        self._code = dict(code)  # used while this program lives
        self._manifest, self._functions, self._path = manifest, dict(functions), path
        self._tensors: dict[str, Tensor] = dict(tensors)
        self._streams = {DEFAULT_STREAM: default_generator}
        for function in functions.values():
            for port in function.manifest.inputs:
                if port.kind == "stream" and port.name not in self._streams:
                    self._streams[port.name] = self._stream(port.name)
        for name, tensor in self._tensors.items():
            if tensor.requires_grad or not _OLD_CONSTANT.fullmatch(name):
                self._place(name, tensor)
        self._frozen = dict.fromkeys(name for name in manifest.frozen if name in self._tensors)

    def _stream(self, name: str) -> Generator:
        stream = Generator()
        stream.state = self._tensors.pop(f"{name}.key"), self._tensors.pop(f"{name}.offset")
        return stream

    def _place(self, name: str, tensor: Tensor) -> None:
        """Make a tensor an attribute, so that `named_tensors` gives it under its path; those with an underscore are not listed."""
        first, _, rest = name.partition(".")
        if first.startswith("_"):
            return
        if hasattr(Module, first):  # a function may call a variable `parameters` or `train`
            first += "_"
        place = vars(self)
        if not rest:
            place[first] = tensor
        elif isinstance(place.setdefault(first, {}), dict):
            place[first][rest] = tensor
        else:
            place[f"{first}.{rest}"] = tensor

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name != "training":
            raise UserError(
                "Program",
                f"a graph in a file reads the tensors that it was loaded with; {name!r} cannot be another one. Change values with "
                "assign or load.",
            )
        super().__setattr__(name, value)

    def astype(self, dtype: DTypeLike) -> Program:
        raise UserError(
            "Program",
            "the dtypes of a program in a file are fixed. Convert the network before it is saved, or its inputs and results.",
        )

    @property
    def manifest(self) -> Manifest:
        """All that the file says of the program."""
        return self._manifest

    @property
    def facts(self) -> dict[str, Any]:
        """What was saved beside the program: labels, preprocessing, metrics, licence, origin, the version of weft."""
        return self._manifest.facts

    @property
    def labels(self) -> list[str] | None:
        """The names of the classes."""
        return self._manifest.facts.get("labels")

    @property
    def compiled_targets(self) -> list[str]:
        """The targets whose compiled code came with the program and is trusted; see `weft.load`."""
        return list(self._code)

    def stored_tensors(self) -> dict[str, np.ndarray]:
        """The values of all tensors as the file names them, with the positions of random streams."""
        found = {name: tensor.numpy() for name, tensor in self._tensors.items()}
        for name, stream in self._streams.items():
            if name != DEFAULT_STREAM:
                key, offset = stream.state
                found |= {f"{name}.key": key.numpy(), f"{name}.offset": offset.numpy()}
        return found

    def graph_text(self, function: str) -> str:
        """The graph of a function as the file has it."""
        return self._functions[function].text

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph that a call with these arguments runs."""
        function = self._function()
        return function.graph(function.sizes(function.bind(args, kwargs), self._manifest.dimensions))

    def closed(self, sizes: Mapping[str, int]) -> ClosedFunction:
        """What a call runs for these sizes of the free dimensions, as plain data."""
        function, limits = self._function(), self._manifest.dimensions
        for name, size in sizes.items():
            if size < 1 or size > (limits[name] or size):
                raise UserError("Program", f"{name} of 1 to {limits[name] or 'any size'} is required, got {size}.")
        graph = function.graph(tuple(sizes.items()))
        tensors = {
            i: wrap(self._input(port.kind, port.name, iter(())))
            for i, port in enumerate(function.manifest.inputs)
            if port.kind != "argument"
        }
        return ClosedFunction(function.manifest, graph, tensors)

    def argument_types(self) -> list[str]:
        """The types of its arguments: float32[batch, 3]."""
        return [port.type for port in self._function().arguments]

    @property
    def argument_names(self) -> list[str]:
        """The names of its arguments; empty in files of early versions, unless there is only one."""
        names = [port.title for port in self._function().arguments]
        return names if all(names) else ["input"] if len(names) == 1 else []

    def result_types(self) -> list[str]:
        """The types of the arrays that it computes: float32[batch, 10]; empty in files of early versions."""
        return [port.type for port in self._function().manifest.outputs if port.kind == "result"]

    def _function(self) -> SavedFunction:
        return self._functions.get("train" if self.training else "eval") or next(iter(self._functions.values()))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        function = self._function()
        arguments = function.bind(args, kwargs)
        self._check_aliases(function.manifest, arguments)
        graph = function.graph(function.sizes(arguments, self._manifest.dimensions))
        given = iter(arguments)
        nodes = [self._input(port.kind, port.name, given) for port in function.manifest.inputs]
        for port, node, wanted in zip(function.manifest.inputs, nodes, graph.inputs, strict=True):
            if node.type != wanted.type:
                raise RunError(
                    "load",
                    f"{self._path} is damaged: {port.name} is {node.type} in {_WEIGHTS} and manifest.json, and {wanted.type} in {function.manifest.graph}.",
                )
        computed = [wrap(n) for n in substitute(graph.outputs, dict(zip(graph.inputs, nodes, strict=True)))]
        if not function.manifest.differentiable:
            computed = _without_derivative(computed, [wrap(n) for n in nodes if n.dtype.is_float])
        return self._deliver(function.manifest, computed, arguments)

    def _check_aliases(self, manifest: FunctionManifest, arguments: Sequence[Tensor]) -> None:
        """A tensor that the function changes must not be passed under a second name: the graph would read its old value there."""
        changed = [arguments[int(port.name)] for port in manifest.outputs if port.kind == "argument"]
        changed += [self._tensors[port.name] for port in manifest.outputs if port.kind == "state"]
        names = Counter(map(id, (*arguments, *self._tensors.values())))
        if any(names[id(tensor)] > 1 for tensor in changed):
            raise UserError(
                "Program", "a tensor that the program changes is required once, got it as two arguments. Pass a copy."
            )

    def _input(self, kind: str, name: str, given: Any) -> Node:
        if kind == "argument":
            tensor: Tensor = next(given)
        elif kind == "stream":
            tensor = self._streams[name].offset
        else:
            stream = self._streams.get(name.removesuffix(".key")) if name.endswith(".key") else None
            tensor = self._tensors[name] if stream is None else stream.key
        return tensor.node

    def _deliver(self, manifest: FunctionManifest, computed: Sequence[Tensor], arguments: Sequence[Tensor]) -> Any:
        """Change state as the function did, and give its result."""
        results = []
        for port, tensor in zip(manifest.outputs, computed, strict=True):
            if port.kind == "result":
                results.append(tensor)
            elif port.kind == "stream":
                self._streams[port.name].offset = tensor
            elif port.kind == "state":
                self._tensors[port.name].assign(tensor)
            elif port.kind == "grad":
                self._tensors[port.name].grad = tensor
            else:
                arguments[int(port.name)].assign(tensor)
        for name in manifest.cleared:
            self._tensors[name].grad = None
        find: dict[str, Callable[[Any], Any]] = {
            "computed": lambda n: results[n],
            "argument": lambda n: arguments[n],
            "tensor": lambda n: self._tensors[n],
            "value": lambda n: n,
        }
        return unflatten(manifest.result, [find[source](which) for source, which in manifest.results])

    def details(self) -> str:
        functions = "; ".join(
            f"{name}({', '.join(port.type for port in f.arguments)})" for name, f in self._functions.items()
        )
        return f"{functions}; {len(self._tensors)} tensors"


def _plain(structure: Structure) -> Structure:
    """A structure with tuples for named tuples."""
    kind = tuple if structure.kind is not None and issubclass(structure.kind, tuple) else structure.kind
    return Structure(kind, structure.keys, tuple(map(_plain, structure.children)))


def _refuse_derivative(*_: Any) -> Any:
    raise UserError(
        "Program",
        "this program was saved from a function with its own derivative (custom_vjp), which a file cannot hold: it runs, but cannot "
        "be differentiated.",
    )


def _without_derivative(computed: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Results whose derivative with respect to any input is an error."""
    cut = [stop_gradient(t) for t in computed]
    found: list[Tensor] = custom_vjp(lambda *_: cut, _refuse_derivative)(*inputs)
    return found


def load(path: str | os.PathLike[str], *, trust_compiled: bool | None = None) -> Program:
    """Load a program that `weft.save` wrote; see `weft.load`. Its text is parsed and checked, never executed."""
    place = Path(path)
    archive = Archive(place)
    manifest, text_of = _manifest(archive)
    functions = {
        name: SavedFunction(function, text_of(function.graph, _LONGEST_TEXT), place)
        for name, function in manifest.functions.items()
    }
    trainable = set(manifest.trainable)
    with archive.reading(PACKED_WEIGHTS if PACKED_WEIGHTS in archive.entries else _WEIGHTS) as content:
        arrays = _arrays(archive, content)
        tensors = {name: asarray(array, copy=False) for name, array in arrays.items()}
        tensors = {name: as_parameter(t) if name in trainable else t for name, t in tensors.items()}
    _check_names(manifest, tensors, place)
    return Program(manifest, functions, tensors, place, trusted_code(archive, trust_compiled))


def _manifest(archive: Archive) -> tuple[Manifest, Callable[[str, int], str]]:
    """The manifest, and what reads the texts of graphs by name, with a limit of their bytes."""
    text = archive.text("manifest.json", _LONGEST_TEXT)
    version = file_version(text, archive.path)
    if version == PACKED_VERSION:
        return _packed_manifest(archive)
    if version == DEFLATED_VERSION:
        return read_manifest(archive.inflated(_DEFLATED_MANIFEST, _LONGEST_TEXT), archive.path), archive.inflated
    return read_manifest(text, archive.path), archive.text


def _packed_manifest(archive: Archive) -> tuple[Manifest, Callable[[str, int], str]]:
    """The same of a packed program, whose graphs follow the manifest in the order in which it names them."""
    try:
        text, *graphs = unpack_text(archive.read(PACKED_TEXT).tobytes(), _LONGEST_TEXT)
    except ValueError as error:
        raise archive.damaged(f"{PACKED_TEXT}: {error}") from None
    manifest = read_manifest(text, archive.path)
    names = manifest.graph_names
    if len(names) != len(graphs):
        raise archive.damaged(f"{PACKED_TEXT} has {len(graphs)} graphs, the manifest names {len(names)}")
    texts = dict(zip(names, graphs, strict=True))
    return manifest, lambda name, _: texts[name]


def _arrays(archive: Archive, content: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors of a program: views of the file, or decoded from packed weights."""
    if PACKED_WEIGHTS in archive.entries:
        return packing.unpack_tensors(content.tobytes(), f"{PACKED_WEIGHTS} in {archive.path}")
    return views(content, f"{_WEIGHTS} in {archive.path}")


def _check_names(manifest: Manifest, tensors: Mapping[str, Tensor], path: object) -> None:
    for function in manifest.functions.values():
        used = {port.name for port in function.inputs if port.kind == "state"}
        used |= {port.name for port in function.outputs if port.kind in ("state", "grad")}
        used |= {which for source, which in function.results if source == "tensor"} | set(function.cleared)
        streams = {port.name for port in function.inputs if port.kind == "stream"} - {DEFAULT_STREAM}
        used |= {f"{name}.{part}" for name in streams for part in ("key", "offset")}
        missing = sorted(used - set(tensors) - {f"{DEFAULT_STREAM}.key"})
        if missing:
            raise RunError(
                "load", f"{path} is damaged: manifest.json names {', '.join(missing[:5])}, which {_WEIGHTS} lacks."
            )
