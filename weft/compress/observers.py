"""Statistics of activations on calibration data, collected by modules in the compiled network: first the range and mean of each channel, then histograms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import UserError
from ..nn.module import Module, state
from ..ops.convert import asarray
from ..ops.creation import zeros
from ..ops.elementwise import floor, maximum, minimum
from ..ops.math import clip, isfinite
from ..ops.movement import moveaxis, reshape
from ..ops.reduce import max as reduce_max
from ..ops.reduce import min as reduce_min
from ..ops.reduce import sum
from ..records import dataclass
from ..tensor import ArrayLike, Tensor, as_tensor
from ..tracing.jit import jit
from .ranges import Values
from .taps import BEFORE, tap, untap

BINS = 2048


class RangeObserver(Module):
    """Passes its input on and records the minimum, the maximum and the sum of the values of each channel."""

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.low, self.high = state((None,), float("inf")), state((None,), float("-inf"))
        self.total, self.count, self.bad = state((None,)), state(()), state(())

    def sizes(self, x: Tensor) -> Mapping[str, tuple[int, ...]]:
        return dict.fromkeys(("low", "high", "total"), (x.shape[self.axis],))

    def forward(self, x: ArrayLike) -> ArrayLike:
        rows = _rows(x, self.axis)
        self.low.assign(minimum(self.low, reduce_min(rows, axis=1)))
        self.high.assign(maximum(self.high, reduce_max(rows, axis=1)))
        self.total.assign(self.total + sum(rows, axis=1))
        self.count.assign(self.count + float(rows.shape[1]))
        self.bad.assign(self.bad + sum((~isfinite(rows)).astype("float32")))
        return x


class HistogramObserver(Module):
    """Passes its input on and counts the values of each row in bins of a known range."""

    def __init__(self, axis: int | None, low: np.ndarray, high: np.ndarray) -> None:
        self.axis = axis
        self.low, self.high = asarray(low.astype(np.float32)).realize(), asarray(high.astype(np.float32)).realize()
        self.counts = zeros((len(low) * BINS,), dtype="int64").realize()

    def forward(self, x: ArrayLike) -> ArrayLike:
        rows = _rows(x, self.axis)
        part = (rows - self.low[:, None]) / (self.high - self.low)[:, None]
        bins = clip(floor(part * float(BINS)), 0.0, float(BINS - 1)).astype("int32")
        first = asarray(np.arange(rows.shape[0], dtype=np.int32)[:, None] * BINS)
        self.counts.assign(self.counts.at[reshape(bins + first, (-1,))].add(1))
        return x


def _rows(x: ArrayLike, axis: int | None) -> Tensor:
    x = as_tensor(x).detach().astype("float32")
    return reshape(x, (1, -1)) if axis is None else reshape(moveaxis(x, axis, 0), (x.shape[axis], -1))


@dataclass(frozen=True)
class ObservedPlace:
    """A tensor of a network: the input or the result of a layer."""

    path: str
    layer: Module
    where: str  # BEFORE or AFTER
    axis: int  # of its channels

    @property
    def text(self) -> str:
        return f"the {'input' if self.where == BEFORE else 'result'} of {self.path or 'the network'}"


@dataclass(frozen=True)
class Observation:
    """The statistics of a tensor."""

    values: Values
    means: np.ndarray  # of each channel


def batches_of(where: str, calibration: Any, prepare: Module | None = None) -> list[Any]:
    """The batches of calibration data as arrays: from an array, or batches x or (x, y). Labels are dropped; `prepare` is applied."""
    given = [calibration] if isinstance(calibration, np.ndarray | Tensor) else calibration
    if not isinstance(given, Iterable):
        raise UserError(where, f"calibration data is an array or batches of arrays, got {type(given).__name__}.")
    inputs = [one[0] if isinstance(one, tuple | list) else one for one in given]
    inputs = [one if isinstance(one, Tensor) else np.asarray(one) for one in inputs]
    if not inputs or any(0 in one.shape for one in inputs):
        raise UserError(where, "calibration data with examples is required, got none.")
    if prepare is None:
        return inputs
    with evaluating(prepare):
        return [prepare(asarray(one)).realize() for one in inputs]


def observe(
    where: str, model: Module, places: Iterable[ObservedPlace], batches: list[Any], *, per_channel: bool = False
) -> dict[ObservedPlace, Observation]:
    """Run a network on batches and collect the statistics of places. Non-finite values and constant tensors are rejected."""
    wanted = list(places)
    ranges = {place: RangeObserver(place.axis) for place in wanted}
    run_with(model, ranges, batches)
    ends = {place: _ends(where, place, seen, per_channel) for place, seen in ranges.items()}
    bins = {p: HistogramObserver(p.axis if per_channel else None, low, high) for p, (low, high) in ends.items()}
    run_with(model, bins, batches)
    found = {}
    for place, (low, high) in ends.items():
        width = (high - low) / BINS
        points = low[:, None] + width[:, None] * (np.arange(BINS) + 0.5)
        counts = bins[place].counts.numpy().reshape(-1, BINS)
        means = ranges[place].total.numpy() / ranges[place].count.numpy()
        found[place] = Observation(Values(points, counts, low, high, width), means)
    return found


def _ends(where: str, place: ObservedPlace, seen: RangeObserver, per_channel: bool) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(seen.low, Tensor):
        raise UserError(where, f"{place.text} was not computed on the calibration data. Leave this layer out (skip=).")
    if seen.bad.item():
        raise UserError(
            where, f"{place.text} has {seen.bad.item():.0f} values that are nan or infinite on the calibration data."
        )
    low, high = seen.low.numpy().astype(np.float64), seen.high.numpy().astype(np.float64)
    if low.min() == high.max():
        raise UserError(
            where,
            f"calibration data with variation is required: {place.text} has no other value than {low.min():g}. Give examples as in training.",
        )
    if not per_channel:
        return low.min(keepdims=True), high.max(keepdims=True)
    return low, np.where(high > low, high, low + 1.0)


def run_with(model: Module, modules: Mapping[ObservedPlace, Module], batches: list[Any]) -> None:
    """Run a network with modules inserted at places."""
    try:
        for place, module in modules.items():
            tap(place.layer, **{"before" if place.where == BEFORE else "after": module})
        with evaluating(model):
            forward = jit(lambda x: model(x))
            for batch in batches:
                forward(batch)
    finally:
        for place in modules:
            untap(place.layer)


@contextmanager
def evaluating(model: Module) -> Iterator[None]:
    """While active, a network is in evaluation mode."""
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
