"""Builds the network that a .prototxt describes, with the weights of a .caffemodel: those of Caffe and of DIGITS (LeNet, AlexNet, GoogLeNet).

What it computes is what Caffe computes in its test phase: layers for training alone (data, losses, accuracies) are left out, and the result
is that of the last layer. Types of layers that are not known are all listed at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import nn
from ..errors import UserError
from ..ops.convert import asarray, parameter
from ..ops.movement import concat
from ..tensor import Tensor
from .caffe_file import load_caffe, load_caffe_mean
from .prototxt import Message, read_prototxt

SKIPPED = {
    "data", "imagedata", "hdf5data", "dummydata", "memorydata", "input", "accuracy", "silence", "softmaxwithloss",
    "softmaxloss", "split",
}  # fmt: skip
Blobs = Mapping[str, np.ndarray]


class CaffeLayer(NamedTuple):
    """A layer: its name, type (small letters, without underscores), inputs, outputs and description."""

    name: str
    kind: str
    bottoms: list[str]
    tops: list[str]
    about: Message

    def settings(self, name: str) -> Message:
        found = self.about.get(name, [{}])[0]
        return found if isinstance(found, dict) else {}


class CaffeNetwork(nn.Module):
    """The layers of a network of Caffe. `input_shape`: that of one image, if the file says it. `mean` is subtracted from images."""

    def __init__(
        self, layers: list[CaffeLayer], modules: list[nn.Module], inputs: list[str], shape: tuple[int, ...] | None,
        mean: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self.input_shape, self.mean = shape, None if mean is None else asarray(mean)
        self._layers, self._inputs = layers, inputs
        self.parts = dict(zip(_module_names(layers), modules, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        result = x if self.mean is None else x - self.mean
        values: dict[str, Tensor] = dict.fromkeys(self._inputs, result)
        for layer, module in zip(self._layers, self.parts.values(), strict=True):
            given = [values[name] for name in layer.bottoms]
            result = module(given) if isinstance(module, _Join) else module(given[0])
            values |= dict.fromkeys(layer.tops, result)
        return result


def _module_names(layers: list[CaffeLayer]) -> list[str]:
    """The names of the layers as those of modules, each once: Caffe lets several layers have the same one."""
    found: list[str] = []
    for layer in layers:
        name = re.sub(r"\W", "_", layer.name)
        numbered = (f"{name}_{number}" for number in count(2))
        found.append(name if name not in found else next(n for n in numbered if n not in found))
    return found


class _Join(nn.Module):
    """Several inputs: concatenated along the channels, or combined element by element."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def forward(self, xs: list[Tensor]) -> Tensor:
        if self.kind == "concat":
            return concat(xs, axis=1)
        result = xs[0]
        for x in xs[1:]:
            result = result + x if self.kind == "sum" else result * x
        return result


def load_caffe_network(
    prototxt: str | os.PathLike[str], weights: str | os.PathLike[str], mean: str | os.PathLike[str] | None = None
) -> CaffeNetwork:
    """The network of a .prototxt with the weights of a .caffemodel, in evaluation mode. Images are blue, green, red, as Caffe reads them.

    `mean` is a .binaryproto whose image is subtracted from every image first; of one that is larger than images, the centre, as Caffe crops it.

    >>> import tempfile, weft
    >>> from weft.io.protobuf import bytes_field
    >>> blob = bytes_field(7, bytes_field(1, bytes([1, 3]))) + bytes_field(5, np.float32([1, 2, 3]).tobytes())
    >>> weights = bytes_field(100, bytes_field(1, b"fc") + bytes_field(2, b"InnerProduct") + bytes_field(7, blob))
    >>> text = '''input: "data" input_dim: 1 input_dim: 3 layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
    ...     inner_product_param { num_output: 1 bias_term: false } }'''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(f"{folder}/deploy.prototxt").write_text(text), Path(f"{folder}/net.caffemodel").write_bytes(weights)
    ...     network = load_caffe_network(f"{folder}/deploy.prototxt", f"{folder}/net.caffemodel")
    >>> network(weft.asarray([[-1.0, 0.0, 2.0]])).tolist()
    [[5.0]]
    """
    place = Path(prototxt)
    about, blobs = read_prototxt(place), load_caffe(weights)
    layers = [layer for layer in _layers(place, about) if layer.kind not in SKIPPED]
    unknown = sorted({layer.kind for layer in layers if layer.kind not in _BUILDERS})
    if unknown or not layers:
        what = f"layers of the types {', '.join(unknown)}, which are not supported" if unknown else "no layers"
        raise UserError("caffe", f"{place} has {what}. Known: {', '.join(sorted(_BUILDERS))}.")
    modules = [_built(f"{place} with {weights}", layer, blobs) for layer in layers]
    shape = _input_shape(about)
    image = None if mean is None else _mean_image(Path(mean), shape)
    return CaffeNetwork(layers, modules, _inputs(place, layers), shape, image).eval()


def _mean_image(path: Path, shape: tuple[int, ...] | None) -> np.ndarray:
    """The mean of images of this shape."""
    mean = load_caffe_mean(path)
    if shape is None:
        return mean
    channels, height, width = shape
    down, right = mean.shape[1] - height, mean.shape[2] - width
    if mean.shape[0] != channels or down < 0 or right < 0:
        raise UserError("caffe", f"{path}: a mean image of {shape} or larger is required, got {mean.shape}.")
    return mean[:, down // 2 : down // 2 + height, right // 2 : right // 2 + width]


def _layers(place: Path, about: Message) -> list[CaffeLayer]:
    """The layers of the test phase. `layers` is the field of old files, with types such as INNER_PRODUCT."""
    found = []
    for each in [*about.get("layer", []), *about.get("layers", [])]:
        if not isinstance(each, dict) or "name" not in each or "type" not in each:
            raise UserError("caffe", f"{place} has a layer without a name or a type.")
        phases = [rule.get("phase", [""])[0] for rule in each.get("include", []) if isinstance(rule, dict)]
        if phases and "TEST" not in phases:
            continue
        kind = str(each["type"][0]).replace("_", "").lower()
        found.append(
            CaffeLayer(
                str(each["name"][0]), kind, [*map(str, each.get("bottom", []))], [*map(str, each.get("top", []))], each
            )
        )
    return found


def _inputs(place: Path, layers: list[CaffeLayer]) -> list[str]:
    """The name of the images: what is used and comes from no layer."""
    made: set[str] = set()
    found: list[str] = []
    for layer in layers:
        if not layer.bottoms or not layer.tops:
            raise UserError("caffe", f"{place}: the layer {layer.name!r} requires inputs and outputs.")
        found += [name for name in layer.bottoms if name not in made and name not in found]
        made.update(layer.tops)
    if len(found) != 1:
        raise UserError("caffe", f"{place} must have one input, the images; got {', '.join(found) or 'none'}.")
    return found


def _input_shape(about: Message) -> tuple[int, ...] | None:
    """Channels, height and width: of an Input layer, of `input_shape`, or of `input_dim`."""
    sizes: list[Any] = about.get("input_dim", [])
    shapes = list(about.get("input_shape", []))
    for layer in about.get("layer", []):
        for settings in layer.get("input_param", []) if isinstance(layer, dict) else []:
            shapes += settings.get("shape", []) if isinstance(settings, dict) else []
    if shapes and isinstance(shapes[0], dict):
        sizes = shapes[0].get("dim", [])
    return tuple(sizes[1:]) if len(sizes) == 4 and all(isinstance(n, int) and n > 0 for n in sizes) else None


def _built(files: str, layer: CaffeLayer, blobs: Blobs) -> nn.Module:
    try:
        return _BUILDERS[layer.kind](layer, blobs)
    except KeyError as error:
        raise UserError(
            "caffe", f"{files}: the layer {layer.name!r} requires {error.args[0]}, which is missing."
        ) from None
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise UserError("caffe", f"{files}: the layer {layer.name!r} cannot be built: {error}.") from None


# --- the types of layers ----------------------------------------------------------------------------------------------------


def _pair(settings: Message, name: str, short: str, default: int) -> tuple[int, int]:
    """Height and width: given once, twice, or as NAME_h and NAME_w."""
    values = settings.get(name, [])
    height = settings.get(f"{short}_h", values[:1] or [default])[0]
    width = settings.get(f"{short}_w", values[1:2] or values[:1] or [default])[0]
    return _whole(height, name), _whole(width, name)


def _whole(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"a whole number is required as {name}, got {value!r}")
    return value


def _convolution(layer: CaffeLayer, blobs: Blobs) -> nn.Module:
    settings = layer.settings("convolution_param")
    groups = _whole(settings.get("group", [1])[0], "group")
    weight = _blob(blobs, layer, "weight")
    if weight.ndim != 4:
        raise ValueError(f"weights of 4 axes are required, got {weight.shape}")
    size = _pair(settings, "kernel_size", "kernel", 1)
    if weight.shape[2:] != size:
        raise ValueError(f"filters of {size} are described, and the .caffemodel has {weight.shape[2:]}")
    bias = bool(settings.get("bias_term", [True])[0])
    made = nn.Conv2d(
        weight.shape[1] * groups, weight.shape[0], size, groups=groups, bias=bias,
        stride=_pair(settings, "stride", "stride", 1), padding=_pair(settings, "pad", "pad", 0),
        dilation=_pair(settings, "dilation", "dilation", 1), init="zeros",
    )  # fmt: skip
    return _filled(made, layer, blobs, bias)


def _inner_product(layer: CaffeLayer, blobs: Blobs) -> nn.Module:
    bias = bool(layer.settings("inner_product_param").get("bias_term", [True])[0])
    outputs, inputs = _blob(blobs, layer, "weight").shape[-2:]  # old files have four axes
    linear = nn.Linear(inputs, outputs, bias=bias, init="zeros")
    return nn.Sequential(nn.Flatten(), _filled(linear, layer, blobs, bias))


def _filled(made: nn.Module, layer: CaffeLayer, blobs: Blobs, bias: bool) -> nn.Module:
    """The layer with its blobs."""
    own = made.named_tensors()
    roles = ("weight", "bias") if bias else ("weight",)
    found = {}
    for role in roles:
        values = _blob(blobs, layer, role)
        if values.size != int(np.prod(own[role].shape)):
            raise ValueError(f"its {role} has the shape {values.shape}, and {own[role].shape} is needed")
        found[role] = values.reshape(own[role].shape).astype(np.float32)
    made.load(found)
    return made


def _blob(blobs: Blobs, layer: CaffeLayer, role: str) -> np.ndarray:
    name = f"{layer.name}.{role}"
    if name not in blobs:
        raise KeyError(f"{name} in the .caffemodel")
    return blobs[name]


def _pooling(layer: CaffeLayer, blobs: Blobs) -> nn.Module:
    settings = layer.settings("pooling_param")
    average = settings.get("pool", ["MAX"])[0] in ("AVE", 1)
    if settings.get("global_pooling", [False])[0] is True:
        return nn.AdaptiveAvgPool2d(1) if average else nn.AdaptiveMaxPool2d(1)
    size, stride = _pair(settings, "kernel_size", "kernel", 1), _pair(settings, "stride", "stride", 1)
    make = nn.AvgPool2d if average else nn.MaxPool2d
    return make(size, stride=stride, padding=_pair(settings, "pad", "pad", 0), ceil_mode=True)


def _lrn(layer: CaffeLayer, blobs: Blobs) -> nn.Module:
    settings = layer.settings("lrn_param")
    if settings.get("norm_region", ["ACROSS_CHANNELS"])[0] not in ("ACROSS_CHANNELS", 0):
        raise ValueError("norm_region ACROSS_CHANNELS is required")
    alpha, beta, k = (float(settings.get(n, [d])[0]) for n, d in (("alpha", 1.0), ("beta", 0.75), ("k", 1.0)))
    return nn.LRN(_whole(settings.get("local_size", [5])[0], "local_size"), alpha=alpha, beta=beta, k=k)


def _relu(layer: CaffeLayer, blobs: Blobs) -> nn.Module:
    slope = float(layer.settings("relu_param").get("negative_slope", [0])[0])
    return nn.LeakyReLU(slope) if slope else nn.ReLU()


def _dropout(layer: CaffeLayer, blobs: Blobs) -> nn.Module:
    return nn.Dropout(float(layer.settings("dropout_param").get("dropout_ratio", [0.5])[0]))


def _eltwise(layer: CaffeLayer, blobs: Blobs) -> nn.Module:
    settings = layer.settings("eltwise_param")
    operation = settings.get("operation", ["SUM"])[0]
    if operation not in ("SUM", 1, "PROD", 0) or "coeff" in settings:
        raise ValueError("a sum or a product without coefficients is required")
    return _Join("sum" if operation in ("SUM", 1) else "product")


class _Power(nn.Module):
    """(shift + scale * x) ** power: DIGITS scales the pixels for LeNet by it."""

    def __init__(self, power: float, scale: float, shift: float) -> None:
        self.power, self.scale, self.shift = power, scale, shift

    def forward(self, x: Tensor) -> Tensor:
        inside = x * self.scale + self.shift
        return inside if self.power == 1.0 else inside**self.power


def _power(layer: CaffeLayer, blobs: Blobs) -> nn.Module:
    settings = layer.settings("power_param")
    power, scale, shift = (float(settings.get(n, [d])[0]) for n, d in (("power", 1.0), ("scale", 1.0), ("shift", 0.0)))
    return _Power(power, scale, shift)


class _ByChannel(nn.Module):
    """x * scale + shift, with a number for each channel."""

    def __init__(self, scale: np.ndarray, shift: np.ndarray) -> None:
        self.scale, self.shift = (parameter(values.ravel().astype(np.float32)) for values in (scale, shift))

    def forward(self, x: Tensor) -> Tensor:
        one_each = (-1, *(1,) * (x.ndim - 2))
        return x * self.scale.reshape(one_each) + self.shift.reshape(one_each)


def _batch_norm(layer: CaffeLayer, blobs: Blobs) -> nn.Module:
    """Mean and variance are sums: the third blob says of how many."""
    eps = float(layer.settings("batch_norm_param").get("eps", [1e-5])[0])
    mean, variance, total = (_blob(blobs, layer, role).astype(np.float64).ravel() for role in ("weight", "bias", "2"))
    if mean.shape != variance.shape or total.size != 1:
        raise ValueError(
            f"a mean, a variance and a count are required, got {mean.shape}, {variance.shape}, {total.shape}"
        )
    factor = 1.0 / total[0] if total[0] else 0.0
    scale = 1.0 / np.sqrt(np.maximum(variance * factor, 0.0) + eps)
    return _ByChannel(scale, -mean * factor * scale)


def _scale(layer: CaffeLayer, blobs: Blobs) -> nn.Module:
    settings = layer.settings("scale_param")
    if settings.get("axis", [1])[0] != 1 or settings.get("num_axes", [1])[0] != 1:
        raise ValueError("a scale for each channel is required (axis: 1, num_axes: 1)")
    scale = _blob(blobs, layer, "weight").ravel()
    bias = _blob(blobs, layer, "bias").ravel() if settings.get("bias_term", [False])[0] else np.zeros(scale.shape)
    if bias.shape != scale.shape:
        raise ValueError(f"as many biases as scales are required, got {bias.shape} and {scale.shape}")
    return _ByChannel(scale, bias)


_BUILDERS: dict[str, Callable[[CaffeLayer, Blobs], nn.Module]] = {
    "convolution": _convolution,
    "innerproduct": _inner_product,
    "pooling": _pooling,
    "lrn": _lrn,
    "relu": _relu,
    "dropout": _dropout,
    "eltwise": _eltwise,
    "concat": lambda layer, blobs: _Join("concat"),
    "flatten": lambda layer, blobs: nn.Flatten(),
    "softmax": lambda layer, blobs: nn.Softmax(axis=1),
    "sigmoid": lambda layer, blobs: nn.Sigmoid(),
    "tanh": lambda layer, blobs: nn.Tanh(),
    "power": _power,
    "batchnorm": _batch_norm,
    "scale": _scale,
}
