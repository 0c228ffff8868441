"""What number formats do to a network: to each of its tensors on real data, and to its accuracy, by running it.

    found = survey(model, batches, formats=("float16", "int8"))      # batches (x, y)
    print(found)

Each tensor is measured by itself: how many values overflow, how many become 0, and the ratio of signal to rounding noise. Accuracy is
measured with rounded weights, and with weights, the input and the results of all layers rounded. Integers have a scale for each tensor, so
that its largest value is the largest integer; all other formats are used as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..compress.taps import AFTER, BEFORE, tapped
from ..errors import UserError
from ..interpret.recording import evaluating
from ..nn.module import Module
from ..ops.convert import asarray
from ..records import dataclass
from .accuracy import FormatAccuracy, RepeatedRuns
from .number_format import FixedFormat, FloatFormat, NumberFormat, number_formats
from .rounding_layer import INPUT
from .tensor_fit import FormatNoise, TensorFit, activation_fit, activations, tensor_json, weight_fits

FORMATS = ("tf32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2", "int16", "int8", "int4", "q7.8", "q3.4")
Progress = Callable[[str], None]


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
            "tensors": [tensor_json(one) for one in self.tensors],
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
    _check_that_it_is_float(model)
    tell = progress or (lambda text: None)
    parts = (model,) if prepare is None else (model, prepare)
    with evaluating(*parts):
        prepared = inputs if prepare is None else [prepare(asarray(one)).numpy() for one in inputs]
        tell("reading the tensors of the network")
        seen, largest = activations(model, prepared)
        tensors = [*weight_fits(model, wanted), *(activation_fit(seen[path], path, wanted) for path in seen)]
        network = RepeatedRuns(model, prepared, np.concatenate(labels) if len(labels) == len(inputs) else None)
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


def _check_that_it_is_float(model: Module) -> None:
    """Layers are tapped to round what they compute: quantizers that are there would be replaced."""
    for path, layer in model.named_modules().items():
        if tapped(layer, BEFORE) is not None or tapped(layer, AFTER) is not None:
            raise UserError(
                "formats",
                f"a network in float is required, but {path or 'it'} is quantized. Give it before quantization.",
            )


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
