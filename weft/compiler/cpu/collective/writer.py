"""The common parts of the native functions of all engines: arguments, sums, and waiting that can be aborted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from llvmlite import ir

from ....dtypes import DType
from ..ir_builder import I8, I32, I64, PTR, VOID, Code, Int, Value, vector
from ..scalars import extreme, from_storage, storage_type, to_storage
from ..target import current_target
from .layout import FAILED, TABLE, Context
from .phases import ARGUMENTS

TYPES = [PTR, PTR, I64, I64, I64, I64, PTR, I64, I64]
SLEEP_MICROSECONDS = 50
T = TypeVar("T")


def tree(values: Sequence[T], add: Callable[[T, T], T]) -> T:
    """The values combined in pairs of neighbours, then pairs of pairs: ((0 + 1) + (2 + 3)) + (4 + 5)."""
    parts = list(values)
    while len(parts) > 1:
        pairs = [add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(parts) - len(parts) % 2 :]
    return parts[0]


class CollectiveCode(Code):
    """The code of one collective."""

    def prepare(self, dtype: DType, combine: str, size: int) -> None:
        """Begin: what all of them read first."""
        self.of = dict(zip(ARGUMENTS, self.arguments, strict=True))
        self.dtype, self.combine, self.size = dtype, combine, size
        self.element = storage_type(dtype)
        self.itemsize = dtype.itemsize
        table = self.read(self.of["status"], TABLE, PTR)
        self.context = self.read(table, self.of["axis"], PTR)
        self.me = self.word(Context.INDEX)
        self.given_up = self.append_basic_block("given_up")

    def finish(self) -> None:
        """End, here or where it was given up."""
        end = self.append_basic_block("end")
        self.branch(end)
        self.position_at_end(self.given_up)
        self.write(self.i64(FAILED), self.of["status"], 0)
        self.branch(end)
        self.position_at_end(end)

    def word(self, index: int) -> Value:
        return self.read(self.context, index, I64)

    def address(self, index: int) -> Value:
        return self.read(self.context, index, PTR)

    def typed(self, pointer: Value) -> Value:
        """llvmlite stores atomically through typed pointers only."""
        return self.inttoptr(self.ptrtoint(pointer, I64), I64.as_pointer())

    # --- waiting --------------------------------------------------------------------------------------------------------------

    def new_count(self) -> Value:
        """How often a waiting thread has looked: a variable."""
        looks = self.variable(I64)
        self.store(self.i64(0), looks)
        return looks

    def rest(self, looks: Value) -> None:
        """One step of a waiting thread between two polls; it returns if the collective is aborted."""
        count = self.load(looks, typ=I64)
        self.store(self.plus(count, 1), looks)
        with self.if_else(self.icmp_signed("<", count, self.word(Context.SPINS))) as (soon, later):
            with soon:
                self._pause()
            with later:
                self._let_others_run(self.sub(count, self.word(Context.SPINS)))
        stop = self.load_atomic(self.address(Context.STOP), "acquire", 8, typ=I64)
        self.give_up_if(self.icmp_signed("!=", stop, self.i64(0)), -1)

    def wait_while(self, condition: Callable[[], Value]) -> None:
        """Wait until a condition is false."""
        looks = self.new_count()
        with self.repeat_while(condition):
            self.rest(looks)

    def give_up_if(self, condition: Value, peer: Int) -> None:
        go_on = self.append_basic_block("go_on")
        leave = self.append_basic_block("leave")
        self.cbranch(condition, leave, go_on)
        self.position_at_end(leave)
        self.write(self.i64(peer), self.of["status"], 1)
        self.branch(self.given_up)
        self.position_at_end(go_on)

    def _pause(self) -> None:
        if current_target().arch == "aarch64":
            self.intrinsic("aarch64.isb", ir.Constant(I32, 15), types=[], result=VOID)
        else:
            self.intrinsic("x86.sse2.pause", types=[], result=VOID)

    def _let_others_run(self, looks: Value) -> None:
        """Yield the core; a thread that has waited for long sleeps, so that slow processes get all of the machine."""
        with self.if_else(self.icmp_signed("<", looks, self.word(Context.YIELDS))) as (soon, later):
            with soon:
                self.call(self.inttoptr(self.word(Context.YIELD), ir.FunctionType(I32, []).as_pointer()), [])
            with later:
                sleep = self.inttoptr(self.word(Context.SLEEP), ir.FunctionType(I32, [I32]).as_pointer())
                self.call(sleep, [ir.Constant(I32, SLEEP_MICROSECONDS)])

    # --- data -----------------------------------------------------------------------------------------------------------------

    def copy(self, target: Value, source: Value, nbytes: Value) -> None:
        self.intrinsic(
            "memcpy", target, source, nbytes, ir.Constant(ir.IntType(1), 0), types=[PTR, PTR, I64], result=ir.VoidType()
        )

    def place(self, pointer: Value, element: Int) -> Value:
        return self.at(pointer, element, self.element)

    def nbytes(self, count: Value) -> Value:
        return self.mul(count, self.i64(self.itemsize))

    def fill_zero(self, target: Value, nbytes: Value) -> None:
        zero, volatile = ir.Constant(I8, 0), ir.Constant(ir.IntType(1), 0)
        self.intrinsic("memset", target, zero, nbytes, volatile, types=[PTR, I64], result=VOID)

    def combine_all(self, sources: Sequence[Value], targets: Sequence[Value], first: Value, last: Value) -> None:
        """Combine the elements of all slots, and write them to each target."""
        lanes = 2 * current_target().lanes(max(32, self.dtype.bits))
        whole = self.sub(last, self.srem(self.sub(last, first), self.i64(lanes)))
        for low, high, width in ((first, whole, lanes), (whole, last, 1)):
            with self.loop(low, high, width, name="element") as i:
                type = vector(self.element, width)
                values = [from_storage(self, self.read(s, i, type), self.dtype) for s in sources]
                made = to_storage(self, tree(values, self._combined), self.dtype)
                for target in targets:
                    self.write(made, target, i)

    def _combined(self, a: Value, b: Value) -> Value:
        if self.combine == "sum":
            return self.fadd(a, b) if self.dtype.is_float else self.add(a, b)
        return extreme(self, a, b, self.dtype, self.combine == "max")
