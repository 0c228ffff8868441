"""The weights of a run that a page lets one choose: best, last, and the epochs that were kept, which a slider goes through."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...jobs.checkpoints import checkpoints
from ...jobs.run_weights import epoch_of, weight_names
from ...records import dataclass


def checkpoint_epochs(folder: Path) -> dict[str, int | None]:
    """The names of a run's weights with their epochs; None where the epoch is not known."""
    known = {one.name.removeprefix("weights/"): one.epoch for one in checkpoints(folder) if not one.is_exact}
    return {name: known.get(name) for name in weight_names(folder)}


def checkpoint_titles(epochs: Mapping[str, int | None]) -> dict[str, str]:
    """The titles of weights.

    >>> checkpoint_titles({"best": 3, "last": None, "epoch-0007": 7})
    {'best': 'Best, epoch 3', 'last': 'Last', 'epoch-0007': 'Epoch 7'}
    """
    return {name: _title(name, epoch) for name, epoch in epochs.items()}


def _title(name: str, epoch: int | None) -> str:
    if epoch_of(name) is not None:
        return f"Epoch {epoch}"
    return name.capitalize() if epoch is None else f"{name.capitalize()}, epoch {epoch}"


@dataclass(frozen=True)
class EpochSlider:
    """The epochs whose weights were kept, in order, and which of them is the nearest to the chosen weights."""

    names: tuple[str, ...]
    epochs: tuple[int, ...]
    place: int
    chosen: int  # the epoch of the chosen weights


def epoch_slider(epochs: Mapping[str, int | None], checkpoint: str) -> EpochSlider | None:
    """The slider for a run that keeps the weights of several epochs; None for others.

    >>> epoch_slider({"best": 3, "epoch-0001": 1, "epoch-0004": 4}, "best")
    EpochSlider(names=('epoch-0001', 'epoch-0004'), epochs=(1, 4), place=1, chosen=3)
    """
    kept = {name: epoch for name in epochs if (epoch := epoch_of(name)) is not None}
    if len(kept) < 2:
        return None
    numbers = tuple(kept.values())
    chosen = epochs.get(checkpoint) or numbers[-1]
    place = min(range(len(numbers)), key=lambda i: abs(numbers[i] - chosen))
    return EpochSlider(tuple(kept), numbers, place, chosen)
