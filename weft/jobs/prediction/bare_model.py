"""Predicting with a model that has no preprocessing inside: an ONNX model of another program, or a saved program of a bare network.

Nothing is assumed silently: what a model does not say (the range and order of values, normalization, labels) has a default that is
stated, and a setting that replaces it. A model that weft wrote may say it in its fact `images`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ... import onnx
from ...data import Normalize, ToFloat
from ...data.resize import Resize
from ...errors import UserError
from ...graph.text import split_type
from ...nn.module import Module
from ...nn.preprocessing import Resizing
from ...ops.convert import asarray
from ...ops.movement import flip, moveaxis, reshape
from ...ops.statistics import softmax
from ...records import dataclass
from ...saved.program import Program
from ...tensor import Tensor

DEFAULT_SIZE = (224, 224)  # of a model that takes images of any size
CHANNELS = (1, 3)
LABEL_KEYS = ("labels", "names", "classes", "character")  # metadata that exporters write
Layout = Literal["nchw", "nhwc"]
BareModel = onnx.OnnxModule | Program


@dataclass(frozen=True)
class ImageInput:
    """How image files become the input of a model; None: not given."""

    size: tuple[int, int] | None = None
    layout: Layout | None = None
    colour: Literal["rgb", "bgr"] = "rgb"
    range: float = 1.0  # the value of a white pixel
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    resize: Resize = "squash"
    stored: tuple[int, int] | None = (
        None  # the size that images of the training set are stored in, if the network takes another
    )
    labels: str | None = None  # a file with a name in each line, or a JSON list

    def or_stated(self, stated: Any) -> ImageInput:
        """The same with what a model states itself (its fact `images`) where nothing else was given."""
        try:
            known = {key: tuple(v) if isinstance(v, list) else v for key, v in dict(stated or {}).items()}
            chosen = {name: v for name, v in vars(self).items() if v != getattr(ImageInput, name)}
            return ImageInput(**known | chosen)
        except (TypeError, ValueError) as error:
            raise UserError("predict", f"what the model states about its images is wrong: {error}.") from None


class ModelOfImages(Module):
    """A model from stored pixels (batch, channels, height, width) to probabilities or numbers."""

    def __init__(self, model: BareModel, dtype: str, given: ImageInput, layout: Layout, size: tuple[int, int]) -> None:
        self.model, self.layout, self.colour, self.range = model, layout, given.colour, given.range
        self.dtype, self.resizing = dtype, None if given.stored is None else Resizing(size)
        mean, std = given.mean or (0.0,), given.std or (1.0,)
        wide = max(len(mean), len(std))
        self.normalize = Normalize(*(v * wide if len(v) == 1 else v for v in (mean, std)))
        self.to_float, self.applies_softmax = ToFloat(), False

    def forward(self, x: Any) -> Tensor:
        if self.colour == "bgr":
            x = flip(x, axis=1)
        if self.dtype != "uint8":
            x = self.to_float(x) if self.resizing is None else self.resizing(self.to_float(x))
            x = self.normalize(x * self.range).astype(self.dtype)
        y = self.model(moveaxis(x, 1, 3) if self.layout == "nhwc" else x)
        y = y[0] if isinstance(y, tuple) else y
        y = reshape(y, (y.shape[0], -1)) if all(n == 1 for n in y.shape[2:]) else y
        return softmax(y) if self.applies_softmax else y


@dataclass(frozen=True)
class Interpretation:
    """How a bare model is run: the module from pixels to predictions, and what was assumed."""

    run: ModelOfImages
    resize: Resize
    shape: tuple[int, int, int]
    batch: int | None  # the only batch size that it takes
    classes: Sequence[str]
    notes: tuple[str, ...]


def interpreted_model(name: str, model: BareModel, given: ImageInput) -> Interpretation:
    """How a model without preprocessing takes images. `name` is for messages."""
    given = given.or_stated(model.facts.get("images"))
    port = _image_port(_ports(model)[0])
    layout = given.layout or _layout(port)
    batch, *rest = port.shape or ()
    channels, height, width = (rest[2], *rest[:2]) if layout == "nhwc" else rest
    fixed = isinstance(height, int) and isinstance(width, int)
    size = (height, width) if fixed else given.size or DEFAULT_SIZE
    if given.size is not None and given.size != size:
        raise UserError(
            "predict", f"images of {height}x{width} are required by {name}, got size={given.size[0]}x{given.size[1]}."
        )
    count = channels if channels in CHANNELS else 3
    wanted = (int(size[0] or 0), int(size[1] or 0))
    shape = (count, *(given.stored or wanted))
    only = batch if isinstance(batch, int) else None
    output = _ports(model)[1][0]
    outputs = _outputs(output)
    run = ModelOfImages(model, port.dtype, given, layout, wanted).eval()
    run.applies_softmax = outputs is not None and not _gives_probabilities(model, run, (only or 1, *shape))
    classes, source = _classes(model, output, given, outputs)
    notes = _notes(name, port, given, layout, shape, fixed, run.applies_softmax, source)
    return Interpretation(run, given.resize, shape, only, classes, notes)


def _ports(model: BareModel) -> tuple[Sequence[onnx.OnnxPort], Sequence[onnx.OnnxPort]]:
    """The inputs and the outputs of a model."""
    if isinstance(model, onnx.OnnxModule):
        return model.inputs, model.outputs
    names = model.argument_names or [str(i) for i in range(len(model.argument_types()))]
    inputs = [_port(name, text) for name, text in zip(names, model.argument_types(), strict=True)]
    return inputs, [_port("output", text) for text in model.result_types()]


def _port(name: str, text: str) -> onnx.OnnxPort:
    dtype, sizes = split_type(text)
    return onnx.OnnxPort(name, dtype.name, tuple(int(size) if size.isdecimal() else size for size in sizes))


def _gives_probabilities(model: BareModel, run: Module, shape: tuple[int, ...]) -> bool:
    """Whether the result of a classifier needs no softmax: by its last op, or, of a saved program, by what it gives for a black image."""
    if isinstance(model, onnx.OnnxModule):
        return model.final_op(model.outputs[0].name) in ("Softmax", "Sigmoid", "LogSoftmax", "HardSigmoid")
    found = np.asarray(run(asarray(np.zeros(shape, np.uint8))).numpy(), np.float64)
    return bool((found >= 0).all() and np.allclose(found.sum(-1), 1.0, atol=1e-3))


def _image_port(ports: Sequence[onnx.OnnxPort]) -> onnx.OnnxPort:
    if len(ports) != 1 or len(ports[0].shape or ()) != 4 or ports[0].dtype not in ("float32", "float16", "uint8"):
        listed = ", ".join(map(str, ports))
        raise UserError(
            "predict",
            f"a model with one input of images (batch, channels, height, width) is required, got {listed}. Call it in Python: weft.load(path)(...).",
        )
    return ports[0]


def _layout(port: onnx.OnnxPort) -> Layout:
    """Where the channels are: the axis of 1 or 3 elements."""
    _, second, _, last = port.shape or (None,) * 4
    if second in CHANNELS:
        return "nchw"
    if last in CHANNELS:
        return "nhwc"
    raise UserError(
        "predict", f"an input with an axis of 1 or 3 channels is required, got {port}. Give layout=nchw or layout=nhwc."
    )


def _outputs(port: onnx.OnnxPort) -> int | None:
    """The number of classes, if the output is a vector for each image."""
    sizes = port.shape or ()
    if len(sizes) < 2 or any(n != 1 for n in sizes[2:]):
        return None
    return sizes[1] if isinstance(sizes[1], int) and sizes[1] > 1 else None


def _classes(
    model: BareModel, output: onnx.OnnxPort, given: ImageInput, outputs: int | None
) -> tuple[Sequence[str], str]:
    """The names of the classes, and where they come from."""
    if outputs is None:
        if given.labels is not None:
            raise UserError("predict", f"labels= needs a model that classifies, got the output {output}.")
        return (), "the output is printed as numbers"
    if given.labels is not None:
        found, source = read_labels(given.labels), given.labels
    else:
        metadata = model.metadata if isinstance(model, onnx.OnnxModule) else {"labels": json.dumps(model.labels or [])}
        found, source = _metadata_labels(metadata, outputs)
    if not found and given.labels is None:
        return [str(i) for i in range(outputs)], "classes are numbers (labels=FILE names them)"
    if len(found) != outputs:
        raise UserError("predict", f"{outputs} labels are required, got {len(found)} in {source}.")
    return found, f"labels are those of {source}"


def read_labels(path: str) -> list[str]:
    """Labels of a file: a JSON list, or a line each."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("predict", f"labels={path} cannot be read: {error}.") from None
    return _parsed_labels(text) or [line.strip() for line in text.splitlines() if line.strip()]


def _metadata_labels(metadata: Mapping[str, str], outputs: int) -> tuple[list[str], str]:
    for key in LABEL_KEYS:
        text = metadata.get(key, "")
        names = _parsed_labels(text) or text.splitlines()
        if len(names) == outputs:
            return names, f"the model's metadata ({key})"
    return [], ""


def _parsed_labels(text: str) -> list[str] | None:
    """A list of names, or names by number, as JSON or as Python writes it."""
    if not text.lstrip().startswith(("[", "{")):
        return None
    try:
        found = ast.literal_eval(text) if "'" in text else json.loads(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return list(map(str, found.values() if isinstance(found, dict) else found))


def _notes(
    name: str, port: onnx.OnnxPort, given: ImageInput, layout: Layout, shape: tuple[int, int, int], fixed: bool, applies_softmax: bool, labels: str,
) -> tuple[str, ...]:  # fmt: skip
    size = f"{shape[1]}x{shape[2]} ({given.resize}{'' if fixed or given.size else '; size= sets another size'})"
    colour = "gray" if shape[0] == 1 else given.colour.upper()
    if port.dtype == "uint8":
        values = "values 0 to 255"
    else:
        normal = given.mean is not None or given.std is not None
        by = f"minus mean {list(given.mean or (0.0,))}, divided by std {list(given.std or (1.0,))}"
        values = f"values 0 to {given.range:g}, {by if normal else 'not normalized (mean= and std= do)'}"
    end = "softmax is applied to the output" if applies_softmax else "the output is used as it is"
    return (f"{name}: images are {size}, {colour}, {layout.upper()}, {values}; {end}; {labels}",)
