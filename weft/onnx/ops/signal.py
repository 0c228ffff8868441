"""Fourier transforms as products with a matrix, and the mel scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import UserError
from ...ops.contract import matmul
from ...ops.indexing import take
from ...ops.movement import moveaxis, pad, stack
from ...tensor import Tensor
from ..registry import op
from ..values import tensor, weft_dtype


def _transform(x: Tensor, axis: int, length: int, inverse: bool, onesided: bool) -> Tensor:
    """The discrete Fourier transform along an axis; the last axis holds real (and imaginary) parts."""
    parts = moveaxis(x, axis, -2)
    missing = length - parts.shape[-2]
    if missing > 0:
        parts = pad(parts, [*[(0, 0)] * (x.ndim - 2), (0, missing), (0, 0)])
    parts = parts[..., :length, :]
    count = length // 2 + 1 if onesided else length
    angle = 2 * np.pi * (np.outer(np.arange(length), np.arange(count)) % length) / length
    wave = np.exp((1j if inverse else -1j) * angle) / (length if inverse else 1)
    c, s = (tensor(v.astype(x.dtype.numpy)) for v in (wave.real, wave.imag))
    real = parts[..., 0]
    if parts.shape[-1] == 1:
        return moveaxis(stack([matmul(real, c), matmul(real, s)], axis=-1), -2, axis)
    imaginary = parts[..., 1]
    both = [matmul(real, c) - matmul(imaginary, s), matmul(real, s) + matmul(imaginary, c)]
    return moveaxis(stack(both, axis=-1), -2, axis)


def _inverse_onesided(x: Tensor, axis: int, length: int) -> Tensor:
    """The real signal of half a spectrum: the other half is its mirrored conjugate."""
    half = moveaxis(x, axis, -2)
    index = np.arange(length)
    mirrored = index >= half.shape[-2]
    rows = take(half, tensor(np.where(mirrored, length - index, index)), axis=-2)
    sign = np.where(mirrored, -1.0, 1.0).astype(x.dtype.numpy)
    full = stack([rows[..., 0], rows[..., 1] * tensor(sign)], axis=-1)
    return moveaxis(_transform(full, full.ndim - 2, length, True, False)[..., :1], -2, axis)


@op("DFT", since=17, host=("dft_length",))
def dft_by_attribute(
    x: Tensor, dft_length: np.ndarray | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    return _dft(x, dft_length, axis, bool(inverse), bool(onesided))


@op("DFT", since=20, host=("dft_length", "axis"))
def dft(
    x: Tensor,
    dft_length: np.ndarray | None = None,
    axis: np.ndarray | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    return _dft(x, dft_length, -2 if axis is None else int(axis.reshape(())), bool(inverse), bool(onesided))


def _dft(x: Tensor, given: np.ndarray | None, axis: int, inverse: bool, onesided: bool) -> Tensor:
    along = axis % x.ndim
    if inverse and onesided:
        length = 2 * (x.shape[along] - 1) if given is None else int(given.reshape(()))
        return _inverse_onesided(x, along, length)
    length = x.shape[along] if given is None else int(given.reshape(()))
    return _transform(x, along, length, inverse, onesided)


@op("STFT", host=("frame_step", "frame_length"))
def stft(
    signal: Tensor,
    frame_step: np.ndarray,
    window: Tensor | None = None,
    frame_length: np.ndarray | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    """The transform of each frame of a signal (batch, length, 1 or 2)."""
    if frame_length is None and window is None:
        raise UserError("onnx", "STFT needs a window or a frame_length, got neither.")
    step = int(frame_step.reshape(()))
    length = int(frame_length.reshape(())) if frame_length is not None else window.shape[0]  # type: ignore[union-attr]
    starts = np.arange((signal.shape[1] - length) // step + 1) * step
    frames = take(signal, tensor(starts[:, None] + np.arange(length)), axis=1)  # (batch, frames, length, parts)
    if window is not None:
        frames = frames * window.reshape((-1, 1))
    return _transform(frames, 2, length, False, bool(onesided))


@op("MelWeightMatrix", host=("bins", "length", "rate", "low", "high"))
def mel_weight_matrix(
    bins: np.ndarray,
    length: np.ndarray,
    rate: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    *,
    output_datatype: int = 1,
) -> np.ndarray:
    """Triangles, equally wide on the mel scale, over the frequencies of a spectrum."""
    count, size = int(bins.reshape(())), int(length.reshape(())) // 2 + 1
    edges = np.array([float(low.reshape(())), float(high.reshape(()))])
    mel = 2595 * np.log10(1 + edges / 700)
    points = np.arange(count + 2) * ((mel[1] - mel[0]) / (count + 2)) + mel[0]
    frequencies = 700 * (10 ** (points / 2595) - 1)
    places = ((int(length.reshape(())) + 1) * frequencies / int(rate.reshape(()))).astype(np.int64)
    result = np.zeros((size, count))
    for i in range(count):
        a, b, c = places[i : i + 3]
        if b == a:
            result[b, i] = 1
        for j in range(a, b + 1 if b > a else a):
            result[j, i] = (j - a) / (b - a)
        for j in range(b, c):
            result[j, i] = (c - j) / (c - b)
    return result.astype(weft_dtype(output_datatype).numpy)


@op("Det", host=("x",))
def det(x: np.ndarray) -> np.ndarray:
    """On the host: outside of `weft.jit` only."""
    wide: Any = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    return np.asarray(np.linalg.det(wide), x.dtype)
