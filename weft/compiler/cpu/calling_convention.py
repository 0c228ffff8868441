"""The LLVM types of library functions and of the epilogues that they call."""

from __future__ import annotations

from llvmlite import ir

from ..ir.plan import PlanPhase
from .ir_builder import I64, PTR
from .library import is_number

# void epilogue(ptr context, i64 batch, i64 row_begin, i64 row_end, i64 column_begin, i64 column_end): called by a thread
# that has finished these elements of the result, seen as a batch of matrices; null if there is nothing to add. The context is
# per thread: pointers to the memory that the epilogue accesses, the result first.
EPILOGUE = ir.FunctionType(ir.VoidType(), [PTR, I64, I64, I64, I64, I64])


def argument_types(phase: PlanPhase) -> list[ir.Type]:
    """The LLVM types of a phase's arguments."""
    return [I64 if is_number(a) else PTR for a in phase.arguments]
