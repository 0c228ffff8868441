"""What is profiled: a network of the zoo, a run, a saved program or an ONNX model, with made-up inputs for any batch size."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ... import nn, onnx, optim, zoo
from ...dtypes import as_dtype
from ...errors import UserError
from ...graph.text import parse_type
from ...hints import nearest
from ...ops.convert import asarray
from ...ops.loss import cross_entropy
from ...precision import LossScale
from ...records import dataclass
from ...saved.program import Program, load
from ...tensor import Tensor
from ...tracing.jit import Jit, jit
from ...train.forecast import forecast, input_types, output_types
from ...zoo.catalogue import ALIASES, FACTS
from ..find import AMBIGUOUS, find_run, run_folders
from ..networks import build_network, build_vector_network, full_name, side
from ..prediction.run_predictor import predictor_of_run

RATE, MOMENTUM = 1e-3, 0.9  # of the optimizer of a training step
SIDE, CLASSES, VOCABULARY, LENGTH = 28, 10, 65, 128  # where neither the network nor the user says
Inputs = Callable[[int], tuple[np.ndarray, ...]]


@dataclass(frozen=True)
class ProfileSubject:
    """See the head of this file."""

    title: str
    make: Callable[[], nn.Module]
    inputs: Inputs  # for a batch size
    labels: Callable[[int], np.ndarray] | None = None  # None: it cannot be trained
    precision: str = "float32"
    only_batch: int | None = None  # the one batch size that it takes
    network: str = ""  # its name in the catalogue, if it takes images of the size that it was published for

    def step(self, batch: int, what: str = "infer") -> tuple[Jit[Any], tuple[Tensor, ...]]:
        """A compiled function and its arguments: a training step (SGD with momentum), or inference."""
        if self.only_batch is not None and batch != self.only_batch:
            raise UserError("profile", f"{self.title} takes a batch of {self.only_batch} only, got {batch}.")
        if self.labels is not None:
            self._check_memory(what)
        model = self.make().eval()
        inputs = tuple(map(asarray, self.inputs(batch)))
        if what == "infer":
            return jit(inference_of(model), precision=self.precision), inputs
        if self.labels is None:
            raise UserError("profile", f"{self.title} has no training step. Use what=infer.")
        model(*map(asarray, self.inputs(1)))  # parameters of unknown sizes are made
        step = training_step(model.train(), self.precision)
        return jit(step, precision=self.precision), (*inputs, asarray(self.labels(batch)))

    def _check_memory(self, what: str) -> None:
        """An error before anything is allocated if parameters, gradients and moments do not fit."""
        example = self.inputs(1)[0]
        foreseen = forecast(
            self.make,
            lambda model: output_types(model, nn.Sequential(), example),
            1.0 if what == "train" else 0.0,  # momentum
        )
        foreseen.check(lambda: "Take smaller images (size=) or a smaller network.")


def inference_of(model: nn.Module) -> Callable[..., Any]:
    """A call of the network, under the name that traces show."""

    def inference(*inputs: Tensor) -> Any:
        return model(*inputs)

    return inference


def training_step(model: nn.Module, precision: str) -> Callable[..., Tensor]:
    """Forward, backward and SGD with momentum. Auxiliary classifiers are trained too."""
    optimizer = optim.find("sgd")(model, rate=RATE, momentum=MOMENTUM)
    scale = LossScale() if precision == "float16" else None

    def training_step(x: Tensor, y: Tensor) -> Tensor:
        given = model(x)
        heads = [head for head in (given if isinstance(given, tuple) else (given,)) if isinstance(head, Tensor)]
        axis = -1 if y.ndim == heads[0].ndim - 1 and y.shape == heads[0].shape[:-1] else 1
        loss = sum((cross_entropy(head, y, axis=axis) for head in heads[1:]), cross_entropy(heads[0], y, axis=axis))
        optimizer.minimize(loss, scale)
        return loss

    return training_step


def find_subject(
    name: str,
    *,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    classes: int | None = None,
    length: int | None = None,
    precision: str | None = None,
) -> ProfileSubject:
    """The subject of this name: a network of the zoo, a file (.weft, .onnx) or a run. Sizes are the network's own unless they are given."""
    precision = precision or "float32"
    path = Path(name)
    of_images = {"size": size, "channels": channels, "classes": classes}
    if name in zoo.names() or name in ALIASES:
        full = full_name(name)
        if FACTS[full].task == "text":
            _check_unused(name, "takes text", of_images)
            return _of_text_network(full, length, precision)
        _check_unused(name, "takes images", {"length": length})
        return _of_image_network(full, size, channels, classes, precision)
    _check_unused(name, "has the sizes that it was made with", of_images)
    if path.is_file() and path.suffix.lower() == ".onnx":
        _check_unused(name, "has the sizes that it was made with", {"length": length})
        return _of_onnx(name, onnx.load(path), precision)
    if path.is_file():
        return _of_program(name, load(path), precision, length)
    return _of_run(name, precision, length)


def _check_unused(name: str, why: str, given: Mapping[str, object]) -> None:
    """Reject settings that would change nothing."""
    odd = [f"{setting}=" for setting, value in given.items() if value is not None]
    if odd:
        raise UserError(
            "profile", f"{name} {why}, got {', '.join(odd)}. Leave {'it' if len(odd) == 1 else 'them'} out."
        )


def _images(shape: tuple[int, ...], batch: int) -> tuple[np.ndarray, ...]:
    return (np.random.default_rng(0).random((batch, *shape), np.float32),)


def _of_image_network(
    name: str, size: tuple[int, int] | None, channels: int | None, classes: int | None, precision: str
) -> ProfileSubject:
    facts, known = FACTS[name], inspect.signature(zoo.find(name)).parameters
    own = facts.input or (1, SIDE, SIDE)
    height, width = size or ((side(name) or own[1],) * 2 if not facts.input else own[1:])
    shape = (channels or own[0], height, width)
    outputs = classes or facts.classes or CLASSES
    make = partial(build_network, name, outputs, shape[0], (height, width))
    if "channels" not in known:  # images as vectors
        make = partial(build_vector_network, name, prod(shape), outputs)

    def labels(batch: int) -> np.ndarray:
        rest = (height, width) if facts.task == "segmentation" else ()
        return np.random.default_rng(1).integers(0, outputs, (batch, *rest))

    title = f"{name} for {'x'.join(map(str, shape))} images, {outputs} classes"
    trained = None if facts.task == "regression" else labels  # the step has the loss of a classifier
    published = name if shape == facts.input else ""
    return ProfileSubject(title, make, partial(_images, shape), trained, precision, network=published)


def _tokens(vocabulary: int, length: int, seed: int, batch: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocabulary, (batch, length))


def _of_text_network(name: str, length: int | None, precision: str) -> ProfileSubject:
    make = zoo.find(name)
    needs = inspect.signature(make).parameters["vocabulary"].default is inspect.Parameter.empty
    vocabulary = VOCABULARY if needs else int(inspect.signature(make).parameters["vocabulary"].default)
    steps = length or LENGTH
    return ProfileSubject(
        f"{name}, {vocabulary} tokens, length {steps}",
        partial(make, vocabulary),
        lambda batch: (_tokens(vocabulary, steps, 0, batch),),
        partial(_tokens, vocabulary, steps, 1),
        precision,
    )


def _of_program(name: str, program: Program, precision: str, length: int | None) -> ProfileSubject:
    program = program.eval()
    leading = _batch_dimension(program)
    free = [dimension for dimension in program.manifest.dimensions if dimension != leading]
    if not free:
        _check_unused(name, "has the sizes that it was made with", {"length": length})
    others = dict.fromkeys(free, length or LENGTH)

    def inputs(batch: int) -> tuple[np.ndarray, ...]:
        sizes = others if leading is None else {leading: batch, **others}
        kinds = [parse_type(text, sizes) for text in program.argument_types()]
        return tuple(np.zeros(kind.shape, kind.dtype.numpy) for kind in kinds)

    only = None if leading is not None else _first_size(inputs)
    return ProfileSubject(Path(name).name, lambda: program, inputs, None, precision, only)


def _batch_dimension(program: Program) -> str | None:
    """The open dimension that examples follow each other in: "batch", or else the first one of all arguments, whatever its name."""
    known = program.manifest.dimensions
    firsts = {text.partition("[")[2].rstrip("]").split(",")[0].strip() for text in program.argument_types()}
    return "batch" if "batch" in known else next(iter(firsts & set(known)), None) if len(firsts) == 1 else None


def _first_size(inputs: Inputs) -> int:
    arrays = inputs(1)
    return arrays[0].shape[0] if arrays and arrays[0].ndim else 1


def _of_onnx(name: str, model: onnx.OnnxModule, precision: str) -> ProfileSubject:
    """Dimensions that a model leaves open are the batch if they come first, and 1 otherwise."""
    ports = list(model.inputs)

    def shape(port: onnx.OnnxPort, batch: int) -> tuple[int, ...]:
        return tuple(n if isinstance(n, int) else batch if axis == 0 else 1 for axis, n in enumerate(port.shape or ()))

    def inputs(batch: int) -> tuple[np.ndarray, ...]:
        return tuple(np.zeros(shape(port, batch), as_dtype(port.dtype).numpy) for port in ports)

    fixed = {port.shape[0] for port in ports if port.shape and isinstance(port.shape[0], int)}
    return ProfileSubject(
        Path(name).name, lambda: model.eval(), inputs, None, precision, fixed.pop() if len(fixed) == 1 else None
    )


def _of_run(name: str, precision: str, length: int | None) -> ProfileSubject:
    try:
        folder = find_run(name)
    except UserError as error:
        if AMBIGUOUS in error.message or Path(name).exists():
            raise
        known = [*zoo.names(), *ALIASES, *(one.name for one in run_folders("runs"))]
        raise UserError("profile", f"{name!r} is neither a network, a file nor a run. {nearest(name, known)}") from None
    found = predictor_of_run("profile", folder)
    if found.text is not None:
        vocabulary, steps = len(found.text.vocabulary), length or LENGTH
        return ProfileSubject(
            folder.name,
            lambda: found.model,
            lambda batch: (_tokens(vocabulary, steps, 0, batch),),
            partial(_tokens, vocabulary, steps, 1),
            precision,
        )
    _check_unused(name, "takes images", {"length": length})
    classes = len(found.classes)
    labels = (lambda batch: np.random.default_rng(1).integers(0, classes, batch)) if classes else None
    stored = np.zeros((1, *found.shape), np.float32)
    shape = found.shape if found.prepare is None else input_types(found.prepare, stored)[0].shape[1:]  # resized
    return ProfileSubject(folder.name, lambda: found.model, partial(_images, shape), labels, precision)
