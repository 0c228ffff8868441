"""Scalar arguments of a compiled function: Python's and NumPy's numbers, while the function is traced.

A number has no dtype of its own: beside a tensor it takes the tensor's, as without `jit`. Nor is its value part of the program, or a
learning rate that changes at every step would recompile. So a `Scalar` stands for it. Arithmetic between numbers is recorded and
done by Python before each run, with Python's own rules. Where a tensor meets a number, the program has an input of the tensor's dtype.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..dtypes import DType, DTypeLike, as_dtype, scalar_dtype
from ..errors import UserError
from ..graph.node import CLOCK, Node, Type, placeholder
from ..tensor import Tensor, checked_number, wrap

NUMBERS = (bool, int, float)  # and NumPy's; not their subclasses, which may mean more than a number


def is_number(value: Any) -> bool:
    """Whether a value is a plain number of Python or NumPy."""
    return type(value) in NUMBERS or isinstance(value, np.generic)


class _ScalarOp(NamedTuple):
    """An operation on numbers: its operands are Scalars or plain numbers, the result is always of one type."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    type: type


class NumberRecorder:
    """The numbers of a call while a function is traced: those that were given, and what is computed of them."""

    def __init__(self, given: Sequence[Any]) -> None:
        self.values = list(given)  # of the call that is traced: they tell the types, no program depends on them
        self.count = len(self.values)
        self.steps: list[_ScalarOp] = []
        self.inputs: dict[tuple[int, DType], Node] = {}  # of the program: which number, as which dtype
        CLOCK.nodes += 1
        self.start = CLOCK.nodes

    def scalars(self) -> list[Scalar]:
        """What stands for the numbers that were given."""
        return [Scalar(self, i) for i in range(self.count)]

    def operate(self, function: Callable[..., Any], *operands: Any) -> Scalar:
        """The result of an operation on Scalars and plain numbers."""
        value = function(*(self.values[o.index] if isinstance(o, Scalar) else o for o in operands))
        if not is_number(value):
            raise UserError("jit", f"numbers that are given to a compiled function must stay real, got {value!r}.")
        self.steps.append(
            _ScalarOp(function, tuple(o.index if isinstance(o, Scalar) else _Plain(o) for o in operands), type(value))
        )
        self.values.append(value)
        return Scalar(self, len(self.values) - 1)

    def input(self, index: int, dtype: DType) -> Node:
        """The input of the program for a number as this dtype. It counts as made before the function: also bodies of loops capture it."""
        if (index, dtype) not in self.inputs:
            node = self.inputs[index, dtype] = placeholder(object(), Type((), dtype))
            node.serial = self.start
        return self.inputs[index, dtype]

    def texts(self) -> list[str]:
        """The arithmetic as text: n2 = add(n0, 1) -> int."""
        return [
            f"n{self.count + i} = {function.__name__}("
            + ", ".join(repr(o.value) if type(o) is _Plain else f"n{o}" for o in operands)
            + f") -> {kind.__name__}"
            for i, (function, operands, kind) in enumerate(self.steps)
        ]

    def computed(self, given: Sequence[Any]) -> list[Any]:
        """All numbers of another call."""
        values = list(given)
        for function, operands, kind in self.steps:
            value = function(*(o.value if type(o) is _Plain else values[o] for o in operands))
            if type(value) is not kind:
                raise UserError(
                    "jit",
                    f"{function.__name__} of numbers gave {kind.__name__} when the function was traced, and now "
                    f"{type(value).__name__}. Name the argument in weft.jit(..., static=...).",
                )
            values.append(value)
        return values


class _Plain(NamedTuple):
    value: Any


def as_array(value: Any, dtype: DType) -> np.ndarray:
    """A number as the input of a program, or the error that it does not fit."""
    plain = checked_number(value.item() if isinstance(value, np.generic) else value, dtype)
    return np.asarray(float(plain) if dtype.is_float else plain).astype(dtype.numpy)


class Scalar(Tensor):
    """Stands for a number; where a tensor is required it is one, of the dtype that the number has by itself."""

    __slots__ = ("index", "recorder")
    recorder: NumberRecorder
    index: int

    def __init__(self, recorder: NumberRecorder, index: int) -> None:
        self.recorder, self.index = recorder, index
        self.grad, self.born = None, CLOCK.nodes
        self._node = recorder.input(index, as_dtype(type(self._example)))
        self._node.holders += 1

    @property
    def _example(self) -> Any:
        """The number in the call that is traced. Only its type may be looked at."""
        value = self.recorder.values[self.index]
        return value.item() if isinstance(value, np.generic) else value

    def beside(self, dtype: DType | None) -> Tensor:
        """The tensor that the number is next to one of this dtype."""
        return wrap(self._node) if dtype is None else self.astype(scalar_dtype(self._example, dtype))

    def astype(self, dtype: DTypeLike) -> Tensor:
        return wrap(self.recorder.input(self.index, as_dtype(dtype, "astype")))

    def with_own_dtype(self) -> Tensor:
        """As `asarray` sees it: NumPy's scalars have a dtype."""
        value = self.recorder.values[self.index]
        return self.astype(as_dtype(value.dtype)) if isinstance(value, np.generic) else wrap(self._node)

    # --- operations that need the value, which is unknown, and that numbers do not have------------------------------------------------

    def assign(self, value: Any) -> NoReturn:
        raise UserError(
            "assign", "a number cannot be changed in place. Pass a tensor, or give the variable another value."
        )

    def _scalar(self, what: str) -> NoReturn:
        raise UserError(
            what,
            "the number that this argument stands for is not known while a function is being traced. Decide with weft.where, weft.cond or "
            "weft.while_loop. An argument that the function must know, such as a count, is named in weft.jit(..., static=...).",
        )

    def __hash__(self) -> int:  # else a dict would not find the number
        self._scalar("hash")

    def __round__(self, digits: int | None = None) -> Any:
        return self.recorder.operate(round, self) if digits is None else self.recorder.operate(round, self, digits)

    def __format__(self, spec: str) -> str:
        return repr(self)


def _binary(name: str, function: Callable[..., Any]) -> None:
    """Let an operator, from both sides, stay among numbers; with anything else it is the tensor's."""
    as_tensors = getattr(Tensor, f"__{name}__"), getattr(Tensor, f"__r{name}__", None)

    def forward(self: Scalar, other: Any) -> Any:
        if is_number(other) or isinstance(other, Scalar):
            return self.recorder.operate(function, self, other)
        return as_tensors[0](self, wrap_array(other))

    def backward(self: Scalar, other: Any) -> Any:
        if is_number(other):
            return self.recorder.operate(function, other, self)
        return as_tensors[1](self, wrap_array(other))  # type: ignore[misc]

    setattr(Scalar, f"__{name}__", forward)
    if as_tensors[1] is not None:
        setattr(Scalar, f"__r{name}__", backward)
        setattr(Scalar, f"__i{name}__", forward)  # `n += 1` gives the name n another number


def wrap_array(other: Any) -> Any:
    """An array decides the dtype beside a number."""
    return Tensor(other) if isinstance(other, np.ndarray) else other


def _unary(name: str, function: Callable[..., Any]) -> None:
    def forward(self: Scalar) -> Scalar:
        return self.recorder.operate(function, self)

    setattr(Scalar, f"__{name}__", forward)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor"):
    _binary(_name, getattr(operator, f"{_name}_" if _name in ("and", "or") else _name))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _binary(_name, getattr(operator, _name))
for _name in ("neg", "pos", "abs", "invert"):
    _unary(_name, getattr(operator, _name))
