"""What formats do to the tensors of a network: overflow, values that become 0, and the ratio of signal to rounding noise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..compress.quantization_report import decibels
from ..interpret.recording import recorded
from ..nn.module import Module
from ..ops.convert import asarray
from ..records import dataclass
from ..tensor import Tensor
from ..tracing.jit import jit
from .number_format import NumberFormat
from .rounding import overflows
from .rounding_layer import INPUT, is_rounded, parameters_of, rounded_array, scale_for

SAMPLED = 1 << 17  # values of a tensor that are measured, at most
RESULT = "result"  # the name of what the network itself computes
LEAST, MOST = -150, 128  # exponents of the histogram; float32 has no others


@dataclass(frozen=True)
class FormatNoise:
    """What a format does to a tensor: shares of its values, and the ratio of signal to noise in decibels."""

    overflow: float  # infinite, or the largest number of the format instead of a larger one
    underflow: float  # 0 instead of another number
    snr: float
    scale: float = 1.0  # of integers


@dataclass(frozen=True)
class TensorFit:
    """A tensor of a network, and what formats do to it. `exponents` counts values by floor(log2 |x|), from LEAST."""

    path: str
    kind: str  # "weight" or "activation"
    shape: tuple[int, ...]
    low: float
    high: float
    zeros: float  # share of values
    exponents: np.ndarray
    formats: Mapping[str, FormatNoise]


class SeenValues:
    """The values of an activation over all batches: their range, and a sample of them."""

    def __init__(self, share: int) -> None:
        self.share, self.shape = share, ()
        self.low, self.high, self.zeros, self.count = np.inf, -np.inf, 0, 0
        self.samples: list[np.ndarray] = []

    def add(self, values: np.ndarray) -> None:
        flat = values.reshape(-1).astype(np.float32)
        self.shape = values.shape[1:]
        if not flat.size:
            return
        self.low, self.high = min(self.low, float(flat.min())), max(self.high, float(flat.max()))
        self.zeros, self.count = self.zeros + int((flat == 0).sum()), self.count + flat.size
        if flat.size > self.share:
            flat = flat[np.random.default_rng(flat.size).integers(0, flat.size, self.share)]
        self.samples.append(flat)

    @property
    def largest(self) -> float:
        return max(abs(self.low), abs(self.high)) if self.count else 0.0


def activations(model: Module, batches: Sequence[np.ndarray]) -> tuple[dict[str, SeenValues], dict[str, float]]:
    """The input of a network and the results of its layers, and the largest value of each.

    A result that is passed on unchanged is listed once, by the layer that computed it; the largest values are those of all layers.
    """
    listed: dict[str, str] = {}  # the name under which the result of each call is listed

    @jit
    def run(x: Tensor) -> dict[str, Tensor]:
        _, calls = recorded(model, x)
        found: dict[Any, tuple[str, Tensor]] = {}
        for call in sorted(calls, key=lambda call: call.ended):
            if call.tensor is not None and call.tensor.dtype.is_float:
                listed[call.name] = found.setdefault(call.tensor._node, (call.name or RESULT, call.tensor))[0]
        return dict(found.values())

    share = max(1, SAMPLED // len(batches))
    seen: dict[str, SeenValues] = {}
    for batch in batches:
        if batch.dtype.kind == "f":
            seen.setdefault(INPUT, SeenValues(share)).add(batch)
        for path, value in run(asarray(batch)).items():
            seen.setdefault(path, SeenValues(share)).add(value.numpy())
    largest = {INPUT: seen[INPUT].largest} if INPUT in seen else {}
    for name, shown in listed.items():
        path = name.partition("#")[0]  # a layer that is called again has one scale
        largest[path] = max(largest.get(path, 0.0), seen[shown].largest)
    in_order = dict.fromkeys(
        [*(name for name in (INPUT,) if name in seen), *listed.values()]
    )  # in which layers are computed
    return {name: seen[name] for name in in_order}, largest


def activation_fit(seen: SeenValues, path: str, formats: Sequence[NumberFormat]) -> TensorFit:
    values = np.concatenate(seen.samples) if seen.samples else np.zeros(0, np.float32)
    fits = {one.name: _noise(values, one, scale_for(seen.largest, one)) for one in formats}
    share = seen.zeros / max(1, seen.count)
    return TensorFit(path, "activation", seen.shape, seen.low, seen.high, share, exponent_counts(values), fits)


def weight_fits(model: Module, formats: Sequence[NumberFormat]) -> Iterable[TensorFit]:
    for path, tensor in parameters_of(model).items():
        values = tensor.numpy().astype(np.float32)
        if not values.size:
            continue
        most = float(np.abs(values).max())
        fits = {one.name: _noise(values.reshape(-1), one, scale_for(most, one)) for one in formats if is_rounded(values, one)}  # fmt: skip
        zeros = float((values == 0).mean())
        yield TensorFit(
            path, "weight", values.shape, float(values.min()), float(values.max()), zeros, exponent_counts(values), fits
        )


def _noise(values: np.ndarray, format: NumberFormat, scale: float) -> FormatNoise:
    if not values.size:
        return FormatNoise(0.0, 0.0, np.inf, scale)
    exact = values.astype(np.float64)
    made = rounded_array(exact, format, scale)
    with np.errstate(invalid="ignore"):
        noise = float(((made - exact) ** 2).sum())
    beyond, vanished = overflows(exact / scale, format), (made == 0) & (exact != 0)
    ratio = decibels(float((exact**2).sum()), noise) if np.isfinite(noise) else -np.inf
    return FormatNoise(float(beyond.mean()), float(vanished.mean()), ratio, scale)


def exponent_counts(values: np.ndarray) -> np.ndarray:
    """How many values have each exponent, floor(log2 |x|), from LEAST to MOST; zeros are left out.

    >>> counts = exponent_counts(np.array([0.0, 1.0, -1.5, 0.25]))
    >>> int(counts[0 - LEAST]), int(counts[-2 - LEAST])
    (2, 1)
    """
    finite = values[np.isfinite(values) & (values != 0)]
    _, exponents = np.frexp(finite.astype(np.float64).reshape(-1))
    return np.bincount(np.clip(exponents - 1, LEAST, MOST) - LEAST, minlength=MOST - LEAST + 1)


def tensor_json(one: TensorFit) -> dict[str, Any]:
    counts = {str(LEAST + i): int(n) for i, n in enumerate(one.exponents) if n}
    plain = {key: value for key, value in vars(one).items() if key not in ("exponents", "formats")}
    return {**plain, "exponents": counts, "formats": {name: asdict(noise) for name, noise in one.formats.items()}}
