"""The weights that a run keeps: weights/best, weights/last, and those of epochs, such as weights/epoch-0007."""

from __future__ import annotations

from pathlib import Path

from ..errors import RunError, UserError

SUFFIX = ".safetensors"
EPOCH = "epoch-"
EVALUATIONS = "evaluations"  # the folder in a run folder: evaluations/SPLIT-WEIGHTS


def map_file(name: str) -> Path:
    """The file of the embedding map by these weights, in the run folder."""
    return Path("interpret") / ("embedding.npz" if name == "best" else f"embedding-{name}.npz")


def weight_names(folder: Path) -> list[str]:
    """The names of a run's weights: best, last, then those of the epochs that were kept, in order."""
    found = {path.name.removesuffix(SUFFIX) for path in (folder / "weights").glob(f"*{SUFFIX}")}
    epochs = sorted((number, name) for name in found if (number := epoch_of(name)) is not None)
    return [name for name in ("best", "last") if name in found] + [name for _, name in epochs]


def epoch_of(name: str) -> int | None:
    """The epoch of weights by their name; None for best and last.

    >>> epoch_of("epoch-0007"), epoch_of("best")
    (7, None)
    """
    number = name.removeprefix(EPOCH)
    return int(number) if name.startswith(EPOCH) and number.isdecimal() else None


def made_by_weights(folder: Path, name: str) -> list[Path]:
    """What was made by the weights of an epoch and is of no use without them: the map of its embedding, and its evaluations."""
    return [folder / map_file(name), *sorted((folder / EVALUATIONS).glob(f"*-{name}"))]


def weights_path(where: str, folder: Path, name: str) -> Path:
    """The file of weights with this name: best, last, or those of an epoch such as epoch-0007."""
    names = weight_names(folder)
    if not names:
        raise RunError(
            where, f"{folder} has no weights yet: no epoch was finished. Continue with: weft resume {folder}"
        )
    if name not in names:
        raise UserError(where, f"a checkpoint of {folder.name} is required ({', '.join(names)}), got {name!r}.")
    return folder / "weights" / f"{name}{SUFFIX}"
