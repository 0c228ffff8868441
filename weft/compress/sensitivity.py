"""Sensitivity to pruning: the loss of the network with one layer pruned at a time, and densities chosen accordingly.

table = sensitivity(model, batches)         # batches (x, y) of held-out data
print(table)
prune(model, table.choose(0.1))             # keep a tenth of all weights, fewer in less sensitive layers
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import UserError
from ..metrics import Accuracy, Mean
from ..nn.losses import loss as find_loss
from ..nn.module import Module
from ..records import dataclass
from ..tensor import Tensor, as_tensor
from ..tracing.jit import jit
from .layers import Weight, weights_of
from .masks import Mask
from .prune import largest

Scores = dict[str, float]  # loss, and accuracy if there are classes


@dataclass(frozen=True)
class Sensitivity:
    """The loss (and accuracy) of a network with one weight pruned, by weight and density; and without pruning."""

    whole: Scores
    rows: Mapping[str, Mapping[float, Scores]]
    counts: Mapping[str, int]  # number of values of each weight

    def choose(self, density: float) -> dict[str, float]:
        """Densities of all weights that keep this fraction of all values, at an equal increase of the loss in every layer.

        Between two measured densities the loss is interpolated. The lowest density of a layer is the lowest measured one.
        """
        total = sum(self.counts.values())
        least = sum(self.counts[path] * min(row) for path, row in self.rows.items()) / total
        if not least <= density <= 1.0:
            raise UserError(
                "sensitivity",
                f"a density from {least:.4g} (the least that was measured) to 1 is required, got {density}.",
            )
        low, high = 0.0, max(self._rise(path)[1].max() for path in self.rows) + 1e-9
        for _ in range(60):  # bisection of the increase
            middle = (low + high) / 2
            kept = sum(self.counts[path] * self._least_density(path, middle) for path in self.rows) / total
            low, high = (middle, high) if kept > density else (low, middle)
        return {path: self._least_density(path, high) for path in self.rows}

    def _rise(self, path: str) -> tuple[np.ndarray, np.ndarray]:
        """Ascending densities, and the increase of the loss at each: monotonic in the density."""
        points = {**{d: scores["loss"] for d, scores in self.rows[path].items()}, 1.0: self.whole["loss"]}
        order = np.array(sorted(points))
        rise = np.maximum([points[d] - self.whole["loss"] for d in order], 0.0)
        return order, np.maximum.accumulate(rise[::-1])[::-1]

    def _least_density(self, path: str, allowed: float) -> float:
        densities, rise = self._rise(path)
        first = int(np.argmax(rise <= allowed))  # at 1 the increase is 0
        if first == 0:
            return float(densities[0])
        before, behind = rise[first - 1], rise[first]
        share = (allowed - behind) / (before - behind)
        return float(densities[first] + share * (densities[first - 1] - densities[first]))

    def __str__(self) -> str:
        measure = "accuracy" if "accuracy" in self.whole else "loss"
        shown = sorted({d for row in self.rows.values() for d in row}, reverse=True)
        width = max(len(path) for path in self.rows)
        head = f"{measure:<{width}}" + "".join(f"{d:>9.3g}" for d in (1.0, *shown))
        lines = [
            f"{path:<{width}}{self.whole[measure]:9.4f}" + "".join(f"{row[d][measure]:9.4f}" for d in shown)
            for path, row in self.rows.items()
        ]
        return "\n".join([head, *lines])


def sensitivity(
    model: Module,
    batches: Iterable[tuple[Any, Any]],
    densities: Sequence[float] = (0.5, 0.25, 0.1, 0.05, 0.02),
    *,
    loss: Any = "cross_entropy",
    prepare: Callable[[Tensor], Tensor] | None = None,
) -> Sensitivity:
    """Measure a network with one weight pruned at a time, at each of these densities. The network is compiled once and not changed.

    Each measurement iterates over `batches` once: a loader that does not shuffle, or a list. `prepare` is that of training.
    """
    if not densities or not all(0.0 < d <= 1.0 for d in densities):
        raise UserError("sensitivity", f"densities above 0 and up to 1 are required, got {list(densities)}.")
    was = {part: part.training for part in model.modules()}
    model.eval()
    try:
        with _masked(model) as masks:
            measure = _measurement(model, batches, loss, prepare)
            whole = measure()
            rows = {path: _row(mask, densities, measure) for path, mask in masks.items()}
    finally:
        for part, mode in was.items():
            part.training = mode
    return Sensitivity(whole, rows, {path: mask.original.size for path, mask in masks.items()})


def _row(mask: Mask, densities: Sequence[float], measure: Callable[[], Scores]) -> dict[float, Scores]:
    before = mask.mask.numpy()
    size = np.where(before, np.abs(mask.original.numpy()), -1.0)
    found = {}
    for density in densities:
        mask.mask.assign(before & largest(size, density))
        found[float(density)] = measure()
    mask.mask.assign(before)
    return found


@contextmanager
def _masked(model: Module) -> Iterator[dict[str, Mask]]:
    """While active, all weights have masks; weights without masks before are restored afterwards."""
    weights = weights_of(model)
    if not weights:
        raise UserError("sensitivity", f"a network with weights is required, got {type(model).__name__}.")
    masks: dict[str, Mask] = {}
    added: list[tuple[Weight, Tensor]] = []
    try:
        for path, one in weights.items():
            made = one.parametrization
            if made is None:
                original = getattr(one.layer, one.name)
                made = Mask(original, np.ones(original.shape, np.bool_))
                one.replace(made)
                added.append((one, original))
            if not isinstance(made, Mask):
                raise UserError(
                    "sensitivity", f"a weight or a pruned weight is required, got {path}, a {type(made).__name__}."
                )
            masks[path] = made
        yield masks
    finally:
        for one, original in added:
            one.restore(original)


def _measurement(
    model: Module, batches: Iterable[tuple[Any, Any]], loss: Any, prepare: Callable[[Tensor], Tensor] | None
) -> Callable[[], Scores]:
    """A function that measures the network in its current state: one compiled step for all measurements."""
    function = find_loss(loss)
    mean, accuracy = Mean(), Accuracy()
    classes = False

    @jit
    def step(x: Tensor, y: Tensor) -> None:
        prediction = model(x if prepare is None else prepare(x))
        mean.update(function(prediction, y), weight=float(x.shape[0]))
        if not y.dtype.is_float:
            accuracy.update(prediction, y)

    def measure() -> Scores:
        nonlocal classes
        mean.reset()
        accuracy.reset()
        count = 0
        for x, y in batches:
            y = as_tensor(y)
            classes = not y.dtype.is_float
            step(as_tensor(x), y)
            count += 1
        if not count:
            raise UserError(
                "sensitivity", "batches that can be gone through again are required, got none. Give a list or a loader."
            )
        found = {"loss": float(mean.value().item())}
        return found | {"accuracy": float(accuracy.value().item())} if classes else found

    return measure
