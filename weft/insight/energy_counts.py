"""How much a kernel does, in the terms of the energy model: operations by format, bytes by level of memory.

Every stored value that a kernel reads or writes moves between the kernel and the level of memory that it fits in: values that are in use while it runs and fit
into the last cache come from there, larger ones from DRAM. An operand of an operation comes from registers. That is the cache model: it knows sizes, not
addresses.
"""

from __future__ import annotations

from ..compiler.cpu.roofline import last_cache
from ..explain import Row
from .energy_model import Counts

OPERANDS = 3  # that an operation reads or writes in registers
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1}
_KNOWN = ("float64", "float32", "float16", "bfloat16", "int32", "int16", "int8")


def row_counts(row: Row) -> Counts:
    """Operations and bytes of a kernel. A product's operations are multiply-adds, others count as additions."""
    return counts(row.name, row.flops, row.nbytes, row.format, max(row.live, row.nbytes))


def counts(name: str, flops: float, nbytes: float, format: str, live: float) -> Counts:
    """The same for a kernel that is described by numbers."""
    kind = format if format in _KNOWN else "int32" if format.startswith(("int", "uint", "bool")) else "float32"
    is_product = name.startswith(("matmul", "conv"))
    operations = {("mac", kind): flops / 2} if is_product else {("add", kind): flops}
    level = "l3" if live <= last_cache() else "dram"
    registers = OPERANDS * _BYTES.get(kind, 4) * (flops / 2 if is_product else flops)
    return Counts(operations, {"register": registers, level: nbytes})
