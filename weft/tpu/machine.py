"""The machine: sizes and rates of a Tensor Processing Unit. The defaults are those of the TPU of 2015 (Jouppi et al., ISCA 2017)."""

from __future__ import annotations

from dataclasses import fields, replace
from math import ceil
from typing import Any

from ..errors import UserError
from ..records import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class TpuMachine:
    """Sizes and rates of the machine, all of them settings.

    >>> TpuMachine().peak_tops, TpuMachine().accumulator_rows, TpuMachine().weight_tile_cycles
    (91.7504, 4096, 1350)
    >>> TpuMachine(rows=4, columns=4).fill_cycles
    6
    """

    rows: int = 256  # of the systolic array: inputs of one tile of weights
    columns: int = 256  # outputs of one tile
    clock: float = 700e6  # cycles per second
    accumulator_bytes: int = 4 * MIB  # sums of 32 bits below the array
    unified_buffer_bytes: int = 24 * MIB  # activations of 8 bits
    weight_bandwidth: float = 34e9  # bytes per second from the weight memory (DDR3)
    weight_fifo_tiles: int = 4  # tiles of weights between the weight memory and the array
    host_bandwidth: float = 14e9  # bytes per second over PCIe 3.0 x16, without protocol overhead

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, (int, float)) or not value > 0:
                raise UserError("tpu", f"{field.name} must be a positive number, got {value!r}.")
        if self.accumulator_rows < 2:
            least = 2 * 4 * self.columns
            raise UserError(
                "tpu",
                f"accumulators of {least} bytes or more are required, two rows of {self.columns} sums, got {self.accumulator_bytes}.",
            )

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    @property
    def peak_tops(self) -> float:
        """Multiplications and additions per second, in 10^12."""
        return 2 * self.cells * self.clock / 1e12

    @property
    def accumulator_rows(self) -> int:
        """Rows of `columns` sums that the accumulators hold."""
        return int(self.accumulator_bytes) // (4 * self.columns)

    @property
    def tile_bytes(self) -> int:
        return self.cells

    @property
    def weight_tile_cycles(self) -> int:
        """Cycles to load one tile from the weight memory, whether all of its cells are used or not."""
        return ceil(self.tile_bytes / self.weight_bandwidth * self.clock)

    @property
    def fill_cycles(self) -> int:
        """Cycles from the last row entering the array until its last sum leaves: the wavefront crosses the array diagonally."""
        return self.rows + self.columns - 2

    def host_cycles(self, nbytes: int) -> int:
        return ceil(nbytes / self.host_bandwidth * self.clock)

    def seconds(self, cycles: float) -> float:
        return cycles / self.clock

    def with_settings(self, **settings: Any) -> TpuMachine:
        """The same machine with other settings.

        >>> TpuMachine().with_settings(weight_bandwidth=136e9).weight_tile_cycles
        338
        """
        known = [field.name for field in fields(self)]
        for name in settings:
            if name not in known:
                raise UserError("tpu", f"one of the settings {', '.join(known)} is required, got {name!r}.")
        return replace(self, **settings)

    def __str__(self) -> str:
        return (
            f"{self.rows} x {self.columns} cells at {self.clock / 1e6:g} MHz ({self.peak_tops:.3g} TOPS), accumulators "
            f"{size_text(self.accumulator_bytes)}, unified buffer {size_text(self.unified_buffer_bytes)}, weights at {self.weight_bandwidth / 1e9:g} GB/s "
            f"through {self.weight_fifo_tiles} tiles, host at {self.host_bandwidth / 1e9:g} GB/s"
        )


def size_text(nbytes: float) -> str:
    """A size in KiB or MiB."""
    return f"{nbytes / MIB:.4g} MiB" if nbytes >= MIB else f"{nbytes / 1024:.4g} KiB"
