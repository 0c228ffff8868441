"""Small pictures of examples, for run folders."""

from __future__ import annotations

import numpy as np

SIDE = 96  # pixels of the longer side, at most


def thumbnails(images: np.ndarray, side: int = SIDE) -> np.ndarray:
    """Images (number, channels, height, width) as uint8 with channels last, averaged over blocks until they fit.

    >>> thumbnails(np.zeros((2, 1, 200, 100), np.uint8)).shape
    (2, 66, 33, 1)
    """
    if images.dtype != np.uint8:
        images = np.clip(255.0 * images, 0, 255).astype(np.uint8)
    block = max(1, -(-max(images.shape[2:]) // side))
    count, channels, height, width = images.shape
    rows, columns = max(1, height // block), max(1, width // block)
    cut = images[:, :, : rows * block, : columns * block]
    if block > 1:
        cut = cut.reshape(count, channels, rows, block, columns, block).mean(axis=(3, 5)).astype(np.uint8)
    return np.ascontiguousarray(cut.transpose(0, 2, 3, 1))
