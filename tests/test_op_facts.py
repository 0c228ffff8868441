"""Facts about ops are in their declarations, and parameters are read by name: checked in the sources of the compiler.

A list of op names elsewhere would be a second place to touch for a new op, and one that an op from outside of weft cannot enter.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from weft.compiler.cpu.backend import LOWERINGS
from weft.graph import OPS, make, placeholder
from weft.graph.node import Node, Op, Type
from weft.runtime.native import work

ROOT = Path(weft.__file__).parent
# Packages and modules whose code reads parameters by name and lists no ops.
CHECKED = [
    "graph", "compiler/ir", "compiler/passes", "compiler/planning", "compiler/lowering.py", "ops/declare.py",
    "derivatives.py", "control.py", "vmap", "nn/summary.py",
]  # fmt: skip
BACKENDS = ["compiler/cpu", "compiler/gpu"]  # these read parameters by name too; their tables list ops
GENERIC = {"graph/node.py"}  # nodes and ops themselves


def sources(parts: list[str]) -> Iterator[tuple[str, ast.Module]]:
    for part in parts:
        path = ROOT / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            name = file.relative_to(ROOT).as_posix()
            if name not in GENERIC:
                yield name, ast.parse(file.read_text())


def is_params(node: ast.AST) -> bool:
    """Whether an expression is the parameters of a node: `x.params`, but not the names `x.op.params`."""
    if not isinstance(node, ast.Attribute) or node.attr != "params":
        return False
    return not (isinstance(node.value, ast.Attribute) and node.value.attr == "op")


def positional_reads(tree: ast.AST) -> Iterator[int]:
    """The lines that read parameters by position: `x.params[3]`, `x.params[:2]`, `a, b = x.params`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and is_params(node.value):
            yield node.lineno
        if isinstance(node, ast.Assign) and is_params(node.value) and isinstance(node.targets[0], ast.Tuple | ast.List):
            yield node.lineno


def lists_of_ops(tree: ast.Module) -> Iterator[tuple[int, list[str]]]:
    """Constants of a module that are collections of op names."""
    for statement in tree.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        for node in ast.walk(statement.value):
            if isinstance(node, ast.Tuple | ast.List | ast.Set) and len(node.elts) > 1:
                names = [e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
                if len(names) == len(node.elts) and all(name in OPS for name in names):
                    yield node.lineno, names


@pytest.mark.parametrize("text", ["a = x.params[3]", "a = n.inputs[0].params[:2]", "a, b = x.params", "f(x.params[i])"])
def test_positional_reads_are_found(text: str) -> None:
    assert list(positional_reads(ast.parse(text)))


def test_lists_of_ops_are_found() -> None:
    assert list(lists_of_ops(ast.parse('FEW = frozenset(("add", "mul"))'))) == [(1, ["add", "mul"])]
    assert not list(lists_of_ops(ast.parse('PARAMS = ("stride", "padding")')))


def test_parameters_are_read_by_name() -> None:
    found = [f"{name}:{line}" for name, tree in sources([*CHECKED, *BACKENDS]) for line in positional_reads(tree)]
    assert not found, "read parameters with node.param(name) or node.get_params(...): " + ", ".join(found)


def test_facts_are_in_declarations() -> None:
    found = [f"{name}:{line} {names}" for name, tree in sources(CHECKED) for line, names in lists_of_ops(tree)]
    assert not found, "state the fact in the declaration of the op: " + ", ".join(found)


# --- the facts agree with each other --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_facts_fit_together(op: Op) -> None:
    assert not (op.kernel is not None and op.own_kernels), "either the shared compiler has kernels, or each backend"
    assert (op.flops is not None) == (op.precision == "product")
    assert op.flops is not None or op.kernel not in ("contraction", "convolution")
    assert op.product_inputs is None or op.precision == "product"
    assert all(name in OPS for name in op.combine or () if name)
    assert op.combine is None or op.kernel == "reduction"
    assert op.arity is None or all(i < op.arity for i in op.strided_inputs)
    assert not op.operands or len(op.operands) == (op.arity or 0) + 1
    assert op.kernel != "window" or "size" in op.params
    assert op.kernel is None or LOWERINGS.lowers(op)


def value(*shape: int) -> Node:
    return placeholder(object(), Type(shape, weft.float32))


HOW = ((2, 2), ((1, 1), (0, 0)), (1, 1), 2, "")  # stride, padding, dilation, groups, algorithm
FLOPS = {
    "contract": (lambda: make(OPS["contract"], (value(2, 3, 4), value(2, 4, 5)), ("bij", "bjk", "bik")), 2 * 2 * 3 * 4 * 5),
    "an outer product": (lambda: make(OPS["contract"], (value(3), value(4)), ("i", "j", "ij")), 2 * 3 * 4),
    "conv": (lambda: make(OPS["conv"], (value(2, 4, 9, 9), value(6, 2, 3, 3)), HOW), 2 * (2 * 6 * 5 * 4) * (2 * 9)),
    "conv_last": (
        lambda: make(OPS["conv_last"], (value(2, 9, 9, 4), value(6, 2, 3, 3)), HOW), 2 * (2 * 6 * 5 * 4) * (2 * 9),
    ),
    "conv_data": (
        lambda: make(OPS["conv_data"], (value(2, 6, 5, 4), value(6, 2, 3, 3)), (*HOW, (9, 9))), 2 * (2 * 6 * 5 * 4) * (2 * 9),
    ),
    "conv_filter": (
        lambda: make(OPS["conv_filter"], (value(2, 4, 9, 9), value(2, 6, 5, 4)), (*HOW, (3, 3))), 2 * (2 * 6 * 5 * 4) * (2 * 9),
    ),
    "attention": (
        lambda: make(OPS["attention"], (value(2, 3, 4, 5), value(2, 6, 2, 5), value(2, 6, 2, 7)), (-1, -1, "upper_left", 1.0, 0.0, ())), 2 * (2 * 4) * (3 * 6) * (5 + 7),
    ),
    "causal attention": (
        lambda: make(OPS["attention"], (value(2, 3, 4, 5), value(2, 6, 2, 5), value(2, 6, 2, 7)), (-1, 0, "lower_right", 1.0, 0.0, ())), 2 * (2 * 4) * (4 + 5 + 6) * (5 + 7),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOPS)
def test_flops(name: str) -> None:
    build, expected = FLOPS[name]
    node = build()
    assert node.op.flops is not None
    assert node.op.flops(node) == expected
    assert work([node]) == expected // 2  # what decides whether threads share a program
