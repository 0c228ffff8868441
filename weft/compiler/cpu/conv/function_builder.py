"""Helpers that the native functions of convolutions share: arguments by name, copies, calls of the epilogue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace

from llvmlite import ir

from ...ir.plan import PlanPhase
from ..calling_convention import EPILOGUE
from ..gemm.packing import before, read_masked
from ..ir_builder import F32, F64, I64, PTR, Code, Int, Value, new_module, vector
from ..library import NUMBERS
from ..target import current_target

LANES_OF_16_BYTES = {F32: 4, F64: 2}


class Signature:
    """The arguments of a native function: pointers, then i64 numbers, each with a name."""

    def __init__(self, pointers: Sequence[str], numbers: Sequence[str]) -> None:
        self.pointers, self.numbers = tuple(pointers), tuple(numbers)

    def begin(self, symbol: str) -> tuple[Code, SimpleNamespace]:
        """A new module with the function, and its arguments by name."""
        types: list[ir.Type] = [PTR] * len(self.pointers) + [I64] * len(self.numbers)
        code = Code.begin(new_module(symbol), symbol, types)
        return code, SimpleNamespace(**dict(zip(self.pointers + self.numbers, code.arguments, strict=True)))

    def phase(
        self,
        symbol: str,
        pointers: Mapping[str, str],
        numbers: Mapping[str, int],
        reads: Sequence[str],
        writes: Sequence[str],
        share: float | None = None,
    ) -> PlanPhase:
        """A call of the function. The pointers are named as the plan names them; "tid" and "threads" need no value."""
        arguments: list[str | int] = [pointers.get(p, p) for p in self.pointers]
        arguments += [n if n in NUMBERS else numbers[n] for n in self.numbers]
        return PlanPhase(symbol, tuple(arguments), frozenset(reads), frozenset(writes), share=share)


def split(code: Code, number: Value, *sizes: Int) -> list[Value]:
    """Unravel a linear index; the last size varies fastest. One more result than sizes: the first is unbounded."""
    digits = []
    for size in reversed(sizes):
        digits.append(code.srem(number, code.i64(size)))
        number = code.sdiv(number, code.i64(size))
    return [number, *reversed(digits)]


def below(code: Code, value: Value, limit: Value) -> Value:
    """0 <= value < limit, in one comparison."""
    return code.icmp_unsigned("<", value, limit)


def all_of(code: Code, *conditions: Value) -> Value:
    result = conditions[0]
    for condition in conditions[1:]:
        result = code.and_(result, condition)
    return result


def copy(code: Code, source: Value, target: Value, length: Value, element: ir.Type = F32) -> None:
    """Copy floats, a vector at a time."""
    if current_target().arch == "x86_64" and current_target().vector_bits == 512:
        _copy_masked(code, source, target, length, element)
        return
    for at, lanes in _vectors(code, length, element):
        code.write(code.read(source, at, vector(element, lanes)), target, at)


def _copy_masked(code: Code, source: Value, target: Value, length: Value, element: ir.Type) -> None:
    """The same, with the remainder as one masked vector."""
    lanes = current_target().lanes(128 // LANES_OF_16_BYTES[element])
    kind, whole = vector(element, lanes), code.and_(length, code.i64(-lanes))
    with code.loop(0, whole, lanes) as at:
        code.write(code.read(source, at, kind), target, at)
    with code.if_then(code.icmp_signed("<", whole, length)):
        mask = before(code, code.sub(length, whole), lanes)
        value = read_masked(code, code.at(source, whole, element), mask, kind)
        code.write_masked(value, target, whole, mask)


def fill(code: Code, target: Value, length: Value, value: Value | None = None, element: ir.Type = F32) -> None:
    """Write zeros, or another float."""
    for at, lanes in _vectors(code, length, element):
        code.write(code.splat(ir.Constant(element, 0.0) if value is None else value, lanes), target, at)


def _vectors(code: Code, length: Value, element: ir.Type) -> Iterator[tuple[Value, int]]:
    """Loops over a number of floats: in the CPU's vectors, in vectors of 16 bytes, one by one."""
    done: Int = 0
    short = LANES_OF_16_BYTES[element]
    for lanes in sorted({current_target().lanes(128 // short), short, 1}, reverse=True):
        whole = code.and_(length, code.i64(-lanes))
        with code.loop(done, whole, lanes) as at:
            yield at, lanes
        done = whole


def call_epilogue(code: Code, a: SimpleNamespace, rows: tuple[Int, Int], columns: tuple[Int, Int]) -> None:
    """Call the epilogue, if there is one, for finished elements of the result."""
    with code.if_then(code.icmp_unsigned("!=", a.epilogue, ir.Constant(PTR, None))):
        # Cast to a typed pointer: llvmlite calls no others.
        function = code.inttoptr(code.ptrtoint(a.epilogue, I64), EPILOGUE.as_pointer())
        code.call(function, [a.context, code.i64(0), *map(code.i64, (*rows, *columns))])


def numbers(code: Code, count: int, element: ir.Type = I64) -> Value:
    """An array on the stack, as a plain pointer."""
    made = code.stack_array(element, count)
    made.type = PTR  # llvmlite would give it the type of an array, and refuse to store an element there
    return made
