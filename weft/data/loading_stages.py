"""The stages of loading a batch: what a loader's thread does, taken apart so that each stage can be timed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from .dataset import Arrays
from .image_readers import Encoded, MappedImages
from .subset import Subset

READ, DECODE, COLLATE = "read", "decode", "collate"
LoadingStage = tuple[str, Callable[[Any], Any]]


def loading_stages(dataset: Any) -> tuple[LoadingStage, ...]:
    """The stages from indices to an array of inputs; each takes what the one before it gives.

    >>> from weft.data import open_dataset
    >>> [name for name, _ in loading_stages(open_dataset("digits").train)]
    ['read']
    """
    if isinstance(dataset, Subset):
        subset = dataset
        (name, read), *rest = loading_stages(subset.base)
        return ((name, lambda indices: read(subset.indices[indices])), *rest)
    if isinstance(dataset, Encoded):
        return ((READ, dataset.read), (DECODE, dataset.decode))
    if isinstance(dataset, Arrays):  # one copy from memory, or from a mapped file
        return ((READ, dataset.inputs),)
    return ((READ, dataset.inputs), (COLLATE, lambda inputs: np.array(inputs, order="C")))


def drop_cached(dataset: Any) -> bool:
    """Drop a dataset's file from the system's page cache, so that it is read from the disk again; False if it has no file.

    It is a request: pages that other processes have mapped stay.
    """
    base = dataset.base if isinstance(dataset, Subset) else dataset
    if not isinstance(base, (MappedImages, Encoded)) or not hasattr(os, "posix_fadvise"):
        return False
    os.posix_fadvise(base.file, 0, 0, os.POSIX_FADV_DONTNEED)
    return True
