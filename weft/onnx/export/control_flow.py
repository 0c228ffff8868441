"""Control flow in ONNX: `Scan`, `Loop` and `If`, whose bodies read what they need of the graph around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...graph import Graph
from ...graph.node import Node
from ..package import onnx_package
from .elementwise import dtype_number
from .translator import OnnxValue, Translator, translates
from .writer import merge_sizes


def _inline(t: Translator, graphs: Sequence[Graph], inputs: Sequence[OnnxValue]) -> tuple[list[OnnxValue], list[Any]]:
    """The results of a graph on these values, and its nodes."""
    inner = Translator(t.model, graphs, inputs)
    results = inner.run()
    return results, inner.out.nodes


def _outer(t: Translator, nodes: Sequence[Node]) -> list[OnnxValue]:
    return [OnnxValue(t.full(n), t.dims(n)) for n in nodes]


def _info(t: Translator, name: str, dtype: Any, shape: Sequence[Any]) -> Any:
    sizes = [n if isinstance(n, int) else t.model.text(n) for n in shape]
    return onnx_package("helper").make_tensor_value_info(name, dtype_number(np.dtype(dtype)), sizes)


def _body(
    t: Translator, nodes: list[Any], inputs: list[Any], results: Sequence[OnnxValue], dtypes: Sequence[Any]
) -> Any:
    """A graph; each of its outputs gets a name of its own."""
    outputs = []
    for value, dtype in zip(results, dtypes, strict=True):
        name = t.model.name("result")
        nodes.append(t.model.node("Identity", [value.name], [name]))
        outputs.append(_info(t, name, dtype, value.shape))
    return onnx_package("helper").make_graph(nodes, t.model.name("body"), inputs, outputs)


def _inputs(t: Translator, count: int, versions: Sequence[Graph]) -> tuple[list[OnnxValue], list[Any]]:
    """The first inputs of a body, under names of their own."""
    values, infos = [], []
    for nodes in list(zip(*(g.inputs for g in versions), strict=True))[:count]:
        shape = tuple(merge_sizes(sizes) for sizes in zip(*(n.shape for n in nodes), strict=True))
        values.append(OnnxValue(t.model.name("state"), shape))
        infos.append(_info(t, values[-1].name, nodes[0].dtype.numpy, shape))
    return values, infos


@translates("call")
def call(t: Translator, node: Node) -> list[OnnxValue]:
    results, nodes = _inline(t, t.bodies(node, "body"), _outer(t, node.inputs))
    t.out.nodes += nodes
    return results


@translates("cond")
def cond(t: Translator, node: Node) -> list[OnnxValue]:
    condition, *operands = node.inputs
    given, branches = _outer(t, operands), {}
    for key, param in (("then_branch", "then"), ("else_branch", "other")):
        results, nodes = _inline(t, t.bodies(node, param), given)
        branches[key] = _body(t, nodes, [], results, [o.dtype.numpy for o in node.outputs])
    return _results(t, node, t.out.add("If", t.full(condition), outputs=len(node.outputs), **branches))


def _results(t: Translator, node: Node, names: Any) -> list[OnnxValue]:
    listed = [names] if isinstance(names, str) else names
    return [OnnxValue(name, t.output_dims(node, i)) for i, name in enumerate(listed)]


@translates("while_loop")
def while_loop(t: Translator, node: Node) -> list[OnnxValue]:
    """The test is computed before the loop, and at the end of every step."""
    carried, tests, bodies = node.param("carried"), t.bodies(node, "test"), t.bodies(node, "body")
    start, constants = _outer(t, node.inputs[:carried]), _outer(t, node.inputs[carried:])
    (first,), nodes = _inline(t, tests, [*start, *constants])
    t.out.nodes += nodes
    values, infos = _inputs(t, carried, bodies)
    results, nodes = _inline(t, bodies, [*values, *constants])
    (again,), more = _inline(t, tests, [*results, *constants])
    counters = [_info(t, t.model.name("step"), np.int64, ()), _info(t, t.model.name("condition"), np.bool_, ())]
    dtypes = [np.bool_, *(o.dtype.numpy for o in node.outputs)]
    body = _body(t, [*nodes, *more], [*counters, *infos], [again, *results], dtypes)
    names = t.out.add("Loop", "", first.name, *(v.name for v in start), outputs=carried, body=body)
    return _results(t, node, names)


@translates("scan")
def scan(t: Translator, node: Node) -> list[OnnxValue]:
    """The carried values before each step (`history`) are written only if something reads them."""
    carried, sequences, reverse = node.get_params("carried", "sequences", "reverse")
    bodies, inner = t.bodies(node, "body"), t.bodies(node, "body")[0]
    start, given = _outer(t, node.inputs[:carried]), _outer(t, node.inputs[carried : carried + sequences])
    constants = _outer(t, node.inputs[carried + sequences :])
    values, infos = _inputs(t, carried + sequences, bodies)
    results, nodes = _inline(t, bodies, [*values, *constants])
    dtypes = [o.dtype.numpy for o in inner.outputs]
    if reads_history(t, node, len(inner.outputs)):
        results, dtypes = [*results, *values[:carried]], [*dtypes, *dtypes[:carried]]
    if not given:  # Scan needs a sequence: it counts the steps
        given = [_steps(t, node)]
        infos.append(_info(t, t.model.name("step"), np.int64, ()))
    directions = {
        f"scan_{end}_directions": [1] * n for end, n in (("input", len(given)), ("output", len(results) - carried)) if n
    }
    names = t.out.add(
        "Scan", *(v.name for v in [*start, *given]), outputs=len(results), body=_body(t, nodes, infos, results, dtypes),
        num_scan_inputs=len(given), **(directions if reverse else {}),
    )  # fmt: skip
    return _results(t, node, names)


def reads_history(t: Translator, node: Node, first: int) -> bool:
    """Whether results of a scan from this one on are read."""
    return any(n.op.name == "item" and n.inputs[0] is node and n.param("index") >= first for n in t.graph.nodes)


def _steps(t: Translator, node: Node) -> OnnxValue:
    length = t.size(node, "length")
    end = t.out.add("Squeeze", t.model.vector([length]))
    return OnnxValue(t.out.add("Range", t.const(0, np.int64), end, t.const(1, np.int64)), (length,))
