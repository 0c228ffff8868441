"""A builder of LLVM IR on top of llvmlite's, with loops, vectors and integer arithmetic.

A `Code` builds one function. Values are llvmlite's; most methods take scalars and vectors alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from .target import current_target

I1, I8, I16, I32, I64 = (ir.IntType(b) for b in (1, 8, 16, 32, 64))
F16, F32, F64, VOID = ir.HalfType(), ir.FloatType(), ir.DoubleType(), ir.VoidType()
PTR = ir.PointerType()
Value = Any  # llvmlite's values have no useful types
Int = Any  # a Python int, or an i64 value

# llvmlite fills its table of escaped characters when the first text is written. Modules are written by several threads, and one could
# see a table that another has filled in part: so it is filled now.
ir.MetaDataString(ir.Module(), "").get_reference()


def vector(element: ir.Type, lanes: int) -> ir.Type:
    """A vector type, or the element itself for one lane."""
    return element if lanes == 1 else ir.VectorType(element, lanes)


def element_of(type: ir.Type) -> ir.Type:
    return type.element if isinstance(type, ir.VectorType) else type


def lanes_of(type: ir.Type) -> int:
    return int(type.count) if isinstance(type, ir.VectorType) else 1


def like(type: ir.Type, element: ir.Type) -> ir.Type:
    """The type with the same lanes and another element."""
    return vector(element, lanes_of(type))


def constant(type: ir.Type, value: Any) -> Value:
    """A constant of a scalar or vector type, the same in all lanes."""
    if isinstance(type, ir.VectorType):
        return ir.Constant(type, [constant(type.element, value)] * type.count)
    return ir.Constant(type, int(value) if isinstance(type, ir.IntType) else value)


def new_module(name: str) -> ir.Module:
    module = ir.Module(name=name, context=ir.Context())
    return module


class Code(ir.IRBuilder):  # type: ignore[misc]  # llvmlite has no types
    """A builder at the end of a function's body. Close it with `done()`."""

    @classmethod
    def begin(
        cls,
        module: ir.Module,
        name: str,
        arguments: Sequence[ir.Type],
        result: ir.Type = VOID,
        *,
        private: bool = False,
    ) -> Code:
        """Begin a function. Pointer arguments may alias unless the caller adds `noalias`."""
        function = ir.Function(module, ir.FunctionType(result, list(arguments)), name)
        function.attributes.add("nounwind")
        if private:
            function.linkage = "internal"
        code = cls(function.append_basic_block("entry"))
        return code

    @property
    def arguments(self) -> tuple[Value, ...]:
        return tuple(self.function.args)

    def done(self, value: Value | None = None) -> ir.Function:
        self.ret_void() if value is None else self.ret(value)
        return self.function

    # --- numbers ----------------------------------------------------------------------------------------------------

    def i64(self, value: Int) -> Value:
        """An i64."""
        return ir.Constant(I64, value) if isinstance(value, int) else value

    def plus(self, *terms: Int) -> Value:
        """A sum of i64s, with constants folded."""
        known = sum(t for t in terms if isinstance(t, int))
        total: Value | None = None
        for term in terms:
            if not isinstance(term, int):
                total = term if total is None else self.add(total, term, flags=("nsw",))
        if total is None:
            return ir.Constant(I64, known)
        return total if known == 0 else self.add(total, ir.Constant(I64, known), flags=("nsw",))

    def times(self, a: Int, b: Int) -> Int:
        """A product of i64s."""
        if isinstance(a, int):
            a, b = b, a
        if isinstance(a, int):
            return a * b
        if isinstance(b, int):
            return 0 if b == 0 else a if b == 1 else self.mul(a, ir.Constant(I64, b), flags=("nsw",))
        return self.mul(a, b, flags=("nsw",))

    def minimum(self, a: Int, b: Int) -> Value:
        a, b = self.i64(a), self.i64(b)
        return self.select(self.icmp_signed("<", a, b), a, b)

    def maximum(self, a: Int, b: Int) -> Value:
        a, b = self.i64(a), self.i64(b)
        return self.select(self.icmp_signed(">", a, b), a, b)

    def ceil_div(self, a: Int, b: int) -> Value:
        return self.sdiv(self.plus(a, b - 1), self.i64(b))

    # --- loops ------------------------------------------------------------------------------------------------------

    @contextmanager
    def repeat_while(self, condition: Callable[[], Value]) -> Iterator[None]:
        """A block that is repeated as long as a condition, computed before each time, holds."""
        head, body, after = (self.append_basic_block(f"while.{part}") for part in ("head", "body", "after"))
        self.branch(head)
        self.position_at_end(head)
        self.cbranch(condition(), body, after)
        self.position_at_end(body)
        yield
        self.branch(head)
        self.position_at_end(after)

    @contextmanager
    def loop(self, start: Int, stop: Int, step: Int = 1, name: str = "i") -> Iterator[Value]:
        """`for i in range(start, stop, step)`, the step above zero."""
        before = self.block
        head, body, after = (self.append_basic_block(f"{name}.{part}") for part in ("head", "body", "after"))
        self.branch(head)
        self.position_at_end(head)
        index = self.phi(I64, name)
        index.add_incoming(self.i64(start), before)
        self.cbranch(self.icmp_signed("<", index, self.i64(stop)), body, after)
        self.position_at_end(body)
        yield index
        following = self.add(index, self.i64(step), flags=("nsw",))
        index.add_incoming(following, self.block)
        self.branch(head)
        self.position_at_end(after)

    def loop_carrying(
        self,
        start: Int,
        stop: Int,
        initial: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]],
        step: Int = 1,
    ) -> list[Value]:
        """A loop with loop-carried values (phi nodes): body(i, values) returns the next ones; the last are returned."""
        before = self.block
        head, inside, after = (self.append_basic_block(f"carry.{part}") for part in ("head", "body", "after"))
        self.branch(head)
        self.position_at_end(head)
        index = self.phi(I64, "k")
        index.add_incoming(self.i64(start), before)
        values = [self.phi(v.type) for v in initial]
        for phi, value in zip(values, initial, strict=True):
            phi.add_incoming(value, before)
        self.cbranch(self.icmp_signed("<", index, self.i64(stop)), inside, after)
        self.position_at_end(inside)
        results = body(index, list(values))
        following = self.add(index, self.i64(step), flags=("nsw",))
        index.add_incoming(following, self.block)
        for phi, value in zip(values, results, strict=True):
            phi.add_incoming(value, self.block)
        self.branch(head)
        self.position_at_end(after)
        return list(values)

    def share(self, count: Int, tid: Value, threads: Value) -> tuple[Value, Value]:
        """The range [first, last) of `count` tasks that belongs to a thread."""
        count = self.i64(count)
        first = self.sdiv(self.mul(count, tid), threads)
        last = self.sdiv(self.mul(count, self.plus(tid, 1)), threads)
        return first, last

    # --- memory -----------------------------------------------------------------------------------------------------

    def at(self, pointer: Value, index: Int, element: ir.Type) -> Value:
        """The address of pointer[index]."""
        return self.gep(pointer, [self.i64(index)], inbounds=True, source_etype=element)

    def read(self, pointer: Value, index: Int, type: ir.Type) -> Value:
        """pointer[index]; for a vector type the elements that begin there."""
        element = element_of(type)
        return self.load(self.at(pointer, index, element), typ=type, align=_size(element))

    def write(self, value: Value, pointer: Value, index: Int) -> None:
        element = element_of(value.type)
        self.store(value, self.at(pointer, index, element), align=_size(element))

    def write_masked(self, value: Value, pointer: Value, index: Int, mask: Value) -> None:
        """Write the elements of a vector whose lanes are set in the mask."""
        element = element_of(value.type)
        place = self.gep(pointer, [self.i64(index)], source_etype=element)  # not inbounds: all lanes may be off
        align = ir.Constant(I32, _size(element))
        self.intrinsic("masked.store", value, place, align, mask, types=[value.type, PTR], result=VOID)

    def prefetch(self, pointer: Value, index: Int, element: ir.Type, near: bool = True, write: bool = False) -> None:
        """Prefetch pointer[index] into the nearest cache, or the one after it, to be read or written; the address need not be valid."""
        place = self.gep(pointer, [self.i64(index)], source_etype=element)
        written, keep, data = (ir.Constant(I32, value) for value in (int(write), 3 if near else 2, 1))
        self.intrinsic("prefetch", place, written, keep, data, result=VOID)

    def stack_array(self, element: ir.Type, count: int, align: int = 64) -> Value:
        """An array on the stack, allocated at the function's entry."""
        return self.variable(ir.ArrayType(element, count), align)

    def variable(self, type: ir.Type, align: int | None = None) -> Value:
        """A stack slot for one value, allocated at the function's entry."""
        with self.goto_entry_block():
            made = self.alloca(type)
            made.align = align
        made.type = PTR  # llvmlite would say what it points to; LLVM no longer does
        return made

    # --- vectors ----------------------------------------------------------------------------------------------------

    def splat(self, value: Value, lanes: int) -> Value:
        """A vector with the value in all lanes."""
        if lanes == 1:
            return value
        if isinstance(value, ir.Constant):
            return ir.Constant(ir.VectorType(value.type, lanes), [value] * lanes)
        type = ir.VectorType(value.type, lanes)
        one = self.insert_element(ir.Constant(type, ir.Undefined), value, ir.Constant(I32, 0))
        mask = ir.Constant(ir.VectorType(I32, lanes), [ir.Constant(I32, 0)] * lanes)
        return self.shuffle_vector(one, ir.Constant(type, ir.Undefined), mask)

    def gather_lanes(self, parts: Sequence[Value]) -> Value:
        """A vector from scalars."""
        if len(parts) == 1:
            return parts[0]
        result: Value = ir.Constant(ir.VectorType(parts[0].type, len(parts)), ir.Undefined)
        for lane, part in enumerate(parts):
            result = self.insert_element(result, part, ir.Constant(I32, lane))
        return result

    def lane(self, value: Value, lane: int) -> Value:
        if not isinstance(value.type, ir.VectorType):
            return value
        return self.extract_element(value, ir.Constant(I32, lane))

    def lanes_between(self, value: Value, first: int, end: int) -> Value:
        """The lanes [first, end) of a vector."""
        if end - first in (1, lanes_of(value.type)):
            return value if first == 0 and end == lanes_of(value.type) else self.lane(value, first)
        mask = ir.Constant(ir.VectorType(I32, end - first), [ir.Constant(I32, i) for i in range(first, end)])
        return self.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), mask)

    def halves(self, value: Value) -> tuple[Value, Value]:
        """The first and the second half of a vector's lanes."""
        count = lanes_of(value.type)
        return self.lanes_between(value, 0, count // 2), self.lanes_between(value, count // 2, count)

    def reduce_lanes(self, value: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """All lanes of a vector combined: the first half with the second, until one is left."""
        while lanes_of(value.type) > 1:
            value = combine(*self.halves(value))
        return value

    def intrinsic(
        self, name: str, *values: Value, types: Sequence[ir.Type] | None = None, result: ir.Type | None = None
    ) -> Value:
        """A call of an LLVM intrinsic, overloaded by the type of its first value."""
        types = [values[0].type] if types is None else types
        suffix = "".join("." + _spell(t) for t in types)
        full = f"llvm.{name}{suffix}"
        function = self.module.globals.get(full)
        if function is None:
            kind = ir.FunctionType(values[0].type if result is None else result, [v.type for v in values])
            function = ir.Function(self.module, kind, full)
        return self.call(function, values)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once where the target has an instruction for it, else twice."""
        if not current_target().fma:
            return self.fadd(self.fmul(a, b), c)
        return self.intrinsic("fma", a, b, c)

    def exact_fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c for formulas that need the product's lowest bits: rounded once, or as good as once without an instruction for it."""
        if current_target().fma:
            return self.intrinsic("fma", a, b, c)
        if element_of(a.type) == F32:  # a product of two float32 is exact in float64
            a, b, c = (self.fpext(x, like(x.type, F64)) for x in (a, b, c))
            return self.fptrunc(self.fadd(self.fmul(a, b), c), like(a.type, F32))
        product, error = self._exact_product(a, b)
        total = self.fadd(product, c)
        back = self.fsub(total, product)
        lost = self.fadd(self.fsub(product, self.fsub(total, back)), self.fsub(c, back))
        correction = self.fadd(lost, error)
        # Infinities and numbers near the largest cannot be split: there is nothing to correct.
        return self.select(self.fcmp_unordered("uno", correction, correction), total, self.fadd(total, correction))

    def _exact_product(self, a: Value, b: Value) -> tuple[Value, Value]:
        """The product of two float64 and its rounding error (Dekker): both factors are split into halves of 26 bits."""
        product = self.fmul(a, b)
        (a_high, a_low), (b_high, b_low) = self._halves(a), self._halves(b)
        error = self.fsub(self.fmul(a_high, b_high), product)
        for x, y in ((a_high, b_low), (a_low, b_high), (a_low, b_low)):
            error = self.fadd(error, self.fmul(x, y))
        return product, error

    def _halves(self, value: Value) -> tuple[Value, Value]:
        scaled = self.fmul(value, constant(value.type, 2.0**27 + 1))
        high = self.fsub(scaled, self.fsub(scaled, value))
        return high, self.fsub(value, high)


def _spell(type: ir.Type) -> str:
    if isinstance(type, ir.VectorType):
        return f"v{type.count}{_spell(type.element)}"
    if isinstance(type, ir.PointerType):
        return "p0"
    if isinstance(type, ir.IntType):
        return f"i{type.width}"
    return {"half": "f16", "float": "f32", "double": "f64", "bfloat": "bf16"}[str(type)]


def _size(type: ir.Type) -> int:
    if isinstance(type, ir.IntType):
        return max(1, int(type.width) // 8)
    return {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": current_target().pointer_bytes}[str(type)]
