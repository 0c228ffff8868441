"""Distillation (Hinton et al. 2015): a small network, the student, learns from the predictions of a large one, the teacher.

    with distilling(student, teacher, temperature=4.0) as loss:
        train.fit(student, data, loss=loss)

The teacher runs inside the compiled training step, on the same inputs as the student (after augmentation and mixing). In validation only the
loss of the labels is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..errors import UserError
from ..hints import nearest
from ..nn.losses import loss as find_loss
from ..nn.module import Module, listening
from ..ops.elementwise import sqrt
from ..ops.statistics import log_softmax
from ..tensor import Tensor


@contextmanager
def distilling(
    student: Module,
    teacher: Module,
    *,
    temperature: float = 4.0,
    weight: float = 0.9,
    loss: Any = "cross_entropy",
    features: Mapping[str, str] | None = None,
    feature_weight: float = 1.0,
) -> Iterator[Distillation]:
    """While active, calls of the student in training mode also call the teacher; yields the training loss.

    loss = weight T^2 KL(softmax(teacher / T) || softmax(student / T)) + (1 - weight) loss of the labels + feature_weight * features.
    `features` are pairs of layers, by path in the student and in the teacher, whose outputs are matched: normalized maps of the mean of squares
    over channels (attention transfer, Zagoruyko and Komodakis 2017), so that the numbers of channels may differ.
    """
    made = Distillation(student, teacher, temperature, weight, loss, features or {}, feature_weight)
    plain = type(student)
    student.__class__ = _asking(plain, made)
    try:
        yield made
    finally:
        student.__class__ = plain
        made.forget()


class Distillation:
    """The loss of a student: a function of predictions and labels. See `distilling`."""

    def __init__(
        self,
        student: Module,
        teacher: Module,
        temperature: float,
        weight: float,
        loss: Any,
        features: Mapping[str, str],
        feature_weight: float,
    ) -> None:
        if not temperature > 0.0 or not 0.0 <= weight <= 1.0 or not feature_weight >= 0.0:
            raise UserError(
                "distilling",
                "a temperature above 0, a weight in [0, 1] and a feature_weight from 0 are required, "
                f"got {temperature}, {weight} and {feature_weight}.",
            )
        self.teacher, self.temperature, self.weight, self.loss = teacher, temperature, weight, find_loss(loss)
        self.feature_weight = feature_weight
        self.pairs = [(_found(student, a, "student"), _found(teacher, b, "teacher")) for a, b in features.items()]
        self.forget()

    def forget(self) -> None:
        self._answer: Tensor | None = None  # the teacher's prediction for the student's last call, within one trace
        self._distance: Tensor | None = None

    def call(self, plain: Any, *args: Any) -> Any:
        """Call the student, and in training mode also the teacher."""
        student: Module = plain.__self__
        self.forget()
        if not student.training:
            return plain(*args)
        seen, known = LayerOutputs(), LayerOutputs()
        with listening(seen):
            result = plain(*args)
        self.teacher.eval()
        with listening(known):
            self._answer = _prediction(self.teacher(*args)).detach()
        for mine, other in self.pairs:
            distance = _distance(seen.last(mine), known.last(other).detach())
            self._distance = distance if self._distance is None else self._distance + distance
        return result

    def __call__(self, prediction: Tensor, y: Tensor) -> Tensor:
        hard: Tensor = self.loss(prediction, y)
        if self._answer is None:
            return hard
        if self._answer.shape != prediction.shape:
            raise UserError(
                "distilling",
                f"teacher and student of one output shape are required, got {self._answer.shape} and {prediction.shape}.",
            )
        soft = soft_cross_entropy(prediction, self._answer, self.temperature)
        total = self.weight * soft + (1.0 - self.weight) * hard
        return total if self._distance is None else total + self.feature_weight * self._distance


def soft_cross_entropy(prediction: Tensor, answer: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(answer / T) || softmax(prediction / T)), the mean over examples; logits are along the last axis."""
    mine, other = log_softmax(prediction / temperature, axis=-1), log_softmax(answer / temperature, axis=-1)
    return temperature**2 * (other.exp() * (other - mine)).sum(axis=-1).mean()


def _asking(plain: type[Module], made: Distillation) -> type[Module]:
    """A subclass of the student's class whose calls go through the distillation. It has the same name, so that printing is unchanged."""

    def forward(student: Module, *args: Any) -> Any:
        return made.call(plain.forward.__get__(student), *args)

    return type(
        plain.__name__, (plain,), {"forward": forward, "__module__": plain.__module__, "__doc__": plain.__doc__}
    )


class LayerOutputs:
    """Records the outputs of layers."""

    def __init__(self) -> None:
        self.results: dict[Module, Any] = {}

    def begins(self, module: Module, args: tuple[Any, ...]) -> None: ...

    def ends(self, module: Module, result: Any) -> None:
        self.results[module] = result

    def last(self, module: Module) -> Tensor:
        if module not in self.results:
            raise UserError(
                "distilling", f"features of layers that are called are required, got {type(module).__name__}."
            )
        return _prediction(self.results[module])


def _distance(mine: Tensor, other: Tensor) -> Tensor:
    """The mean over examples of the squared distance of two normalized maps."""
    a, b = _map(mine), _map(other)
    if a.shape != b.shape:
        raise UserError(
            "distilling",
            f"features of one size are required, apart from channels, got {mine.shape} and {other.shape}. Choose other layers.",
        )
    return ((a - b) ** 2).sum(axis=-1).mean()


def _map(x: Tensor) -> Tensor:
    """(batch, channels, spatial...): the mean of squares over channels; (batch, features): unchanged. Normalized to length 1."""
    flat = (x * x).mean(axis=1).reshape(x.shape[0], -1) if x.ndim > 2 else x
    return flat / sqrt((flat * flat).sum(axis=-1, keepdims=True) + 1e-12)


def _prediction(output: Any) -> Tensor:
    """The prediction alone: recurrent networks return their state too."""
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _found(model: Module, path: str, what: str) -> Module:
    layers = model.named_modules()
    if path not in layers:
        raise UserError("distilling", f"{path!r} is no layer of the {what}. {nearest(path, list(layers))}")
    return layers[path]
