"""From data in any form to loaders of batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..data.dataset import Arrays, Dataset, Splits
from ..data.loader import Loader
from ..data.subset import Subset
from ..errors import UserError

CHECK_BATCH = 256  # validation keeps no activations for gradients


def loaders(data: Any, validation: Any, batch: int, seed: int) -> tuple[Any, Any]:
    """Loaders of training data and, if there is any, of validation data. Loaders are returned as they are."""
    if isinstance(data, Splits):
        validation = data.validation if validation is None else validation
        data = data.train
    data, validation = _dataset(data), _dataset(validation)
    if isinstance(data, Dataset):
        data = Loader(data, min(batch, len(data)), seed=seed, drop_last=True)
    if isinstance(validation, Dataset):
        validation = Loader(validation, CHECK_BATCH, shuffle=False)
    for part in (data, validation):
        if part is not None and not hasattr(part, "dataset"):
            raise UserError(
                "fit", f"data is a Loader, a Dataset, Splits or two arrays (x, y), got {type(part).__name__}."
            )
    return data, validation


def _dataset(data: Any) -> Any:
    """Make a dataset of two arrays."""
    return Arrays(*data) if isinstance(data, tuple) and len(data) == 2 else data


def arrays(loader: Any) -> Iterable[Any]:
    """The batches of a loader for a compiled step: NumPy arrays, or what a custom loader yields."""
    return loader.arrays() if isinstance(loader, Loader) else loader


def first_batches(loader: Any, count: int, *, shuffle: bool) -> Loader:
    """A loader of only the first few batches, for a dry run or to check that a network can overfit them."""
    if not isinstance(loader, Loader) or not isinstance(loader.dataset, Dataset):
        raise UserError("fit", "the first batches can be taken of a weft.data.Loader of a weft.data.Dataset only.")
    some = Subset(loader.dataset, loader.order(0)[: count * loader.batch])
    return Loader(some, min(loader.batch, len(some)), shuffle=shuffle, seed=loader.seed, drop_last=True)
