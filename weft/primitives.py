"""Every primitive as a plain function of tensors: what the text of a graph imports when it is run.

    add(a, b)      sum(x, axes=(0,))      item(v, index=0)

Inputs come by position and parameters by name, checked only by the op's own rule: no promotion, no broadcasting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .dtypes import DTYPES
from .errors import UserError
from .graph import OPS, Graph, Op, make, placeholder
from .graph.text import parse_type
from .tensor import Tensor, wrap


def _primitive(op: Op) -> Callable[..., Tensor]:
    def call(*inputs: Tensor, **params: Any) -> Tensor:
        if set(params) != set(op.params):
            raise UserError(
                op.name, f"the parameters {', '.join(op.params) or '(none)'} are required, got {list(params)}."
            )
        values = tuple(
            _as_graph(v) if callable(v) and hasattr(v, "__code__") else v for v in map(params.get, op.params)
        )
        return wrap(make(op, tuple(x.node for x in inputs), values))

    call.__name__ = call.__qualname__ = op.name
    call.__doc__ = op.doc or f"The primitive {op.name}({', '.join(op.params)})."
    return call


def _as_graph(body: Callable[..., Any]) -> Graph:
    """A function of the text as the graph it was printed from: its annotations give the types of its inputs."""
    types = [parse_type(text) for text in body.__annotations__.values()]
    inputs = tuple(placeholder(i, t) for i, t in enumerate(types))
    return Graph(inputs, tuple(t.node for t in body(*map(wrap, inputs))))


def __getattr__(name: str) -> Any:
    """Asked for when a name is imported: ops may be declared at any time."""
    if name == "__all__":
        return [op for op in OPS if op != "placeholder"] + [d.name for d in DTYPES]
    if name in OPS and name != "placeholder":
        return _primitive(OPS[name])
    for dtype in DTYPES:
        if dtype.name == name:
            return dtype
    raise AttributeError(f"there is no primitive {name!r}")
