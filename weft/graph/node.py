"""The graph's immutable, interned `Node`.

A node is an op applied to other nodes with parameters. `make` is the only constructor, and it returns the same object for
the same (op, inputs, parameters) (hash-consing): equality is identity, and common subexpressions exist only once. The
only mutable field is `value`, the memoized result.

No code in weft recurses over a graph: `toposort` uses an explicit stack.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from ..dtypes import DType, converted
from ..errors import InternalError, Source, UserError, user_source
from ..lazy import Registry

Shape = tuple[int, ...]
N = TypeVar("N")
# What the part of the compiler that all backends share makes of an op; see `Op.kernel`.
KernelKind = Literal[
    "input",  # a value from outside of the program
    "alias",  # the value of another node: it disappears, or names one of several results
    "view",  # each element is one element of the input: only the index at which that is read changes
    "loop",  # computed element by element inside of other loops
    "window",  # a combination of the elements in a window; small windows are unrolled into other loops
    "reduction",  # a combination over axes, which can share its loops with the rows that use it
    "contraction",  # a matrix product, which takes an epilogue
    "convolution",  # a convolution or one of its gradients, which takes an epilogue
    "control",  # runs bodies
]
# What mixed precision does to an op; see `Op.precision`.
PrecisionClass = Literal[
    "float32",  # it computes in float32, and may read operands that were rounded to 16 bits
    "product",  # its operands are rounded to 16 bits, its sums are float32
    "exact",  # it asks which values are equal or largest, so it reads operands that are not rounded
    "commutes",  # rounding its operand gives the same as rounding its result
    "selects",  # it selects by order, which rounding keeps: it reads rounded operands as they are
]
OpKind = Literal["leaf", "random", "elementwise", "reduce", "along", "move", "index", "anchor", "control", "collective"]


class Type(NamedTuple):
    """Shape and dtype of a value."""

    shape: Shape
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


class Value(Protocol):
    """The interface of a computed value; device buffers implement it."""

    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def device(self) -> Any: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def content(self) -> Any: ...


@dataclass(eq=False)
class Op:
    """The declaration of a primitive: everything that is true of it on every device.

    That is its type rule, reference implementation, derivative and sample inputs for tests, and the facts that the compiler asks
    for: kernel, cost, precision class. Nothing else lists ops by name to state a fact. Each function takes the inputs and then the
    parameters, by position; a variadic op gets its inputs as one tuple.
    """

    name: str
    kind: OpKind
    infer: Callable[..., Any]  # (*inputs, *params) -> Type, or a tuple of Types; raises UserError
    reference: Callable[
        ..., Any
    ]  # (*arrays, *params) -> array, or a tuple of arrays: the reference implementation, in NumPy
    # (g, y, *inputs, *params) -> for each input a cotangent, a function that computes it on demand, or None;
    # of an op with several results, g and y are lists of all of them
    vjp: Callable[..., Any] | None = None
    params: tuple[str, ...] = ()
    arity: int | None = None  # None: variadic
    widen: bool = False  # 16-bit floats are computed in float32 and rounded once
    samples: Callable[..., Any] | None = None  # (rng) -> calls to test with
    errors: tuple[Any, ...] = ()  # calls that must fail, with a part of their error message
    commutes: bool = False  # its inputs commute
    doc: str = ""
    internal: bool = False  # created only by the compiler
    home: Callable[..., Any] | None = None  # (*params) -> the device of the result, if not that of the inputs
    cost: int = 1  # of one element of the result, in additions: cheap values are computed again rather than stored
    flops: Callable[[Node], int] | None = None  # of a whole node, for products of any kind
    precision: PrecisionClass = "float32"
    product_inputs: tuple[int, ...] | None = None  # of the class "product": the inputs that are rounded; None: all
    kernel: KernelKind | None = None  # None: backends have a lowering rule for it, or it is decomposed
    can_fail: bool = False  # raises an error for some integers: its kernels know the source line
    returns_position: bool = False  # of the element that it selects, not the value
    combine: tuple[str, str] | None = (
        None  # of a reduction: the ops that combine two partial results, for numbers and bools
    )
    strided_inputs: tuple[int, ...] = ()  # inputs that kernels read through any strides; others must be contiguous
    operands: tuple[str, ...] = ()  # how plans call the inputs and the result; default x0, x1, ... and y
    label: str | None = None  # how profiles call it; default its name; "" leaves it out of a kernel's name
    updates_input: bool = False  # the result is the first input with some elements replaced: it can be written in place
    derivative_marker: bool = False  # equals its input and matters to derivatives alone: compilers remove it
    overwrites_inputs: bool = False  # each result can be written over the input of the same number
    own_kernels: bool = False  # each backend plans kernels for it (a sort, a scatter); it is not part of a fused loop
    # (inputs, *params) -> the same value (or tuple of values) made of other ops, for backends without a lowering rule of their own
    decompose: Callable[..., Any] | None = None
    batch: Callable[..., Any] | None = (
        None  # the batching rule of vmap, giving one tensor or a tuple; elementwise ops need none
    )
    version: int = 1  # increased when its meaning changes: saved programs state the versions that they use
    external: bool = False  # its rules are defined outside of weft: what is compiled of it is not kept on disk
    param_index: dict[str, int] = field(init=False, repr=False)  # the position of each parameter

    def __post_init__(self) -> None:
        self.param_index = {name: i for i, name in enumerate(self.params)}
        self.external = self.external or self.decompose is not None
        if OPS.setdefault(self.name, self) is not self:
            raise UserError("op", f"the op {self.name!r} is declared already. Choose another name.", user_source())

    def __repr__(self) -> str:
        return f"<op {self.name}>"


OPS: Registry[Op] = Registry()


@dataclass(eq=False, slots=True)
class Tracker:
    """Marks nodes whose history is kept after evaluation, because they may still be differentiated.

    Trackers are nested in time: of two the older one closes last, so a node needs to remember only that one.
    """

    serial: int = field(default_factory=itertools.count(1).__next__)
    open: bool = True


PARAMETERS = Tracker(serial=0)  # the tracker of the user's own parameters: never closed


class _Blame(threading.local):
    source: Source | None = None


_blame = _Blame()


@contextmanager
def blame() -> Iterator[Callable[[Source | None], None]]:
    """Inside, nodes are attributed to the source line set last instead of the running line (for derivatives)."""
    before = _blame.source
    try:
        yield lambda source: setattr(_blame, "source", source)
    finally:
        _blame.source = before


class _Clock:
    """Counts created nodes and bytes, so that the age of pending work is a difference of two counts."""

    __slots__ = ("bytes", "nodes")

    def __init__(self) -> None:
        self.nodes = self.bytes = 0


CLOCK = _Clock()


class Node:
    """An op applied to inputs. Created by `make`, never directly."""

    __slots__ = (
        "__weakref__", "abstract", "born", "born_bytes", "detached_from", "device", "dtype", "holders", "inputs", "op",
        "outputs", "params", "serial", "shape", "source", "tracker", "type", "users", "value",
    )  # fmt: skip

    op: Op
    inputs: tuple[Node, ...]
    params: tuple[Any, ...]
    type: Type  # shape and dtype; also stored separately, because they are read very often
    shape: Shape
    dtype: DType
    outputs: tuple[Type, ...]  # the types of a node with several results; otherwise ()
    source: Source | None  # the user's line
    device: Any  # the device it is computed on; None: any
    abstract: bool  # depends on a placeholder, so it has no value
    tracker: Tracker | None
    value: Value | None  # the memoized result
    holders: int  # number of live tensors that refer to it: its value is kept after evaluation
    users: int  # number of live nodes that use it as input
    serial: int  # the CLOCK at creation
    born: int  # the CLOCK at the start of its oldest pending work
    born_bytes: int
    # The tensors of parameters that the value may depend on though no history says so: a compiled function computed it, or it was computed
    # before the function that reads it was compiled. Derivatives do not cross that boundary. Not set on other nodes.
    detached_from: Sequence[weakref.ref[Any]]

    @property
    def tracked(self) -> bool:
        return self.tracker is not None and self.tracker.open

    def param(self, name: str) -> Any:
        """The parameter called `name`."""
        return self.params[self.op.param_index[name]]

    def get_params(self, *names: str) -> tuple[Any, ...]:
        """Several parameters by name."""
        index = self.op.param_index
        return tuple(self.params[index[name]] for name in names)

    def replace_params(self, **changes: Any) -> tuple[Any, ...]:
        """All parameters, some of them with new values: what `make` needs for a changed copy of the node."""
        params = list(self.params)
        for name, value in changes.items():
            params[self.op.param_index[name]] = value
        return tuple(params)

    def __repr__(self) -> str:
        kind = ", ".join(map(str, self.outputs)) or str(self.type)
        return f"<{self.op.name} {kind}>"


class VariableCell:
    """The content of a parameter: a leaf for derivatives, with a known or a pending value."""

    __slots__ = ("device", "owner", "pending", "type", "value")

    def __init__(self, content: Node, owner: Any) -> None:
        self.type, self.value = content.type, content.value
        self.device = content.device if content.value is None else content.value.device
        self.pending: Node | None = content if content.value is None else None
        self.owner = owner  # a weak reference to the tensor that owns its `.grad`

    def fill(self, value: Value) -> None:
        """Store the computed value and free the graph behind it."""
        self.value, self.pending = value, None


class _Entry(weakref.ref["Node"]):
    """A weak reference that stores its key in the table of nodes."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


_interned: dict[tuple[Any, ...], _Entry] = {}


def _forget(entry: _Entry) -> None:
    for x in entry.key[1]:
        x.users -= 1
    if _interned.get(entry.key) is entry:
        _interned.pop(entry.key, None)


def make(op: Op, inputs: tuple[Node, ...] = (), params: tuple[Any, ...] = (), source: Source | None = None) -> Node:
    """The node for this op, these inputs and these parameters."""
    key = (op, inputs, params)
    entry = _interned.get(key)
    node = entry() if entry is not None else None
    return _new(op, inputs, params, source, key) if node is None else node


def existing(op: Op, inputs: tuple[Node, ...], params: tuple[Any, ...]) -> Node | None:
    """The node, if it is alive."""
    entry = _interned.get((op, inputs, params))
    return entry() if entry is not None else None


def _new(
    op: Op, inputs: tuple[Node, ...], params: tuple[Any, ...], source: Source | None, key: tuple[Any, ...]
) -> Node:
    node = Node.__new__(Node)
    node.op, node.inputs, node.params = op, inputs, params
    if op.arity is None:
        result = op.infer(inputs, *params)
    elif op.arity == len(inputs):
        result = op.infer(*inputs, *params)
    else:
        raise UserError(op.name, f"it takes {op.arity} inputs, got {len(inputs)}.")
    if isinstance(result, Type):
        node.type, node.outputs = result, ()
    elif result:
        node.type, node.outputs = Type((), result[0].dtype), tuple(result)
    else:
        raise UserError(op.name, "the function must return at least one tensor.")
    node.shape, node.dtype = node.type
    for size in node.shape:
        if type(size) is not int or size < 0:  # True and 3.0 equal 1 and 3 as keys of the table
            raise UserError(op.name, f"sizes must be ints of 0 or more, got {node.shape}.")
    if type(node.dtype) is not DType:
        raise UserError(op.name, f"a dtype is required, got {node.dtype!r}.")
    if source is None:
        source = user_source() if _blame.source is None else _blame.source
    node.source = source
    node.value, node.holders, node.users = None, 0, 0
    _inherit(node)
    if not inputs:
        _fill_leaf(node)
    entry = _Entry(node, _forget)
    entry.key = key
    # Another thread may have created it first; a dead entry of an equal node is replaced.
    other = _interned.setdefault(key, entry)
    if other is not entry:
        living = other()
        if living is not None:
            entry.key = (op, (), params)  # this one was never counted as a user
            return living
        _interned[key] = entry
    for x in inputs:
        x.users += 1
    return node


def _inherit(node: Node) -> None:
    """Set the properties that a node inherits from its inputs: device, tracker, age, and whether it is abstract."""
    CLOCK.nodes += 1
    node.serial = CLOCK.nodes
    device, tracker, abstract, born, born_bytes = None, None, False, CLOCK.nodes, CLOCK.bytes
    for x in node.inputs:
        if x.device is not device and x.device is not None:
            if device is not None:
                raise UserError(
                    node.op.name,
                    f"all inputs must be on one device, got {device} and {x.device}. Move one with to_device().",
                )
            device = x.device
        if x.tracker is not None and x.tracker.open and (tracker is None or x.tracker.serial < tracker.serial):
            tracker = x.tracker
        abstract = abstract or x.abstract
        if x.value is None and x.born < born:
            born, born_bytes = x.born, x.born_bytes
    home = node.op.home
    node.device = device if home is None else home(*node.params)
    node.abstract, node.born, node.born_bytes = abstract, born, born_bytes
    node.tracker = tracker if node.op.vjp is not None else None


def _fill_leaf(node: Node) -> None:
    """Set the properties that a leaf has from its parameter: value, device, or being abstract."""
    if (
        node.op is PLACEHOLDER or node.op.kind == "collective"
    ):  # a program must not depend on the process that traces it
        node.abstract = True
    elif node.op is DATA:
        node.value = node.params[0]
        node.device = node.params[0].device
        CLOCK.bytes += node.params[0].nbytes
    elif node.op is VARIABLE:
        cell: VariableCell = node.params[0]
        node.value, node.device, node.tracker = cell.value, cell.device, PARAMETERS
        if cell.pending is not None:
            node.born, node.born_bytes, node.abstract = (
                cell.pending.born,
                cell.pending.born_bytes,
                cell.pending.abstract,
            )


def unfinished(before: int, before_bytes: int) -> list[Node]:
    """The nodes without a value that tensors refer to, and whose oldest pending work began before these times."""
    return [
        node
        for node in [entry() for entry in list(_interned.values())]
        if node is not None
        and node.holders
        and node.value is None
        and not (node.abstract or node.outputs)
        and (node.born <= before or node.born_bytes <= before_bytes)
    ]


def dependencies(node: Node) -> tuple[Node, ...]:
    """The nodes that must be computed before this one."""
    if node.op is VARIABLE:
        pending = node.params[0].pending
        return () if pending is None else (pending,)
    return node.inputs


def toposort(roots: Iterable[N], inputs: Callable[[N], Sequence[N]] = attrgetter("inputs")) -> list[N]:
    """All nodes (or graphs) the roots depend on, each after its inputs; no recursion."""
    order: list[N] = []
    seen: set[N] = set()
    stack: list[N | None] = []
    stack.extend(reversed(list(roots)))
    while stack:
        node = stack.pop()
        if node is None:  # all dependencies of the node below this marker are done
            order.append(stack.pop())  # type: ignore[arg-type]
        elif node not in seen:
            seen.add(node)
            stack.append(node)
            stack.append(None)
            for child in reversed(inputs(node)):
                if child not in seen:
                    stack.append(child)
    return order


def _cannot_run(*_: Any) -> Any:
    raise InternalError("graph", "a leaf without a value was run.")


# The leaves: placeholders, data, variables and constants.
PLACEHOLDER = Op(
    "placeholder", "leaf", lambda index, type: type, _cannot_run, params=("index", "type"), arity=0, kernel="input"
)
DATA = Op(
    "data",
    "leaf",
    lambda value: Type(value.shape, value.dtype),
    _cannot_run,
    params=("value",),
    arity=0,
    kernel="input",
)
VARIABLE = Op("variable", "leaf", lambda cell: cell.type, _cannot_run, params=("cell",), arity=0, kernel="input")


def _const_infer(value: Any, dtype: DType, shape: Shape) -> Type:
    number = isinstance(value, bool | int | float) or (value in _SPELLED and dtype.is_float)
    if not number or (dtype.is_integer and not np.iinfo(dtype.numpy).min <= value <= np.iinfo(dtype.numpy).max):
        raise UserError("const", f"a number that {dtype.name} can hold is required, got {value!r}.")
    return Type(shape, dtype)


_SPELLED = ("nan", "-nan", "inf", "-inf", "-0.0")
CONST = Op(
    "const", "leaf", _const_infer,
    lambda value, dtype, shape: np.broadcast_to(converted(np.asarray(_number(value)), dtype), shape),
    params=("value", "dtype", "shape"), arity=0, kernel="loop",
)  # fmt: skip


def _number(value: bool | int | float | str) -> bool | int | float:
    return float(value) if isinstance(value, str) else value


def constant(value: bool | int | float, dtype: DType, shape: Shape = ()) -> Node:
    """A constant of a shape, filled with one number.

    nan of either sign, infinities and -0.0 are stored as text, because as floats they do not compare as interning requires.
    """
    if dtype.is_float:
        value = float(value)
        minus = math.copysign(1.0, value) < 0
        if value != value:
            return make(CONST, (), ("-nan" if minus else "nan", dtype, shape))
        if math.isinf(value) or (value == 0.0 and minus):
            return make(CONST, (), (str(value), dtype, shape))
    return make(CONST, (), (value, dtype, shape))


def placeholder(index: int | object, type: Type) -> Node:
    """An input of a graph. An `object()` as index makes it unique."""
    return make(PLACEHOLDER, (), (index, type))


class Donated:
    """The index of a placeholder that stands for a value which a compiled function was given to overwrite."""

    __slots__ = ("function",)

    def __init__(self, function: str) -> None:
        self.function = function


def is_donated(node: Node) -> bool:
    """Whether the node stands for such a value."""
    return node.op is PLACEHOLDER and type(node.params[0]) is Donated


def refuse_donated(node: Node) -> None:
    """Raise an error if the node stands for such a value."""
    if is_donated(node):
        name = node.params[0].function
        raise UserError(
            "jit",
            f"this tensor of type {node.type} was donated to {name}, which has overwritten it. Use what {name} returned, or leave the "
            "argument out of weft.jit(..., donate=...).",
        )


def data(value: Value) -> Node:
    """A leaf with a known value."""
    return make(DATA, (), (value,))


def fresh_data(value: Value, type: Type, nbytes: int, source: Source | None) -> Node:
    """`data` for a new value. It is not interned, because no equal node can exist, and interning takes time."""
    node = Node.__new__(Node)
    node.op, node.params = DATA, (value,)
    node.inputs = node.outputs = ()
    node.type, node.source, node.value, node.device = type, source, value, value.device
    node.shape, node.dtype = type
    node.holders = node.users = 0
    node.abstract, node.tracker = False, None
    clock = CLOCK
    node.serial = node.born = clock.nodes = clock.nodes + 1
    node.born_bytes = clock.bytes
    clock.bytes += nbytes
    return node


def variable(cell: VariableCell) -> Node:
    """A leaf to differentiate with respect to."""
    return make(VARIABLE, (), (cell,))


# A unique identity node to differentiate with respect to. Closing a graph removes it.
TAG = Op(
    "tag",
    "control",
    lambda x, key: x.type,
    lambda x, key: x,
    lambda g, y, x, key: (g,),
    ("key",),
    1,
    kernel="alias",
    derivative_marker=True,
)


def tag(node: Node, tracker: Tracker) -> Node:
    """A unique copy of the node whose history is kept while the tracker is open."""
    tagged = make(TAG, (node,), (object(),))  # equal arguments of a function are distinct
    if tagged.tracker is None or tracker.serial < tagged.tracker.serial:
        tagged.tracker = tracker
    return tagged


def _item_infer(source: Node, index: int) -> Type:
    if not 0 <= index < len(source.outputs):
        raise UserError("item", f"result {index} of {source.op.name} does not exist; it has {len(source.outputs)}.")
    return source.outputs[index]


# Selects one result of a node with several. Reverse mode handles it by name; its vjp only marks it as differentiable.
ITEM = Op(
    "item", "control", _item_infer, lambda values, index: values[index], _cannot_run, ("index",), 1, kernel="alias"
)


def item(node: Node, index: int) -> Node:
    """One result of a node with several results."""
    return make(ITEM, (node,), (index,))
