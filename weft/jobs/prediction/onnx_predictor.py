"""Predicting with an ONNX model: with the facts that `weft export` wrote into it, or, for other models, as the command says.

Nothing is assumed silently: what a foreign model does not say (the range and order of values, normalization, labels) has a default that
is stated, and a setting that replaces it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ... import onnx
from ...data import Normalize, ToFloat
from ...data.resize import Resize
from ...errors import UserError
from ...nn.module import Module
from ...ops.movement import flip, moveaxis, reshape
from ...ops.statistics import softmax
from ...records import dataclass
from ...tensor import Tensor

DEFAULT_SIZE = (224, 224)  # of a model that takes images of any size
CHANNELS = (1, 3)
LABEL_KEYS = ("labels", "names", "classes", "character")  # metadata that exporters write
Layout = Literal["nchw", "nhwc"]


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
    labels: str | None = None  # a file with a name in each line, or a JSON list


class OnnxImages(Module):
    """An ONNX model from stored pixels (batch, channels, height, width) to probabilities or numbers."""

    def __init__(self, model: onnx.OnnxModule, given: ImageInput, layout: Layout, applies_softmax: bool) -> None:
        self.model, self.layout, self.colour, self.range = model, layout, given.colour, given.range
        mean, std = given.mean or (0.0,), given.std or (1.0,)
        wide = max(len(mean), len(std))
        self.normalize = Normalize(*(v * wide if len(v) == 1 else v for v in (mean, std)))
        self.to_float, self.applies_softmax = ToFloat(), applies_softmax

    def forward(self, x: Any) -> Tensor:
        dtype = self.model.inputs[0].dtype
        if self.colour == "bgr":
            x = flip(x, axis=1)
        if dtype != "uint8":
            x = self.normalize(self.to_float(x) * self.range).astype(dtype)
        y = self.model(moveaxis(x, 1, 3) if self.layout == "nhwc" else x)
        y = y[0] if isinstance(y, tuple) else y
        y = reshape(y, (y.shape[0], -1)) if all(n == 1 for n in y.shape[2:]) else y
        return softmax(y) if self.applies_softmax else y


@dataclass(frozen=True)
class ForeignModel:
    """A model for images that says nothing but its shapes: the module to run, and what was assumed."""

    run: OnnxImages
    shape: tuple[int, int, int]
    batch: int | None  # the only batch size that it takes
    classes: Sequence[str]
    notes: tuple[str, ...]


def known_facts(model: onnx.OnnxModule) -> dict[str, Any]:
    """The metadata that `weft export` wrote, parsed; empty for models of other programs."""
    if not model.metadata.get("producer", "").startswith("weft ") or "preprocessing" not in model.metadata:
        return {}
    found: dict[str, Any] = dict(model.metadata)
    for key in ("preprocessing", "labels"):
        if key in found:
            found[key] = json.loads(found[key])
    return found


def foreign_model(name: str, model: onnx.OnnxModule, given: ImageInput) -> ForeignModel:
    """How a model of another program takes images. `name` is for messages."""
    port = _image_port(model)
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
    shape = (count, int(size[0] or 0), int(size[1] or 0))
    ends_in = model.final_op(model.outputs[0].name)
    outputs = _outputs(model.outputs[0])
    applies_softmax = outputs is not None and ends_in not in ("Softmax", "Sigmoid", "LogSoftmax", "HardSigmoid")
    run = OnnxImages(model, given, layout, applies_softmax).eval()
    classes, source = _classes(model, given, outputs)
    notes = _notes(name, port, given, layout, shape, fixed, applies_softmax, source)
    return ForeignModel(run, shape, batch if isinstance(batch, int) else None, classes, notes)


def _image_port(model: onnx.OnnxModule) -> onnx.OnnxPort:
    ports = model.inputs
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


def _classes(model: onnx.OnnxModule, given: ImageInput, outputs: int | None) -> tuple[Sequence[str], str]:
    """The names of the classes, and where they come from."""
    if outputs is None:
        if given.labels is not None:
            raise UserError("predict", f"labels= needs a model that classifies, got the output {model.outputs[0]}.")
        return (), "the output is printed as numbers"
    if given.labels is not None:
        found, source = read_labels(given.labels), given.labels
    else:
        found, source = _metadata_labels(model.metadata, outputs)
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
