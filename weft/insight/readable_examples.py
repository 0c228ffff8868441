"""A dataset for measurements: examples that cannot be read are noted instead of ending the measurement."""

from __future__ import annotations

import struct
import zipfile
import zlib

import numpy as np

from ..data.images import Unreadable
from ..data.loader import IndexableDataset
from ..errors import RunError, WeftError

# What readers and decoders raise on a missing or damaged file (Pillow a SyntaxError, too). A mistake in the code of a dataset,
# such as a TypeError, is not one of them: it ends the measurement.
READ_ERRORS = (
    WeftError,
    Unreadable,
    OSError,
    EOFError,
    ValueError,
    LookupError,
    RuntimeError,
    SyntaxError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)


class ReadableExamples:
    """A dataset in which a readable example stands in for each one that cannot be read."""

    def __init__(self, dataset: IndexableDataset) -> None:
        self.base = dataset
        self.unreadable: dict[int, str] = {}
        self.spare: np.ndarray | None = None  # an example that was read

    def __len__(self) -> int:
        return len(self.base)

    @property
    def labels(self) -> np.ndarray:
        return self.base.labels

    def inputs(self, indices: np.ndarray, /) -> np.ndarray:
        try:
            return self.base.inputs(indices)
        except READ_ERRORS:  # the examples are read one by one
            found = self.read_each(indices)
        if self.spare is None:  # not one of this batch: any other will do
            next((index for index in range(len(self)) if self._one(index) is not None), None)
        if self.spare is None:
            index, reason = next(iter(self.unreadable.items()))
            raise RunError(
                "data_bottleneck",
                f"none of the {len(self.unreadable)} examples that were tried can be read; example {index}: {reason}.",
            )
        return np.stack([self.spare if one is None else one for one in found])

    def read_each(self, indices: np.ndarray) -> list[np.ndarray | None]:
        """The examples one by one; None for those that cannot be read."""
        return [self._one(int(index)) for index in indices]

    def _one(self, index: int) -> np.ndarray | None:
        try:
            self.spare = np.asarray(self.base.inputs(np.array([index])))[0]
        except READ_ERRORS as error:
            reason = error.message if isinstance(error, WeftError) else str(error)
            self.unreadable[index] = f"{type(error).__name__}: {reason}"
            return None
        return self.spare
