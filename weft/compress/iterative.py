"""Iterative pruning: each round prunes a part of the weights and retrains the rest.

    retrain = partial(train.fit, model, data, epochs=2, on_epoch=print)
    prune_and_retrain(model, 0.05, retrain, rounds=4, folder="runs/pruned")

With a folder, every round is a run in it. The same call with resume=True continues where it was interrupted, and ends with bit-identical results.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..nn.module import Module
from .layers import by_weight
from .prune import Scope, Score, densities, gradual, prune

Retrain = Callable[..., Any]  # takes folder= and resume=, as weft.train.fit does


def prune_and_retrain(
    model: Module,
    density: float | dict[str, float],
    retrain: Retrain,
    *,
    rounds: int = 3,
    scope: Scope = "layer",
    score: Score = "magnitude",
    folder: str | Path | None = None,
    resume: bool = False,
    on_round: Callable[[int, dict[str, float], Any], None] | None = None,
) -> list[Any]:
    """Prune to this density in `rounds` rounds, with training after each; returns the results of training.

    `on_round` is called after each round: with its number from 1, the density of every weight, and the result.
    """
    if resume and folder is None:
        raise UserError("prune_and_retrain", "resume=True needs the folder of the rounds.")
    results = []
    for number, wanted in enumerate(_rounds(model, density, rounds), 1):
        prune(model, wanted, scope=scope, score=score)
        if folder is None:
            result = retrain()
        else:
            place = Path(folder) / f"round{number}"  # a finished round is only loaded
            result = retrain(folder=place, resume=resume and place.exists())
        results.append(result)
        if on_round is not None:
            on_round(number, densities(model), result)
    return results


def _rounds(model: Module, density: float | dict[str, float], rounds: int) -> list[Any]:
    """The densities of each round."""
    if not isinstance(density, dict):
        return gradual(1.0, density, rounds)
    steps = {
        path: gradual(1.0, share, rounds) for path, share in by_weight("prune", "a density", density, model).items()
    }
    return [{path: shares[i] for path, shares in steps.items()} for i in range(rounds)]
