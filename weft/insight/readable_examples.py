"""A dataset for measurements: unreadable examples are recorded instead of ending the measurement."""

from __future__ import annotations

import struct
import zipfile
import zlib

import numpy as np

from ..data.images import Unreadable
from ..data.loader import IndexableDataset
from ..errors import RunError, WeftError

# The errors of readers and decoders on a missing or damaged file (Pillow raises a SyntaxError, too). A bug in the code of a dataset,
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
    """A dataset in which a readable example replaces each unreadable one."""

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
        if self.spare is None:  # none of this batch: use any other
            next((index for index in range(len(self)) if self._one(index) is not None), None)
        if self.spare is None:
            index, reason = next(iter(self.unreadable.items()))
            raise RunError(
                "data_bottleneck",
                f"none of the {len(self.unreadable)} examples that were tried can be read; example {index}: {reason}.",
            )
        return np.stack([self.spare if one is None else one for one in found])

    def read_each(self, indices: np.ndarray) -> list[np.ndarray | None]:
        """The examples one by one; None for unreadable ones."""
        return [self._one(int(index)) for index in indices]

    def _one(self, index: int) -> np.ndarray | None:
        try:
            self.spare = np.asarray(self.base.inputs(np.array([index])))[0]
        except READ_ERRORS as error:
            reason = error.message if isinstance(error, WeftError) else str(error)
            self.unreadable[index] = f"{type(error).__name__}: {reason}"
            return None
        return self.spare
