"""Operation and byte counts of a kernel for the energy model: operations by format, bytes by memory level.

The cache model considers sizes, not addresses:

- Operands and accumulators of an operation are in registers.
- Values that live within a call (activations) come from the last-level cache if the working set fits into it, and from DRAM otherwise.
- Values that outlive a call (parameters, packed weights, arguments) come from the last-level cache if they are still there from the previous call:
  if all of them that a call reads fit together with the activations. Otherwise each call reads them from DRAM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..compiler.cpu.roofline import last_cache
from ..records import dataclass
from ..runtime import Device
from .energy_model import SIGNIFICANDS, Counts, integer_bits
from .layer_profile import KernelProfile
from .machines import machine_like

CACHE = "l3"  # the last-level cache, as the table of energies calls it
ACCUMULATOR = "int32"  # of products of integers
WIDTHS = {"float64": 64, "float32": 32, "tf32": 32, "float16": 16, "bfloat16": 16, "float8_e4m3": 8, "float8_e5m2": 8}
PRODUCTS = (
    "matmul",
    "conv",
    "sparse_matmul",
    "attention",
)  # first words of the names of kernels whose operations are multiply-adds


@dataclass(frozen=True)
class CacheModel:
    """The last-level cache of a machine, and whether values that outlive a call stay in it until the next one."""

    nbytes: float
    keeps: bool

    @classmethod
    def of(cls, nbytes: float, kernels: Sequence[KernelProfile], persistent: float) -> CacheModel:
        """The model of a program that reads `persistent` distinct bytes that outlive a call."""
        read = min(persistent, sum(kernel.persistent for kernel in kernels))
        live = max((kernel.live for kernel in kernels), default=0)
        return cls(nbytes, read + live <= nbytes)


def cache_bytes(device: Device) -> float:
    """The size of a device's last-level cache; for a GPU from the table of machines, or 0 if it is unknown, so that everything comes from DRAM.

    It is 0 for a modelled machine: the bytes of its stages are those that cross the edge of the chip.
    """
    if device.is_modelled:
        return 0.0
    if not device.is_accelerator:
        return last_cache()
    described = machine_like(device)
    return 0.0 if described is None or described.on_chip_bytes is None else described.on_chip_bytes.value


def kernel_counts(kernel: KernelProfile, cache: CacheModel) -> Counts:
    """Operations and bytes of a kernel. Operations of a product are multiply-adds, others count as additions."""
    format = kernel.format if format_bits(kernel.format) else "int32" if kernel.format == "bool" else "float32"
    size = (format_bits(format) or 32) / 8
    if not kernel.name.startswith(PRODUCTS):
        operations, registers = {("add", format): kernel.flops}, 3 * size * kernel.flops
    elif integer_bits(format):
        macs = kernel.flops / 2
        operations = {("multiply", format): macs, ("add", ACCUMULATOR): macs}
        registers = (2 * size + 4) * macs
    else:
        operations, registers = {("mac", format): kernel.flops / 2}, 3 * size * kernel.flops / 2
    moved = kernel.nbytes - kernel.persistent
    levels = {CACHE: 0.0, "dram": 0.0}
    levels[CACHE if cache.keeps else "dram"] += kernel.persistent
    levels[CACHE if max(kernel.live, moved) <= cache.nbytes else "dram"] += moved
    return Counts(operations, {"register": registers} | {level: n for level, n in levels.items() if n})


def in_format(kernel: KernelProfile, format: str) -> KernelProfile:
    """A float kernel in another format: the same operations on narrower or wider values."""
    own = WIDTHS.get(kernel.format)
    wanted = format_bits(format)
    if own is None or wanted is None:
        return kernel
    ratio = wanted / own
    return replace(
        kernel,
        format=format,
        nbytes=ratio * kernel.nbytes,
        persistent=ratio * kernel.persistent,
        live=round(ratio * kernel.live),
    )


def format_bits(format: str) -> int | None:
    """The bits per value of a format; None for an unknown one.

    >>> format_bits("float16"), format_bits("q7.8"), format_bits("bool")
    (16, 16, None)
    """
    return WIDTHS[format] if format in SIGNIFICANDS else integer_bits(format)
