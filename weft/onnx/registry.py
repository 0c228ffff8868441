"""The table of handlers: one function for each ONNX op type, and for each range of versions whose meaning differs.

    @op("Gemm")
    def gemm(a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0, ...):

The inputs of a node are the positional arguments, its attributes the keyword arguments with ONNX's names and defaults. A missing
optional input is None. Attributes that several ops share are a TypedDict: `**window: Unpack[WindowAttributes]`. Inputs arrive as tensors; those named by `host` as NumPy arrays, because shapes depend on them. A `raw` handler
gets values as they are: arrays, tensors, lists (sequences) or None. A parameter `call` receives what else there is to know of the node.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, get_args, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])

STANDARD, ML, TRAINING = "", "ai.onnx.ml", "ai.onnx.preview.training"
MICROSOFT = "com.microsoft"  # ops of ONNX Runtime, which its quantization tools write


class OnnxCall(Protocol):
    """What a handler may ask about its node."""

    @property
    def outputs(self) -> int:
        """How many results are wanted; trailing ones that are not used do not count."""

    @property
    def version(self) -> int:
        """The version of the opset that the node belongs to."""

    def run(self, graph: Any, inputs: Sequence[Any]) -> list[Any]:
        """Run a subgraph, which sees all values that are in scope at the node."""


class Handler(NamedTuple):
    """A function that computes one op type from version `since` on."""

    function: Callable[..., Any]
    since: int
    raw: bool
    foldable: bool
    wants_call: bool
    host: frozenset[int]  # positions of inputs that are NumPy arrays
    inputs: tuple[int, int]  # the least and the largest number of inputs
    attributes: frozenset[str]

    def is_host(self, position: int) -> bool:
        """Whether the input at this position must be known while a function is traced."""
        return position in self.host


_HANDLERS: dict[tuple[str, str], list[Handler]] = {}
_MANY = 1 << 30  # inputs of a variadic op


def op(
    *names: str,
    since: int = 1,
    host: Iterable[str] = (),
    raw: bool = False,
    foldable: bool = True,
    domain: str = STANDARD,
) -> Callable[[F], F]:
    """Register a handler for op types, from this version on."""

    def register(function: F) -> F:
        handler = _handler(function, since, frozenset(host), raw, foldable)
        for name in names:
            versions = _HANDLERS.setdefault((domain, name), [])
            versions.append(handler)
            versions.sort(key=lambda h: h.since)
        return function

    return register


def _handler(function: Callable[..., Any], since: int, host: frozenset[str], raw: bool, foldable: bool) -> Handler:
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "call"]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    unknown = host - {p.name for p in parameters}
    assert not unknown, f"{function.__name__} has no inputs {unknown}"
    least = sum(p.default is p.empty for p in positional)
    most = _MANY if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(positional)
    return Handler(
        function, since, raw, foldable, "call" in inspect.signature(function).parameters,
        frozenset(i for i, p in enumerate(positional) if p.name in host), (least, most),
        frozenset(_attributes(function, parameters)),
    )  # fmt: skip


def _attributes(function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> Iterator[str]:
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY:
            yield p.name
        elif p.kind is p.VAR_KEYWORD:
            (shared,) = get_args(get_type_hints(function)[p.name])  # of Unpack[...]
            yield from shared.__annotations__


def find(domain: str, name: str, version: int) -> Handler | None:
    """The handler of an op type in a version of its opset."""
    fitting = [h for h in _HANDLERS.get((domain, name), ()) if h.since <= version]
    return fitting[-1] if fitting else None


def op_types() -> list[tuple[str, str]]:
    """The (domain, op type) pairs that have a handler."""
    return sorted(_HANDLERS)
