"""The manifest of a saved program: its functions, their inputs and outputs, and facts for people.

`read_manifest` checks every field that loading relies on. Unknown fields are kept: a later minor version may add some.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from ..errors import RunError, UserError
from ..graph.node import OPS
from ..graph.text import split_type
from ..records import dataclass
from ..tree import Structure

FORMAT, VERSION = "weft-program", 1
PACKED_VERSION = 3  # of programs with packed weights: manifest.json is only a head, the manifest is in program.packed
DEFLATED_VERSION = 2  # of earlier ones: the manifest is in program.json, and graphs are entries of their own
DEFAULT_STREAM = "weft.random"  # the name of the stream that functions without a generator of their own draw from
CONSTANTS = "__constants__."  # names of arrays that a function made while it was traced begin with this
RESERVED = frozenset(
    {"format", "version", "weft", "dimensions", "functions", "trainable", "frozen", "ops"}
)  # not names of facts
_DEEPEST = 64  # lists in lists of arguments and results
_CONTAINERS: dict[str, type] = {"tuple": tuple, "list": list, "dict": dict, "none": type(None)}


@dataclass(frozen=True)
class Port:
    """An input or output of a graph: an argument or result, a tensor of the program, a random stream, or a gradient."""

    kind: str  # argument, state or stream; result, state, stream, argument or grad
    name: str
    type: str = ""  # of arguments and results: float32[batch, 3]
    title: str = ""  # of arguments and results: the name of the parameter, or the key of the result

    def as_json(self) -> dict[str, str]:
        pairs = (("kind", self.kind), ("name", self.name), ("type", self.type), ("title", self.title))
        return {k: v for k, v in pairs if v}


@dataclass(frozen=True)
class FunctionManifest:
    """One function of the program. `results` says where each leaf of its result comes from."""

    graph: str  # the entry with its text
    arguments: Structure  # of (args, kwargs)
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    result: Structure
    results: tuple[tuple[str, Any], ...]  # ("computed", 0), ("argument", 1), ("tensor", name), ("value", 3.0)
    cleared: tuple[str, ...] = ()  # tensors whose .grad is set to None
    differentiable: bool = True

    def as_json(self) -> dict[str, Any]:
        return {
            "graph": self.graph,
            "arguments": structure_as_json(self.arguments),
            "inputs": [port.as_json() for port in self.inputs],
            "outputs": [port.as_json() for port in self.outputs],
            "result": structure_as_json(self.result),
            "results": [list(source) for source in self.results],
            "cleared": list(self.cleared),
            "differentiable": self.differentiable,
        }


@dataclass(frozen=True)
class Manifest:
    """All of it."""

    functions: dict[str, FunctionManifest]
    dimensions: dict[str, int | None]  # free ones, with the largest size
    trainable: tuple[str, ...]
    ops: dict[str, int]
    frozen: tuple[str, ...] = ()  # parameters that `unfreeze` makes trainable again
    facts: dict[str, Any] = field(default_factory=dict)  # labels, preprocessing, metrics, licence, origin, weft ...

    @property
    def graph_names(self) -> list[str]:
        """The entries with the texts of graphs; functions may share one."""
        return list(dict.fromkeys(function.graph for function in self.functions.values()))

    def as_text(self, version: int = VERSION, indent: int | None = 1) -> str:
        content = {
            "format": FORMAT,
            "version": version,
            **self.facts,
            "dimensions": self.dimensions,
            "functions": {name: function.as_json() for name, function in self.functions.items()},
            "trainable": list(self.trainable),
            "frozen": list(self.frozen),
            "ops": self.ops,
        }
        separators = (",", ":") if indent is None else None
        return json.dumps(content, indent=indent, separators=separators, ensure_ascii=False) + "\n"


def structure_as_json(structure: Structure) -> Any:
    """`*` for a leaf, else the kind of container with its children. Named tuples are saved as tuples."""
    if structure.kind is None:
        return "*"
    children = [structure_as_json(child) for child in structure.children]
    if structure.kind is dict:
        return {"dict": dict(zip(structure.keys, children, strict=True))}
    if structure.kind is type(None):
        return {"none": []}
    return {"list" if structure.kind is list else "tuple": children}


class _ManifestReader:
    """Reads fields of JSON with checks; an error names the field."""

    def __init__(self, path: object) -> None:
        self.path = path

    def refuse(self, why: str) -> RunError:
        return RunError("load", f"{self.path} is not a saved program, or is damaged: in manifest.json {why}.")

    def take(self, part: Any, name: str, kind: type | tuple[type, ...]) -> Any:
        if not isinstance(part, dict) or not isinstance(part.get(name), kind):
            raise self.refuse(f"{name!r} is missing or of another kind")
        return part[name]

    def texts(self, part: Any, name: str) -> tuple[str, ...]:
        values = self.take(part, name, list)
        if not all(isinstance(v, str) for v in values):
            raise self.refuse(f"{name!r} must list texts")
        return tuple(values)

    def limits(self, part: Mapping[str, Any]) -> dict[str, int | None]:
        if not all(name.isidentifier() and (most is None or type(most) is int) for name, most in part.items()):
            raise self.refuse("'dimensions' is wrong")
        return dict(part)

    def structure(self, part: Any, depth: int = 0) -> Structure:
        if part == "*":
            return Structure(None)
        if depth > _DEEPEST or not isinstance(part, dict) or len(part) != 1 or next(iter(part)) not in _CONTAINERS:
            raise self.refuse("a structure of arguments or results is wrong")
        ((kind, children),) = part.items()
        if not isinstance(children, dict if kind == "dict" else list):
            raise self.refuse("a structure of arguments or results is wrong")
        if isinstance(children, dict):
            inner = tuple(self.structure(child, depth + 1) for child in children.values())
            return Structure(dict, tuple(children), inner)
        return Structure(_CONTAINERS[kind], (), tuple(self.structure(child, depth + 1) for child in children))

    def ports(self, part: Any, name: str, kinds: Sequence[str]) -> tuple[Port, ...]:
        found = []
        for port in self.take(part, name, list):
            kind, called = self.take(port, "kind", str), self.take(port, "name", str)
            if kind not in kinds:
                raise self.refuse(f"{name!r} has the unknown kind {kind!r}")
            texts = (port.get(key, "") for key in ("type", "title"))  # later than the first files of version 1
            found.append(Port(kind, called, *(text if isinstance(text, str) else "" for text in texts)))
        return tuple(found)

    def function(self, part: Any) -> FunctionManifest:
        arguments = self.structure(self.take(part, "arguments", dict))
        if arguments.kind is not tuple or [c.kind for c in arguments.children] != [tuple, dict]:
            raise self.refuse("'arguments' must be a tuple and a dict")
        return FunctionManifest(
            self.take(part, "graph", str),
            arguments,
            self.ports(part, "inputs", ("argument", "state", "stream")),
            self.ports(part, "outputs", ("result", "state", "stream", "argument", "grad")),
            self.structure(part.get("result")),
            tuple(self.source(s) for s in self.take(part, "results", list)),
            self.texts(part, "cleared"),
            self.take(part, "differentiable", bool),
        )

    def source(self, part: Any) -> tuple[str, Any]:
        match part:
            case ["computed" | "argument", int() as number] if number >= 0 and not isinstance(number, bool):
                return part[0], number
            case ["tensor", str() as name]:
                return "tensor", name
            case ["value", bool() | int() | float() as value]:
                return "value", value
        raise self.refuse("'results' is wrong")


def read_manifest(text: str, path: object) -> Manifest:
    """The manifest in a text, or an error that says what is wrong or too new."""
    reader = _ManifestReader(path)
    content = _checked_content(reader, text)
    functions = {name: reader.function(part) for name, part in reader.take(content, "functions", dict).items()}
    if not functions:
        raise reader.refuse("'functions' is empty")
    dimensions = reader.limits(reader.take(content, "dimensions", dict))
    for function in functions.values():
        _check_numbers(reader, function, dimensions)
    return Manifest(
        functions,
        dimensions,
        reader.texts(content, "trainable"),
        _check_ops(reader, reader.take(content, "ops", dict), content.get("weft", "?")),
        reader.texts(content, "frozen") if "frozen" in content else (),  # later than the first files of version 1
        {name: value for name, value in content.items() if name == "weft" or name not in RESERVED},
    )


def file_version(text: str, path: object) -> int:
    """The version of the format that manifest.json names: VERSION if it is the manifest itself, others if it is the head of a packed program."""
    found: int = _checked_content(_ManifestReader(path), text)["version"]
    return found


def packed_head(writer: str) -> str:
    """The manifest.json of a packed program: as much as an older weft needs to say that it is too old."""
    return json.dumps({"format": FORMAT, "version": PACKED_VERSION, "weft": writer}, separators=(",", ":"))


def _checked_content(reader: _ManifestReader, text: str) -> dict[str, Any]:
    """The JSON of a manifest in a format and version that is known here."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise reader.refuse(f"the JSON is wrong ({error})") from None
    if reader.take(content, "format", str) != FORMAT:
        raise reader.refuse(f"the format is {content['format']!r}")
    version = reader.take(content, "version", int)
    if version < 1:
        raise reader.refuse(f"the version is {version}")
    if version > PACKED_VERSION:
        raise RunError(
            "load",
            f"{reader.path} has, by its manifest.json, version {version} of the format; this weft reads up to version {PACKED_VERSION}. Install a "
            f"newer weft (the file was written by weft {content.get('weft', '?')}).",
        )
    found: dict[str, Any] = content
    return found


def _check_numbers(reader: _ManifestReader, function: FunctionManifest, dimensions: Mapping[str, Any]) -> None:
    """Arguments have types that can be read, and no number of an argument or result is out of range."""
    given = [port for port in (*function.inputs, *function.outputs) if port.kind == "argument"]
    numbers = [port.name for port in given]
    if not all(name.isdecimal() and len(name) < 9 and int(name) < function.arguments.leaves for name in numbers):
        raise reader.refuse("the number of an argument is wrong")
    for port in (port for port in function.inputs if port.kind == "argument"):
        try:
            sizes = split_type(port.type)[1]
        except UserError as error:
            raise reader.refuse(error.message.rstrip(".")) from None
        if not all((size.isdecimal() and len(size) < 19) or size in dimensions for size in sizes):
            raise reader.refuse(f"the sizes of {port.type!r} are neither numbers nor free dimensions")
    arguments = sum(port.kind == "argument" for port in function.inputs)
    most = {"computed": sum(port.kind == "result" for port in function.outputs), "argument": arguments}
    if any(source in most and which >= most[source] for source, which in function.results):
        raise reader.refuse("the number of a result is wrong")
    if len(function.results) != function.result.leaves:
        raise reader.refuse("the structure of the result does not fit its parts")


def _check_ops(reader: _ManifestReader, ops: Mapping[str, Any], writer: object) -> dict[str, int]:
    """The versions of ops that a program uses: none may be unknown or newer than ours."""
    if not all(isinstance(version, int) for version in ops.values()):
        raise reader.refuse("'ops' must map names to versions")
    unknown = sorted(name for name in ops if name not in OPS)
    newer = sorted(name for name in ops if name in OPS and ops[name] > OPS[name].version)
    if unknown or newer:
        raise RunError(
            "load",
            f"{reader.path} was written by weft {writer} and uses, by its manifest.json, ops that this weft "
            f"{'does not have' if unknown else 'has in an older version'}: {', '.join(unknown or newer)}. Install a newer weft, or the "
            "package that declares them.",
        )
    return dict(ops)
