"""What number formats do to a network: to each of its tensors on real data, and to its accuracy, by running it.

    found = survey(model, batches, formats=("float16", "int8"))      # batches (x, y)
    print(found)

Each tensor is measured by itself: how many values overflow, how many become 0, and the ratio of signal to rounding noise. Accuracy is
measured with rounded weights, and with weights, the input and the results of all layers rounded. Integers have a scale for each tensor, so
that its largest value is the largest integer; all other formats are used as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..compress.quantization_report import decibels
from ..errors import UserError
from ..interpret.recording import evaluating, recorded
from ..nn.module import Module
from ..ops.convert import asarray
from ..tensor import Tensor
from ..tracing.jit import jit
from ..train.task import prediction_of
from .number_format import FixedFormat, FloatFormat, NumberFormat, number_formats
from .rounding import overflows
from .rounding_layer import INPUT, is_rounded, parameters_of, rounded, rounded_array, scale_for

FORMATS = ("tf32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2", "int16", "int8", "int4", "q7.8", "q3.4")
SAMPLED = 1 << 17  # values of a tensor that are measured, at most
RESULT = "result"  # the name of what the network itself computes
LEAST, MOST = -150, 128  # exponents of the histogram; float32 has no others
Progress = Callable[[str], None]


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


@dataclass(frozen=True)
class FormatAccuracy:
    """A network that was run in a format: with its weights rounded, and with its activations rounded too.

    Accuracies are None without class labels; `agreement` is the share of predictions that are those of float32.
    """

    format: str
    accuracy_weights: float | None
    accuracy: float | None
    agreement_weights: float
    agreement: float
    snr: float  # of the results with all tensors rounded, in decibels


@dataclass(frozen=True)
class FormatSurvey:
    """What formats do to a network.

    >>> from weft import nn
    >>> found = survey(nn.Linear(4, 2), [np.ones((3, 4), np.float32)], formats=("float16",))
    >>> [tensor.path for tensor in found.tensors]
    ['weight', 'bias', 'input', 'result']
    """

    tensors: tuple[TensorFit, ...]
    accuracies: tuple[FormatAccuracy, ...]
    float_accuracy: float | None
    examples: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values; `exponents` are the counts that are not 0 by exponent."""
        return {
            "examples": self.examples,
            "float32_accuracy": self.float_accuracy,
            "accuracies": [asdict(one) for one in self.accuracies],
            "tensors": [_tensor_json(one) for one in self.tensors],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        width = max(24, *(len(one.path) for one in self.tensors))
        names = [one.format for one in self.accuracies]
        lines = [f"{'SNR in dB':{width}}  " + "  ".join(f"{name:>11}" for name in names)]
        for one in self.tensors:
            cells = [noise_text(one.formats.get(name)) for name in names]
            lines.append(f"{one.path:{width}}  " + "  ".join(f"{cell:>11}" for cell in cells))
        for title, values in accuracy_rows(self):
            lines.append(f"{title:{width}}  " + "  ".join(f"{value:>11}" for value in values))
        return "\n".join(lines)


def noise_text(noise: FormatNoise | None) -> str:
    """The ratio of a tensor; ! marks overflow, 0 values that vanish, above 0.1 %.

    >>> noise_text(FormatNoise(0.0, 0.25, 31.46))
    '31.5 0'
    """
    if noise is None:
        return "-"
    ratio = "exact" if noise.snr == np.inf else "lost" if not np.isfinite(noise.snr) else f"{noise.snr:.1f}"
    return ratio + (" !" if noise.overflow > 0.001 else "") + (" 0" if noise.underflow > 0.001 else "")


def accuracy_rows(found: FormatSurvey) -> list[tuple[str, list[str]]]:
    """Titles and texts of what the formats do to the network."""
    rows: list[tuple[str, list[str]]] = []
    if found.float_accuracy is not None:
        rows.append(("accuracy, weights", [_percent(one.accuracy_weights) for one in found.accuracies]))
        rows.append(("accuracy, all", [_percent(one.accuracy) for one in found.accuracies]))
    rows.append(("same prediction, weights", [_percent(one.agreement_weights) for one in found.accuracies]))
    rows.append(("same prediction, all", [_percent(one.agreement) for one in found.accuracies]))
    return rows


def survey(
    model: Module,
    batches: Iterable[Any],
    formats: Sequence[str | NumberFormat] = FORMATS,
    *,
    prepare: Module | None = None,
    progress: Progress | None = None,
) -> FormatSurvey:
    """Measure what formats do to the tensors and to the accuracy of a network, on batches x or (x, y)."""
    wanted, given = number_formats(formats), list(batches)
    inputs = [np.asarray(one[0] if isinstance(one, tuple | list) else one) for one in given]
    labels = [np.asarray(one[1]) for one in given if isinstance(one, tuple | list) and len(one) > 1]
    if not wanted or not sum(map(len, inputs)):
        raise UserError("formats", "examples and a format or more are required, got none.")
    tell = progress or (lambda text: None)
    parts = (model,) if prepare is None else (model, prepare)
    with evaluating(*parts):
        prepared = inputs if prepare is None else [prepare(asarray(one)).numpy() for one in inputs]
        tell("reading the tensors of the network")
        seen, largest = _activations(model, prepared)
        tensors = [*_weights(model, wanted), *(_activation(seen[path], path, wanted) for path in seen)]
        network = _Runs(model, prepared, np.concatenate(labels) if len(labels) == len(inputs) else None)
        accuracies = []
        for one in wanted:
            tell(f"running in {one.name}")
            accuracies.append(network.accuracy(one, largest))
    return FormatSurvey(
        tuple(tensors),
        tuple(accuracies),
        network.float_accuracy,
        sum(map(len, inputs)),
        _notes(len(seen.keys() - {INPUT}), wanted),
    )


# --- tensors ----------------------------------------------------------------------------------------------------------------------


class _SeenValues:
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


def _activations(model: Module, batches: Sequence[np.ndarray]) -> tuple[dict[str, _SeenValues], dict[str, float]]:
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
    seen: dict[str, _SeenValues] = {}
    for batch in batches:
        if batch.dtype.kind == "f":
            seen.setdefault(INPUT, _SeenValues(share)).add(batch)
        for path, value in run(asarray(batch)).items():
            seen.setdefault(path, _SeenValues(share)).add(value.numpy())
    largest = {INPUT: seen[INPUT].largest} if INPUT in seen else {}
    for name, shown in listed.items():
        path = name.partition("#")[0]  # a layer that is called again has one scale
        largest[path] = max(largest.get(path, 0.0), seen[shown].largest)
    in_order = dict.fromkeys(
        [*(name for name in (INPUT,) if name in seen), *listed.values()]
    )  # in which layers are computed
    return {name: seen[name] for name in in_order}, largest


def _activation(seen: _SeenValues, path: str, formats: Sequence[NumberFormat]) -> TensorFit:
    values = np.concatenate(seen.samples) if seen.samples else np.zeros(0, np.float32)
    fits = {one.name: _noise(values, one, scale_for(seen.largest, one)) for one in formats}
    share = seen.zeros / max(1, seen.count)
    return TensorFit(path, "activation", seen.shape, seen.low, seen.high, share, exponent_counts(values), fits)


def _weights(model: Module, formats: Sequence[NumberFormat]) -> Iterable[TensorFit]:
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


def _tensor_json(one: TensorFit) -> dict[str, Any]:
    counts = {str(LEAST + i): int(n) for i, n in enumerate(one.exponents) if n}
    plain = {key: value for key, value in vars(one).items() if key not in ("exponents", "formats")}
    return {**plain, "exponents": counts, "formats": {name: asdict(noise) for name, noise in one.formats.items()}}


# --- accuracy ---------------------------------------------------------------------------------------------------------------------


class _Runs:
    """Runs a network on the same batches again and again."""

    def __init__(self, model: Module, batches: Sequence[np.ndarray], labels: np.ndarray | None) -> None:
        self.model, self.batches = model, batches
        self.forward = jit(lambda x: prediction_of(model(x)))  # rounded weights are other values of the same program
        self.exact = self._results(self.forward)
        fits = labels is not None and labels.dtype.kind in "iu" and labels.shape == self.exact.shape[:-1]
        self.labels = labels if fits else None
        self.float_accuracy = self._accuracy(self.exact)

    def accuracy(self, format: NumberFormat, largest: Mapping[str, float]) -> FormatAccuracy:
        with rounded(self.model, format, largest, activations=False):
            weights = self._results(self.forward)
        with rounded(self.model, format, largest, activations=True):
            both = self._results(jit(lambda x: prediction_of(self.model(x))))
        with np.errstate(invalid="ignore", over="ignore"):
            noise = float(((both - self.exact) ** 2).sum())
        ratio = decibels(float((self.exact**2).sum()), noise) if np.isfinite(noise) else -np.inf
        return FormatAccuracy(
            format.name,
            self._accuracy(weights),
            self._accuracy(both),
            self._agreement(weights),
            self._agreement(both),
            ratio,
        )

    def _results(self, forward: Callable[[Any], Tensor]) -> np.ndarray:
        return np.concatenate([forward(asarray(batch)).numpy() for batch in self.batches]).astype(np.float64)

    def _accuracy(self, results: np.ndarray) -> float | None:
        if self.labels is None:
            return None
        return float((_decided(results) == self.labels).mean())

    def _agreement(self, results: np.ndarray) -> float:
        """Of decisions among several results; of single results, of those that are equal to three digits."""
        if results.ndim < 2 or results.shape[-1] < 2:
            return float(np.isclose(results, self.exact, rtol=1e-3, atol=0.0).mean())
        return float((_decided(results) == _decided(self.exact)).mean())


def _decided(results: np.ndarray) -> np.ndarray:
    """The largest result of each row; -1 if one is not a number, because then nothing is decided."""
    chosen = np.where(np.isnan(results), -np.inf, results).argmax(-1)
    return np.where(np.isnan(results).any(-1), -1, chosen)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def _notes(layers: int, formats: Sequence[NumberFormat]) -> tuple[str, ...]:
    notes = []
    if any(isinstance(one, FixedFormat) and one.is_integer for one in formats):
        notes.append(
            "Integers have a scale for each tensor, from its largest value; biases and other vectors stay in float32."
        )
    if any(isinstance(one, FloatFormat) and not one.has_infinity for one in formats):
        notes.append("Beyond its range float8_e4m3 is nan: it has no infinity. No tensor is scaled into its range.")
    if layers < 2:
        notes.append(
            "The network is one layer, or a program without layers: only its input and its result are rounded."
        )
    return tuple(notes)
