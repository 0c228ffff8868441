"""Sampling images at computed positions: GridSample, RoiAlign, DeformConv, ImageDecoder."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence

import numpy as np
import PIL.Image

from ...errors import UserError
from ...ops.contract import einsum
from ...ops.creation import iota
from ...ops.elementwise import abs, astype, floor, remainder, round, where
from ...ops.indexing import gather
from ...ops.math import clip
from ...ops.movement import broadcast_to, moveaxis, reshape, stack
from ...tensor import Tensor
from ..registry import OnnxCall, op
from ..values import tensor

Ints = tuple[int, ...]


def _pixels(x: Tensor, places: Sequence[Tensor]) -> Tensor:
    """x[n, :, *place] for positions (n, ...) along each spatial axis: (n, ..., channels)."""
    shape = places[0].shape
    batch = broadcast_to(reshape(iota(shape[0]), (-1, *[1] * (len(shape) - 1))), shape)
    return gather(x, [batch, *places], (0, *range(2, x.ndim)))


def _reflected(x: Tensor, low: float, high: float) -> Tensor:
    """Positions reflected at the borders until they are inside."""
    span = high - low
    if span <= 0:
        return x * 0 + low
    distance = abs(x - low)
    over = remainder(distance, 2 * span)
    return low + where(over > span, 2 * span - over, over)


def _tap_weights(mode: str, fraction: Tensor) -> list[tuple[int, Tensor]]:
    """The elements around a position (offset from its floor) and their weights."""
    if mode == "linear":
        return [(0, 1 - fraction), (1, fraction)]
    a, t = -0.75, fraction
    return [
        (-1, ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a),
        (0, ((a + 2) * t - (a + 3)) * t * t + 1),
        (1, ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1),
        (2, ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a),
    ]


@op("GridSample")
def grid_sample(
    x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Tensor:
    """Elements at positions in [-1, 1], which the last axis of the grid holds in reverse order of the axes."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if mode not in ("nearest", "linear", "cubic") or padding_mode not in ("zeros", "border", "reflection"):
        raise UserError("onnx", f"a known mode and padding_mode are required, got {mode!r} and {padding_mode!r}.")
    taps: list[list[tuple[Tensor, Tensor]]] = []
    for axis, n in enumerate(x.shape[2:]):
        g = astype(grid[..., x.ndim - 3 - axis], "float32")
        place = (g + 1) / 2 * (n - 1) if align_corners else ((g + 1) * n - 1) / 2
        taps.append(_axis_taps(place, n, mode, padding_mode, bool(align_corners)))
    total: Tensor | None = None
    for chosen in itertools.product(*taps):
        weight = chosen[0][1]
        for _, w in chosen[1:]:
            weight = weight * w
        part = _pixels(x, [index for index, _ in chosen]) * astype(reshape(weight, (*weight.shape, 1)), x.dtype)
        total = part if total is None else total + part
    assert total is not None
    return moveaxis(total, -1, 1)


def _axis_taps(place: Tensor, n: int, mode: str, padding: str, aligned: bool) -> list[tuple[Tensor, Tensor]]:
    low, high = (0.0, n - 1.0) if aligned else (-0.5, n - 0.5)
    if mode == "nearest":
        place = round(place)
    if (
        padding == "border" and mode != "cubic"
    ):  # the cubic weights are those of the position itself; only its taps are clipped
        place = clip(place, 0.0, n - 1.0)
    elif padding == "reflection":
        place = _reflected(place, low, high)
    if mode == "nearest":
        return [_inside(place, place * 0 + 1, n, padding, low, high)]
    below = floor(place)
    return [_inside(below + offset, w, n, padding, low, high) for offset, w in _tap_weights(mode, place - below)]


def _inside(index: Tensor, weight: Tensor, n: int, padding: str, low: float, high: float) -> tuple[Tensor, Tensor]:
    """A valid index, and its weight: 0 outside of the image, if zeros surround it."""
    if padding == "zeros":
        weight = where((index >= 0) & (index <= n - 1), weight, 0)
    elif padding == "reflection":
        index = _reflected(index, low, high)
    return astype(clip(index, 0.0, n - 1.0), "int64"), weight


# --- regions of interest ---------------------------------------------------------------------------------------------------


@op("RoiAlign", host=("rois",))
def roi_align(
    x: Tensor,
    rois: np.ndarray,
    batch: Tensor,
    *,
    coordinate_transformation_mode: str | None = None,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    call: OnnxCall,
) -> Tensor:
    """The mean or the maximum of samples in each cell of each region. How many samples, depends on the size of the region."""
    version = call.version
    kind = coordinate_transformation_mode or ("half_pixel" if version >= 16 else "output_half_pixel")
    results = [
        _region(
            x, roi, batch[i], kind == "half_pixel", mode, (output_height, output_width), sampling_ratio, spatial_scale
        )
        for i, roi in enumerate(rois.astype(np.float64))
    ]
    return stack(results)


def _region(
    x: Tensor, roi: np.ndarray, batch: Tensor, half: bool, mode: str, cells: Ints, ratio: int, scale: float
) -> Tensor:
    corners = roi * scale - (0.5 if half else 0.0)
    rows = _samples(corners[1], corners[3], cells[0], x.shape[2], ratio, half)
    columns = _samples(corners[0], corners[2], cells[1], x.shape[3], ratio, half)
    image = gather(x, [batch], (0,))
    parts = []
    for (i, wi), (j, wj) in itertools.product(rows, columns):
        weight = tensor((wi.reshape(-1, 1) * wj.reshape(1, -1)).astype(x.dtype.numpy))
        values = image[:, tensor(i.reshape(-1))][:, :, tensor(j.reshape(-1))]
        parts.append(values * weight)
    combined = stack(parts)
    shape = (len(parts), x.shape[1], cells[0], rows[0][0].shape[1], cells[1], columns[0][0].shape[1])
    combined = reshape(combined, shape)
    if mode == "max":
        return combined.max(axis=(0, 3, 5))
    return combined.sum(axis=0).mean(axis=(2, 4))


def _samples(
    start: float, end: float, cells: int, n: int, ratio: int, half: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For the two neighbours of each sample: its index and its weight, (cells, samples) each."""
    length = end - start if half else max(end - start, 1.0)
    each = length / cells
    count = ratio if ratio > 0 else max(int(np.ceil(each)), 1)
    place = start + np.arange(cells)[:, None] * each + (np.arange(count) + 0.5) * each / count
    valid = (place >= -1.0) & (place <= n)
    place = np.clip(place, 0, n - 1)
    low = np.minimum(place.astype(np.int64), n - 1)
    high = np.minimum(low + 1, n - 1)
    fraction = place - low
    return [(low, (1 - fraction) * valid), (high, fraction * valid)]


# --- deformable convolution -------------------------------------------------------------------------------------------------


@op("DeformConv")
def deformable_convolution(
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    offset_group: int = 1,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """A convolution whose taps lie at learned distances from their usual places."""
    if x.ndim != 4:
        raise UserError("onnx", f"DeformConv of images is required, got shape {x.shape}.")
    kernel, stride, dilation = w.shape[2:], strides or (1, 1), dilations or (1, 1)
    n, channels = x.shape[:2]
    out = offset.shape[2:]
    moves = reshape(offset, (n, offset_group, *kernel, 2, *out))
    before = pads[:2] if pads else (0, 0)
    grid = []
    for axis in (0, 1):
        steps = np.arange(out[axis]) * stride[axis] - before[axis]
        taps = np.arange(kernel[axis]) * dilation[axis]
        shape = [1, 1, 1, 1, 1, 1]
        shape[2 + axis], shape[4 + axis] = kernel[axis], out[axis]
        base = (taps[:, None] + steps[None, :]).reshape(shape)
        grid.append(moves[:, :, :, :, axis] + tensor(base.astype(np.float32)).astype(x.dtype))
    grouped = reshape(x, (n * offset_group, channels // offset_group, *x.shape[2:]))
    places = [reshape(g, (n * offset_group, *kernel, *out)) for g in grid]
    samples = _bilinear(grouped, places)  # (n * offset groups, kernel, out, channels)
    if mask is not None:
        samples = samples * reshape(mask, (n * offset_group, *kernel, *out, 1))
    columns = reshape(moveaxis(samples, -1, 1), (n, group, channels // group, *kernel, *out))
    filters = reshape(w, (group, w.shape[0] // group, *w.shape[1:]))
    y = reshape(einsum("ngcabhw,gocab->ngohw", columns, filters), (n, w.shape[0], *out))
    return y if bias is None else y + reshape(bias, (-1, 1, 1))


def _bilinear(x: Tensor, places: Sequence[Tensor]) -> Tensor:
    taps = [_axis_taps(p, n, "linear", "zeros", True) for p, n in zip(places, x.shape[2:], strict=True)]
    parts = [
        _pixels(x, [i for i, _ in chosen]) * reshape(chosen[0][1] * chosen[1][1], (*places[0].shape, 1))
        for chosen in itertools.product(*taps)
    ]
    return sum(parts[1:], parts[0])


# --- images ----------------------------------------------------------------------------------------------------------------


@op("ImageDecoder", host=("content",))
def image_decoder(content: np.ndarray, *, pixel_format: str = "RGB") -> np.ndarray:
    if pixel_format not in ("RGB", "BGR", "Grayscale"):
        raise UserError("onnx", f"the pixel_format RGB, BGR or Grayscale is required, got {pixel_format!r}.")
    try:
        with PIL.Image.open(io.BytesIO(content.tobytes())) as image:
            pixels = np.array(image.convert("L" if pixel_format == "Grayscale" else "RGB"))
    except (OSError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise UserError("onnx", f"an image is required: {error}.") from None
    if pixel_format == "Grayscale":
        return pixels[..., None]
    return pixels[..., ::-1].copy() if pixel_format == "BGR" else pixels
