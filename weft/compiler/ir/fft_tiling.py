"""Windows and tiles of convolutions by fast Fourier transforms, and where the algorithms apply."""

from __future__ import annotations

from math import prod

from ...records import dataclass
from .conv_shape import ConvShape

NAMES = ("FFT", "FFT_TILED")
LEAST_TAPS = 25  # of a filter: smaller ones have faster algorithms
SIZES = (8, 10, 12, 16, 20, 24, 32, 40, 48, 64)  # points of a transform; and 1, for an axis without taps
_NEEDS = f"a filter of {LEAST_TAPS} taps or more in two dimensions, stride 1, groups of more than one channel"
NEEDS = {
    "FFT": f"{_NEEDS}, and an image of at most {SIZES[-1]} pixels including the filter's reach",
    "FFT_TILED": f"{_NEEDS}, which reaches over fewer than {SIZES[-1]} pixels",
}


@dataclass(frozen=True)
class FftWindow:
    """The pixels of a transform along y and x: of `SIZES`, or 1."""

    y: int
    x: int

    @classmethod
    def named(cls, text: str) -> FftWindow:
        """From NYxNX, as in the names of functions."""
        return cls(*map(int, text.split("x")))

    def __str__(self) -> str:
        return f"{self.y}x{self.x}"

    @property
    def pixels(self) -> int:
        return self.y * self.x

    @property
    def columns(self) -> int:
        """Columns of the spectrum of real rows."""
        return self.x // 2 + 1

    @property
    def half(self) -> int:
        """Points of the spectrum of a real column."""
        return self.y // 2 + 1

    @property
    def real_columns(self) -> tuple[int, ...]:
        return (0,) if self.x == 1 else (0, self.x // 2)

    @property
    def points(self) -> int:
        return len(self.real_columns) * self.half + (self.columns - len(self.real_columns)) * self.y


@dataclass(frozen=True)
class FftTiling:
    """Tiles of `y` x `x` results, and the windows that they are computed from."""

    window: FftWindow
    y: int
    x: int

    def count(self, out: tuple[int, int]) -> tuple[int, int]:
        """The tiles of an image."""
        return -(-out[0] // self.y), -(-out[1] // self.x)


def fft_applies(shape: ConvShape) -> bool:
    """25 taps or more in two dimensions, no stride, groups of more than one channel."""
    two = len(shape.kernel) == 2 and shape.stride == (1, 1) and prod(shape.kernel) >= LEAST_TAPS
    return two and shape.channels * shape.filters > shape.groups**2


def filter_spans(shape: ConvShape) -> tuple[int, int]:
    """Pixels along each axis, beside the first, that a result depends on."""
    y, x = ((k - 1) * d for k, d in zip(shape.kernel, shape.dilation, strict=True))
    return y, x


def fft_tilings(name: str, spans: tuple[int, int], out: tuple[int, int]) -> list[FftTiling]:
    """The tilings of an algorithm: for FFT the smallest windows that give whole images, if there are any; for FFT_TILED the smaller ones
    as well. `spans`: see `filter_spans`."""
    axes = []
    for span, size in zip(spans, out, strict=True):
        possible = [n for n in ((1,) if span == 0 else ()) + SIZES if n > span]
        whole = next((n for n in possible if n >= span + size), None)
        some = [n for n in possible if whole is None or n <= whole] if name == "FFT_TILED" else [whole]
        axes.append([n for n in some if n is not None])
    return [fft_tiling(FftWindow(y, x), spans, out) for y in axes[0] for x in axes[1]]


def fft_tiling(window: FftWindow, spans: tuple[int, int], out: tuple[int, int]) -> FftTiling:
    """The largest tiles that a window gives."""
    return FftTiling(window, min(window.y - spans[0], out[0]), min(window.x - spans[1], out[1]))
