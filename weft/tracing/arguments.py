"""The arguments of a compiled function: placeholders while it is traced, and what the function does with them.

A function may change a tensor that it is passed (`a += 1`, `p.assign(...)`) and return it. Both must behave as without `jit`: the
caller's tensor has the new value after the call, and the same object is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from ..dtypes import as_dtype
from ..errors import UserError
from ..graph.node import Node, Type
from ..random import GENERATORS
from ..records import dataclass
from ..tensor import Tensor
from ..tree import Structure, flatten
from .context import StateRecorder
from .scalars import NumberRecorder, Scalar, as_array, is_number

# Which arguments are one tensor: for each the position of an earlier one, a tensor that the function finds outside too, or None.
Aliases = tuple[int | Tensor | None, ...]


@dataclass(frozen=True)
class ResultSource:
    """Where a leaf of the result comes from: which of the values computed, of the arguments, or of the numbers; or from outside."""

    source: Literal["computed", "argument", "number", "outside"]
    number: int = -1  # which of them
    value: Any = None  # from outside: a number, or a tensor

    def finder(self) -> Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]:
        """A function from (values computed, arguments, numbers) of a call to the leaf."""
        number, value = self.number, self.value
        if self.source == "computed":
            return lambda computed, arguments, numbers: computed[number]
        if self.source == "argument":
            return lambda computed, arguments, numbers: arguments[number]
        if self.source == "number":
            return lambda computed, arguments, numbers: numbers[number]
        return lambda computed, arguments, numbers: value


class Arguments:
    """The values that a function is given in the call that is traced."""

    def __init__(self, values: Sequence[Any], aliases: Aliases | None) -> None:
        self.values, self.aliases = values, aliases or (None,) * len(values)
        self.arrays = [i for i, v in enumerate(values) if not is_number(v) and self.aliases[i] is None]
        self.numbers = [i for i, v in enumerate(values) if is_number(v)]
        self.number_recorder = NumberRecorder([values[i] for i in self.numbers])
        self.changed: list[int] = []  # arguments that the function assigned to
        self.results: list[ResultSource] = []  # how each leaf of the result is found
        self.is_plain = False  # whether these are the computed tensors, one after the other
        self.structure = Structure(None)  # of the result

    def types(self) -> list[Type]:
        """Of the program's inputs for tensors and arrays."""
        return [type_of(self.values[i]) for i in self.arrays]

    def call(
        self, tensors: Sequence[Tensor], function: Callable[[Sequence[Any]], Any], recorder: StateRecorder
    ) -> list[Any]:
        """Call the function with placeholders for the arguments; returns all that the program computes, changed arguments last."""
        stand_ins: list[Any] = [None] * len(self.values)
        for i, tensor in zip(self.arrays, tensors, strict=True):
            stand_ins[i] = tensor
        for i, scalar in zip(self.numbers, self.number_recorder.scalars(), strict=True):
            stand_ins[i] = scalar
        for i, alias in enumerate(self.aliases):
            if alias is not None:
                stand_ins[i] = stand_ins[alias] if isinstance(alias, int) else alias
        before = [t._node for t in tensors]
        leaves, self.structure = flatten(function(stand_ins))
        self._find_changed(tensors, before)
        computed = self._find_results(leaves, {id(s): i for i, s in reversed(list(enumerate(stand_ins)))}, recorder)
        self.values = ()  # a program must not keep what one call was given
        return [*computed, *(stand_ins[i] for i in self.changed)]

    def _find_changed(self, tensors: Sequence[Tensor], before: Sequence[Node]) -> None:
        for i, tensor, node in zip(self.arrays, tensors, before, strict=True):
            if tensor.grad is not None or tensor._owns_parameter:
                raise UserError(
                    "jit",
                    "a compiled function cannot make a parameter of an argument, or set its .grad. Do so before the call.",
                )
            if tensor._node is node:
                continue
            if isinstance(self.values[i], np.ndarray):
                raise UserError(
                    "jit",
                    "a compiled function cannot change a NumPy array in place. Pass weft.asarray(x), or write x = x + 1 instead of x += 1.",
                )
            self.changed.append(i)

    def _find_results(self, leaves: Sequence[Any], positions: dict[int, int], recorder: StateRecorder) -> list[Any]:
        """The results that the program computes. The others are arguments, captured tensors, and numbers."""
        computed: dict[int, Any] = {}
        moving = {
            id(t) for t in (*recorder.owners, *(stream.key for stream in GENERATORS))
        }  # other tensors take their places
        for leaf in leaves:
            if isinstance(leaf, Scalar):
                self.results.append(ResultSource("number", leaf.index))
            elif is_number(leaf):
                self.results.append(ResultSource("outside", value=leaf))
            elif id(leaf) in positions and isinstance(self.values[positions[id(leaf)]], Tensor):
                self.results.append(ResultSource("argument", positions[id(leaf)]))
            elif isinstance(leaf, Tensor) and leaf.born <= recorder.start and id(leaf) not in moving:
                self.results.append(ResultSource("outside", value=leaf))
            else:
                computed.setdefault(id(leaf), leaf)
                self.results.append(ResultSource("computed", list(computed).index(id(leaf))))
        self.is_plain = len(computed) == len(leaves)
        return list(computed.values())

    def prune(self, used: set[Node]) -> None:
        """Leave out numbers as inputs that the program does not use: they need not fit into a dtype."""
        inputs = self.number_recorder.inputs
        self.number_recorder.inputs = {which: node for which, node in inputs.items() if node in used}

    def passed(self) -> Callable[[Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]] | None:
        """A function that turns the arguments of a call into the program's inputs, and numbers. None: they are those already."""
        if len(self.arrays) == len(self.aliases):
            return None
        arrays, numbers, recorder = self.arrays, self.numbers, self.number_recorder
        inputs = list(recorder.inputs)

        def pass_on(values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
            known = recorder.computed([values[i] for i in numbers])
            return [*(values[i] for i in arrays), *(as_array(known[i], dtype) for i, dtype in inputs)], known

        return pass_on


def type_of(value: Any) -> Any:
    """What programs depend on: the type of a tensor or an array, the class of a number."""
    if isinstance(value, Tensor):
        return value._node.type
    return Type(value.shape, as_dtype(value.dtype, "jit")) if isinstance(value, np.ndarray) else type(value)


def refuse_other_content(given: Any, structure: Structure, leaves: Sequence[Any]) -> None:
    """Reject changes to lists and dicts: a compiled function gets copies, so changes would be lost."""
    now, structure_now = flatten(given)
    if structure_now != structure or any(a is not b for a, b in zip(now, leaves, strict=True)):
        raise UserError(
            "jit",
            "a compiled function cannot put other values into a list or dict that it was given. Change tensors with assign() or "
            "`p -= ...`, or return the new values.",
        )
