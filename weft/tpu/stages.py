"""A program before tiling: stages on the matrix unit, on the activation unit and on the host, and the values between them."""

from __future__ import annotations

from ..records import dataclass

MULTIPLY, CONVOLVE = "matrix_multiply", "convolve"


@dataclass(frozen=True, eq=False)
class TpuValue:
    """A tensor passed between stages: in the unified buffer, or in host memory."""

    name: str
    nbytes: int

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Stage:
    """A part of a program. `reads` and `writes` are values in the unified buffer."""

    name: str
    reads: tuple[TpuValue, ...]
    writes: tuple[TpuValue, ...]


@dataclass(frozen=True, eq=False)
class MatrixStage(Stage):
    """(rows x inner) times (inner x columns), for each group, and the function that the activation unit applies to the sums.

    A convolution is one such product: a row is a position in an image of the batch, and `inner` counts channels times kernel positions.
    """

    rows: int
    inner: int
    columns: int
    groups: int = 1
    kind: str = MULTIPLY
    function: str = "requantize"
    cycles_per_row: int = 1  # 2 for 16-bit activations: the array then runs at half speed

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations."""
        return self.rows * self.inner * self.columns * self.groups

    @property
    def weights(self) -> int:
        return self.inner * self.columns * self.groups


@dataclass(frozen=True, eq=False)
class VectorStage(Stage):
    """A stage of the activation unit on values of the unified buffer: pooling, additions, gates of an LSTM."""

    elements: int  # number of elements read
    function: str = "vector"


@dataclass(frozen=True, eq=False)
class HostStage(Stage):
    """Host computation between two transfers. Its time is not counted. Its `writes` go to the unified buffer, its `reads` come from there."""

    what: str = ""
