"""The text form of a graph: runnable Python that parses back to the same nodes.

    from weft.primitives import *

    def graph(x0: "float32[3]", x1: "float32[3]"):
        v0 = mul(x0, x1)  # float32[3]
        v1 = sum(v0, axes=(0,))  # float32[]
        return (v1,)

With layers, a line says which one it belongs to: `v0 = mul(x0, x1)  # float32[3] @ layers.0 Linear`.
Sizes may be expressions of free dimensions, given when the text is parsed: `x0: "float32[batch, 3]"`, `shape=(2*batch, 3)`.
Bodies of control flow come first, as separate functions. Values without a text form (arrays, parameters, custom
derivative rules) are listed by `externs(graph)` and written `extern[i]`; a program that runs the text defines `extern`.
Parsing never executes code: it interprets Python's syntax tree, so untrusted text is safe.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..dtypes import DTYPES, DType
from ..errors import Scope, UserError, in_scope
from .graph import VIEWS, Graph
from .node import OPS, PLACEHOLDER, Node, Type, make, placeholder, toposort

_DTYPES = {d.name: d for d in DTYPES}
_HEADER = "from weft.primitives import *"
_NO_GRAPH = "the text of a graph needs a function called 'graph'."
_TYPE = re.compile(r"(\w+)\[(|[^,\[\]]+(, [^,\[\]]+)*)\]")
_DEEPEST = 32  # operations inside each other in an expression of sizes
_LARGEST = 1 << 63  # sizes and offsets in the text of a graph are below this
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], int | float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def to_text(graph: Graph, *, layers: bool = False) -> str:
    """The graph as a Python function, after its subgraphs; with the layer that each line belongs to, or without."""
    every = subgraphs(graph)
    names = {g: f"body{i}" for i, g in enumerate(every)} | {graph: "graph"}
    table = {id(value): i for i, value in enumerate(externs(graph))}
    return "\n\n".join([_HEADER, *(_function(g, names, table, layers) for g in [*every, graph])]) + "\n"


def subgraphs(graph: Graph) -> list[Graph]:
    """The graphs inside a graph, innermost first."""
    return toposort([graph], lambda g: [p for node in g.nodes for p in node.params if isinstance(p, Graph)])[:-1]


def externs(graph: Graph) -> list[Any]:
    """The parameters without a text form, in the order of their numbers in the text."""
    found: dict[int, Any] = {}
    for part in [*subgraphs(graph), graph]:
        for node in part.nodes:
            if node.op is not PLACEHOLDER:
                for value in node.params:
                    if not _has_text(value):
                        found.setdefault(id(value), value)
    return list(found.values())


def _has_text(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_has_text, value))
    return value is None or isinstance(value, bool | int | float | str | DType | Graph)


def _function(graph: Graph, names: dict[Graph, str], table: dict[int, int], layers: bool) -> str:
    called = {node: f"x{i}" for i, node in enumerate(graph.inputs)}
    head = ", ".join(f'{name}: "{node.type}"' for node, name in called.items())
    lines = [f"def {names[graph]}({head}):"]
    # Computed from no input. They are one node for all graphs: which layer made it first depends on what else is alive.
    constants: set[Node] = set()

    def spell(value: Any) -> str:
        if isinstance(value, Graph):
            return names[value]
        if isinstance(value, DType):
            return value.name
        if isinstance(value, tuple):
            return "(" + "".join(f"{spell(v)}, " for v in value).removesuffix(" " if len(value) == 1 else ", ") + ")"
        return repr(value) if _has_text(value) else f"extern[{table[id(value)]}]"

    for node in graph.nodes:
        if node in called:
            continue
        called[node] = f"v{len(called) - len(graph.inputs)}"
        arguments = [called[i] for i in node.inputs]
        arguments += [f"{key}={spell(value)}" for key, value in zip(node.op.params, node.params, strict=True)]
        comment = ", ".join(map(str, node.outputs)) or str(node.type)
        if constants.issuperset(node.inputs):
            constants.add(node)
        elif layers and node.source is not None and node.source.scope is not None:
            comment += _layer_text(node.source.scope)
        lines.append(f"    {called[node]} = {node.op.name}({', '.join(arguments)})  # {comment}")
    results = "".join(f"{called[o]}, " for o in graph.outputs).rstrip()
    return "\n".join([*lines, f"    return ({results})"])


def _layer_text(scope: Scope) -> str:
    """` @ layers.0 Linear`, and the phase of a training step unless it is the forward pass."""
    phase = "" if scope.phase == "forward" else f" {scope.phase}"
    return f" @ {'_'.join(scope.path.split()) or '.'} {scope.kind or '-'}{phase}"


def _layer_comment(line: str) -> str | None:
    """What `_layer_text` has written at the end of a line."""
    _, found, layer = line.rpartition("#")[2].partition(" @ ")
    return layer if found else None


def _scope(comment: str | None) -> AbstractContextManager[None]:
    """The scope that a comment names; the names of layers are for display only."""
    words = (comment or "").split()
    if not 2 <= len(words) <= 3:
        return nullcontext()
    path, kind = words[:2]
    phase = words[2] if len(words) == 3 else "forward"
    return in_scope(Scope(path if path != "." else "", kind if kind != "-" else "", phase))


def parse(text: str, extern: Sequence[Any] = (), sizes: Mapping[str, int] | None = None) -> Graph:
    """Parse the text of a graph. `extern` supplies the values without a text form, `sizes` the free dimensions."""
    return build(parse_syntax(text), extern, sizes)


def parse_syntax(text: str) -> ast.Module:
    """The syntax tree of a graph's text: parsed once, `build` makes graphs of it for several sizes."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _not_a_graph(error) from None
    lines = text.splitlines()
    for function in module.body:
        for statement in function.body if isinstance(function, ast.FunctionDef) else ():
            if isinstance(statement, ast.Assign) and statement.lineno <= len(lines):
                statement.type_comment = _layer_comment(lines[statement.lineno - 1])
    return module


def input_types(module: ast.Module) -> list[str]:
    """The types of the inputs of a graph's text as they are written."""
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "graph":
            return [
                str(ast.literal_eval(one.annotation))
                for one in statement.args.args
                if isinstance(one.annotation, ast.Constant)
            ]
    raise UserError("parse", _NO_GRAPH)


def build(module: ast.Module, extern: Sequence[Any] = (), sizes: Mapping[str, int] | None = None) -> Graph:
    """The graph that a syntax tree describes."""
    try:
        return _parse_module(module, extern, sizes or {})
    except (ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, UserError):
            raise
        raise _not_a_graph(error) from None


def _not_a_graph(error: BaseException) -> UserError:
    return UserError("parse", f"this is not the text of a graph: {str(error) or type(error).__name__}.")


def _parse_module(module: ast.Module, extern: Sequence[Any], sizes: Mapping[str, int]) -> Graph:
    graphs: dict[str, Graph] = {}
    for statement in module.body:
        if isinstance(statement, ast.ImportFrom) and ast.unparse(statement) == _HEADER:
            continue  # the import that makes the text runnable
        if not isinstance(statement, ast.FunctionDef) or statement.name in graphs:
            raise _refuse(statement, "only functions are allowed here, each with a name of its own")
        graphs[statement.name] = _parse_function(statement, _BodyParser({}, graphs, extern, sizes))
    if "graph" not in graphs:
        raise UserError("parse", _NO_GRAPH)
    return graphs["graph"]


def split_type(text: str) -> tuple[DType, list[str]]:
    """`float32[batch, 4]` as its dtype and the texts of its sizes."""
    if not _is_type(text):
        raise UserError("parse", f"a type such as 'float32[3, 4]' is required, got {text!r}.")
    name, _, sizes = text.removesuffix("]").partition("[")
    return _DTYPES[name], sizes.split(", ") if sizes else []


def _is_type(text: str) -> bool:
    found = _TYPE.fullmatch(text)
    return found is not None and found[1] in _DTYPES


def parse_type(text: str, sizes: Mapping[str, int] | None = None) -> Type:
    """`float32[3, 4]` as a type; `sizes` gives the values of names in it."""
    dtype, texts = split_type(text)
    return Type(tuple(_parse_size(part, sizes or {}, text) for part in texts), dtype)


def _parse_size(part: str, sizes: Mapping[str, int], whole: str) -> int:
    if part.isdecimal() and len(part) < 20:
        value: int | float = int(part)
    else:
        try:
            value = evaluate(ast.parse(part, mode="eval").body, sizes)
        except (SyntaxError, ValueError, RecursionError):
            raise UserError("parse", f"a type such as 'float32[3, 4]' is required, got {whole!r}.") from None
    if not isinstance(value, int) or not 0 <= value < _LARGEST:
        raise UserError("parse", f"sizes from 0 to 2**63 - 1 are required, got {whole!r}.")
    return value


def evaluate(part: ast.expr, sizes: Mapping[str, int], depth: int = 0) -> int | float:
    """The value of an expression of numbers and free dimensions with + - * / //."""
    if depth > _DEEPEST:
        raise _refuse(part, "an expression is nested too deeply")
    match part:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name) if name in sizes:
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -evaluate(inner, sizes, depth + 1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            a, b = evaluate(left, sizes, depth + 1), evaluate(right, sizes, depth + 1)
            if isinstance(op, ast.Div | ast.FloorDiv) and b == 0:
                raise _refuse(part, f"{_show(part)!r} divides by zero")
            value = _ARITHMETIC[type(op)](a, b)
            if isinstance(value, int) and abs(value) >= 2 * _LARGEST:
                raise _refuse(part, f"{_show(part)!r} is too large")
            return value
    raise _refuse(part, f"{_show(part)!r} is not an expression of numbers and free dimensions")


def _parse_function(function: ast.FunctionDef, reader: _BodyParser) -> Graph:
    _check_plain(function)
    values = reader.values
    for index, argument in enumerate(function.args.args):
        match argument.annotation:
            case ast.Constant(value=str() as text) if argument.arg not in values and _is_type(text):
                values[argument.arg] = placeholder(index, _type_of_input(argument, text, reader.sizes))
            case _:
                raise _refuse(
                    argument, "every input needs a name of its own and a type such as 'float32[3, 4]' in quotes"
                )
    inputs = tuple(values.values())
    for statement in function.body[:-1]:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                with _scope(statement.type_comment):
                    values[name] = reader.call(call)
            case _:
                raise _refuse(statement, "a line must read 'name = op(...)'")
    match function.body[-1]:
        case ast.Return(value=ast.Tuple(elts=results)):
            return Graph(inputs, tuple(reader.node(r) for r in results))
    raise _refuse(function.body[-1], "the last line must read 'return (name, ...)'")


def _type_of_input(argument: ast.arg, text: str, sizes: Mapping[str, int]) -> Type:
    try:
        return parse_type(text, sizes)
    except UserError as error:
        raise _refuse(argument, error.message.rstrip(".")) from None


def _check_plain(function: ast.FunctionDef) -> None:
    """Check that a function has only positional inputs."""
    a = function.args
    extras = [*a.posonlyargs, *a.kwonlyargs, *a.defaults, *a.kw_defaults, a.vararg, a.kwarg]
    if any(e is not None for e in extras) or function.decorator_list or function.returns or function.type_comment:
        first = function.decorator_list[0] if function.decorator_list else function
        raise _refuse(first, "a function must read 'def name(x0: \"type\", ...):'")


class _BodyParser:
    """Parses the calls and parameters of one function."""

    def __init__(
        self, values: dict[str, Node], graphs: dict[str, Graph], extern: Sequence[Any], sizes: Mapping[str, int]
    ) -> None:
        self.values, self.graphs, self.extern, self.sizes = values, graphs, extern, sizes

    def call(self, call: ast.Call) -> Node:
        if not isinstance(call.func, ast.Name) or call.func.id not in OPS or call.func.id == "placeholder":
            raise _refuse(call, f"there is no op {_show(call.func)!r}")
        op = OPS[call.func.id]
        given = {keyword.arg: self.param(keyword.value) for keyword in call.keywords}
        if set(given) != set(op.params) or len(call.keywords) != len(op.params):
            raise _refuse(call, f"{op.name} takes the parameters {', '.join(op.params) or 'none'}")
        inputs = tuple(self.node(a, several=op.name == "item") for a in call.args)
        try:
            return make(op, inputs, tuple(given[name] for name in op.params))
        except UserError as error:
            raise _refuse(call, f"[{error.where}] {error.message.rstrip('.')}") from None
        except (TypeError, AttributeError, IndexError, KeyError, OverflowError, ZeroDivisionError) as error:
            raise _refuse(call, f"{op.name} cannot take these parameters ({error})") from None

    def node(self, part: ast.expr, several: bool = False) -> Node:
        if isinstance(part, ast.Name) and part.id in self.values:
            node = self.values[part.id]
            if node.outputs and not several:
                raise _refuse(part, f"{part.id!r} has several results; take one with item()")
            return node
        raise _refuse(part, f"{_show(part)!r} is not a value defined before")

    def param(self, part: ast.expr) -> Any:
        match part:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.UnaryOp() | ast.BinOp():
                return evaluate(part, self.sizes)
            case ast.Tuple(elts=elements):
                return tuple(map(self.param, elements))
            case ast.Name(id=name) if name in _DTYPES:
                return _DTYPES[name]
            case ast.Name(id=name) if name in self.graphs:
                return self.graphs[name]
            case ast.Name(id=name) if name in self.sizes:
                return self.sizes[name]
            case ast.Subscript(value=ast.Name(id="extern"), slice=ast.Constant(value=int() as i)):
                if 0 <= i < len(self.extern):
                    return self.extern[i]
                raise _refuse(part, f"the text needs extern[{i}], but {len(self.extern)} were given")
        raise _refuse(part, f"{_show(part)!r} is not a parameter")


def _show(part: ast.AST) -> str:
    try:
        return ast.unparse(part)
    except RecursionError:
        return "..."  # nested too deeply to be written


def _refuse(part: ast.AST, why: str) -> UserError:
    return UserError("parse", f"line {getattr(part, 'lineno', '?')}: {why}.")


VIEWS["text"] = to_text
