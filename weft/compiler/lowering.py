"""Lowering tables: how a backend compiles each op.

Every backend has one. Ops that the shared part of the compiler turns into loops, views, products or control flow (`Op.kernel`) need
no rule; an elementwise op has a rule that computes one element, and an op with `own_kernels` has one that plans its kernels. An op
without a rule is decomposed into others, if its declaration says how, or rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from ..dtypes import DType, float32
from ..errors import UserError
from ..graph.graph import Graph
from ..graph.node import OPS, Node, Op
from ..records import dataclass


def has_external_ops(graph: Graph) -> bool:
    """Whether a program has ops from outside of weft: cache keys do not cover their rules."""
    waiting, seen = [graph], {graph}
    while waiting:
        for node in waiting.pop().nodes:
            if node.op.external:
                return True
            inner = [p for p in node.params if isinstance(p, Graph) and p not in seen]
            waiting += inner
            seen.update(inner)
    return False


@dataclass(frozen=True)
class LoweringTable:
    """The rules of one backend, by the names of ops."""

    backend: str
    elementwise: dict[str, Any]
    own_kernels: dict[str, Any]
    functions: Mapping[str, Any]  # elementwise functions of floats that the backend takes from a library
    # dtypes, by the names of ops that can be decomposed
    unsupported: Mapping[str, Collection[str]] = field(default_factory=dict)
    methods: tuple[str, ...] = ()  # the type of rules for ops with `own_kernels`, if such rules are objects

    def lowers(self, op: Op) -> bool:
        """Whether the backend compiles an op without decomposing it."""
        if op.kernel is not None:
            return True
        return op.name in self.elementwise or op.name in self.functions or op.name in self.own_kernels

    def lowers_node(self, node: Node, narrow: DType | None = None) -> bool:
        """Whether the backend compiles a node without decomposing it: it may have kernels for some dtypes only.

        `narrow`: of mixed precision, the dtype that products of float32 will be rounded to.
        """
        is_product = node.op.precision == "product" and node.dtype is float32
        dtype = narrow if narrow is not None and is_product else node.dtype
        return self.lowers(node.op) and dtype.name not in self.unsupported.get(node.op.name, ())

    def can_compile(self, op: Op) -> bool:
        """Whether programs with this op compile, perhaps after it is decomposed."""
        return self.lowers(op) or op.decompose is not None

    def check(self, graph: Graph, device: str) -> None:
        """Raise an error if a graph has an op that cannot be compiled."""
        unknown = next((n for n in graph.nodes if not self.can_compile(n.op)), None)
        if unknown is not None:
            raise UserError(
                "jit",
                f"the op {unknown.op.name!r} has no lowering rule for the device {device!r} and no decomposition. Give it one "
                "(weft.extend.lower, decompose=), write it with weft's functions, or call the function without jit.",
                unknown.source,
            )

    def add(self, name: str, rule: Any) -> None:
        """Add the rule of an op that is defined outside of weft."""
        if name not in OPS:
            raise UserError("lower", f"a declared op is required, got {name!r}. Declare it first.")
        if self.lowers(OPS[name]):
            raise UserError("lower", f"the op {name!r} has a rule for the {self.backend} backend already.")
        op = OPS[name]
        missing = [method for method in self.methods if op.own_kernels and not hasattr(rule, method)]
        if missing:
            raise UserError(
                "lower",
                f"an object with {', '.join(self.methods)} is required as the {self.backend} rule of {name!r}, "
                f"got one without {', '.join(missing)}.",
            )
        (self.own_kernels if op.own_kernels else self.elementwise)[name] = rule
        op.external = True
