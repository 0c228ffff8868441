"""What the checks need to know of every image, from one pass over the dataset: a digest of the pixels, a small gray picture,
a perceptual hash, brightness, contrast, sharpness and a descriptor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from ...records import dataclass
from ..dataset import Dataset

BLANK = 2.0  # spread of the gray values, of 255, below which an image shows nothing
THUMB = 16  # side of the small gray pictures that are compared
_HASH_SIDE, _HASH_BITS = 32, 8  # the perceptual hash: 8 x 8 low frequencies of 32 x 32 pixels
_CELLS, _BINS = 4, 8  # the descriptor: orientations of edges in 4 x 4 cells
_STEP_BYTES = 1 << 25


@dataclass(frozen=True)
class ImageFacts:
    """Facts of all images, the splits one after the other."""

    places: list[tuple[str, int]]  # split and row of each image
    labels: np.ndarray  # class of each, or -1 where there are no classes
    digests: list[bytes]
    thumbs: np.ndarray  # (images, 256): gray, mean 0 and length 1, so that products are correlations
    hashes: np.ndarray  # uint64
    mirrored: np.ndarray  # uint64: the hash of the mirrored image
    spread: np.ndarray  # standard deviation of the gray values, 0 to 127.5
    sharpness: np.ndarray  # share of the detail that half the resolution cannot show
    features: np.ndarray  # (images, features) of the descriptor, or of a trained network

    def __len__(self) -> int:
        return len(self.places)


Features = Callable[[np.ndarray], np.ndarray]  # from stored images to one row of features each


def image_facts(
    splits: dict[str, Dataset], features: Features | None = None, progress: Callable[[int, int], None] | None = None
) -> ImageFacts:
    """Read every image once."""
    total = sum(map(len, splits.values()))
    parts: list[tuple[np.ndarray, ...]] = []
    digests: list[bytes] = []
    for part in splits.values():
        step = max(1, min(256, _STEP_BYTES // max(1, 4 * int(np.prod(part.shape)))))
        for start in range(0, len(part), step):
            images = part.inputs(np.arange(start, min(start + step, len(part))))
            digests += [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in images]
            parts.append((*_measured(images), descriptors(images) if features is None else features(images)))
            if progress is not None:
                progress(len(digests), total)
    places = [(split, row) for split, part in splits.items() for row in range(len(part))]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return ImageFacts(places, _labels(splits), digests, *columns)


def _labels(splits: dict[str, Dataset]) -> np.ndarray:
    return np.concatenate(
        [p.labels if p.classes and p.labels.ndim == 1 else np.full(len(p), -1) for p in splits.values()]
    ).astype(np.int64)


def _measured(images: np.ndarray) -> tuple[np.ndarray, ...]:
    """Small pictures, hashes, spread and sharpness."""
    gray = _gray(images)
    thumbs = downscale(gray, (THUMB, THUMB)).reshape(len(gray), -1)
    spread = gray.std((1, 2))
    return normalized(thumbs), _hash(gray), _hash(gray[:, :, ::-1]), spread, _sharpness(gray, spread)


def _gray(images: np.ndarray) -> np.ndarray:
    found: np.ndarray = images.astype(np.float32).mean(1)
    return found


def normalized(rows: np.ndarray) -> np.ndarray:
    """Rows with mean 0 and length 1; rows without any contrast are all 0."""
    centred = rows - rows.mean(1, keepdims=True)
    length = np.sqrt((centred * centred).sum(1, keepdims=True))
    found: np.ndarray = np.where(length > 1e-3, centred / np.maximum(length, 1e-3), 0).astype(np.float32)
    return found


def downscale(images: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The mean of the area of each new pixel; also enlarges, by repeating."""
    rows, columns = _areas(images.shape[-2], size[0]), _areas(images.shape[-1], size[1])
    found: np.ndarray = rows @ images @ columns.T
    return found


@lru_cache
def _areas(old: int, new: int) -> np.ndarray:
    """(new, old): how much each old pixel counts in each new one."""
    edges = np.linspace(0, old, new + 1)
    start, end = edges[:-1, None], edges[1:, None]
    overlap = np.clip(np.minimum(end, np.arange(1, old + 1)) - np.maximum(start, np.arange(old)), 0, None)
    return np.asarray(overlap / overlap.sum(1, keepdims=True), np.float32)


def _hash(gray: np.ndarray) -> np.ndarray:
    """64 bits: which of the 64 lowest frequencies are above their median. Brightness and contrast do not matter."""
    basis = _cosines(_HASH_SIDE, _HASH_BITS)
    low = basis @ downscale(gray, (_HASH_SIDE, _HASH_SIDE)) @ basis.T
    flat = low.reshape(len(gray), -1)
    bits = flat > np.median(flat, axis=1, keepdims=True)
    return np.packbits(bits, axis=1).view(np.uint64).ravel()


@lru_cache
def _cosines(side: int, count: int) -> np.ndarray:
    """The first rows of the discrete cosine transform."""
    found = np.cos(np.pi / side * np.outer(np.arange(count), np.arange(side) + 0.5))
    return found.astype(np.float32)


def _sharpness(gray: np.ndarray, spread: np.ndarray) -> np.ndarray:
    height, width = gray.shape[1:]
    half = downscale(downscale(gray, (max(1, height // 2), max(1, width // 2))), (height, width))
    found: np.ndarray = (gray - half).std((1, 2)) / np.maximum(spread, 1e-3)
    return found


def descriptors(images: np.ndarray) -> np.ndarray:
    """A small descriptor: orientations of edges in 4 x 4 cells, a small gray picture, and small colours."""
    gray = _gray(images) / 255
    side = min(32, *gray.shape[1:])
    small = downscale(gray, (side, side))
    dy, dx = np.gradient(small, axis=(1, 2)) if side > 1 else (np.zeros_like(small),) * 2
    strength, angle = np.hypot(dx, dy), np.arctan2(dy, dx) % np.pi
    bins = np.minimum((angle / np.pi * _BINS).astype(int), _BINS - 1)
    edges = np.stack([downscale(np.where(bins == b, strength, 0), (_CELLS, _CELLS)) for b in range(_BINS)], 1)
    edges = np.sqrt(edges.reshape(len(images), -1))
    edges /= np.maximum(np.linalg.norm(edges, axis=1, keepdims=True), 1e-6)
    picture = downscale(gray, (8, 8)).reshape(len(images), -1) / 4
    colours = downscale(images.astype(np.float32) / 255, (4, 4)).reshape(len(images), -1) / 2
    parts: Sequence[np.ndarray] = (edges, picture) if images.shape[1] == 1 else (edges, picture, colours)
    return np.concatenate(parts, axis=1).astype(np.float32)
