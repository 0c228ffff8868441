"""The layers that a network can be written with. Names, arguments, defaults and help come from the classes of `nn` themselves.

A row of the table names a class and which of its arguments is the main one; types and help of arguments are declared once by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cache
from typing import Any

from ... import nn
from ...records import dataclass
from ..convnext import ChannelNorm, ConvNeXtBlock
from ..resnet import Shortcut
from . import modules
from .modules import MERGES
from .values import (
    ACTIVATION,
    COUNT,
    FLAG,
    INIT,
    SIZES,
    ValueType,
    choice_type,
    count_type,
    integer_type,
    integers_type,
    number_type,
    padding_type,
    rate_type,
    sizes_type,
)

REQUIRED: Any = object()


@dataclass(frozen=True)
class LayerArgument:
    """An argument of a layer: the name in the text, the one of the constructor, its type, default and help."""

    name: str
    parameter: str
    type: ValueType
    default: Any
    help: str

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED

    @property
    def default_text(self) -> str:
        """The default as the text writes it."""
        if self.default is None:
            return "none"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return (
            self.default
            if isinstance(self.default, str)
            else ""
            if self.is_required or callable(self.default)
            else f"{self.default}"
        )


@dataclass(frozen=True)
class LayerSpec:
    """A kind of layer."""

    name: str
    group: str
    about: str
    make: Callable[..., Any]
    arguments: Mapping[str, LayerArgument]
    main: str | None = None
    axis: int = 1  # of the features: channels of images, the last axis of vectors and sequences
    inferred: tuple[str, ...] = ()  # parameters that are the features of the input
    unpacked: str | None = None  # an argument that the constructor takes as *args
    holds: tuple[str, ...] = ()  # arguments that are lists of layers
    merges: bool = False  # takes several inputs
    fills: Mapping[str, str] = field(default_factory=dict)  # required arguments, as completion writes them

    @property
    def is_structural(self) -> bool:
        return bool(self.holds)


LAYER_LIST = ValueType("layers", "a list of layers", lambda node: node)
BRANCH_LISTS = ValueType("branches", "a list of branches, each a list of layers", lambda node: node)

# Types and help by the constructor's name of an argument; (layer, argument) where a layer means something else.
_TYPES: dict[str | tuple[str, str], tuple[ValueType, str]] = {
    "outputs": (COUNT, "output channels; same, double, half, classes, or a formula such as 4 * width"),
    "kernel": (SIZES, "size of the filter"),
    "stride": (SIZES, "distance between two positions"),
    "padding": (padding_type(("half", "same", "valid")), "border: half keeps the size, with zeros for half the kernel on each side"),
    "dilation": (SIZES, "distance between the elements of a filter"),
    "output_padding": (sizes_type(64, 0), "rows and columns added at the end"),
    "groups": (COUNT, "groups of channels that are not connected; same for one filter a channel"),
    "bias": (FLAG, "add a learned number to each output"),
    "activation": (ACTIVATION, "applied to the result"),
    "gate": (ACTIVATION, "applied to the gates"),
    "init": (INIT, "initial weights"),
    "multiplier": (count_type(64), "filters for each channel"),
    "size": (SIZES, "size of the window"),
    "ceil_mode": (FLAG, "round output sizes up"),
    "count_include_pad": (FLAG, "count the border in means"),
    "eps": (number_type(1e-12, 1.0), "added to the variance"),
    "momentum": (number_type(1e-6, 1.0), "how fast running statistics follow"),
    "affine": (FLAG, "learn a scale and a shift"),
    "scaled": (FLAG, "learn a scale; without, only a shift"),
    "track": (FLAG, "keep running statistics"),
    "rate": (rate_type(), "share that is dropped"),
    "dropout": (rate_type(), "share that is dropped"),
    "drop_path": (rate_type(), "how often the block is skipped in training"),
    "std": (number_type(0.0, 1e3), "standard deviation"),
    "slope": (number_type(), "slope for negative inputs"),
    "alpha": (number_type(), "scale of negative outputs"),
    "threshold": (number_type(), "where the output changes"),
    "value": (number_type(), "output below the threshold"),
    "low": (number_type(), "smallest output"),
    "high": (number_type(), "largest output"),
    "axis": (integer_type(-4, 4), "axis; 0 is the batch"),
    "start": (integer_type(0, 4), "first axis that is flattened"),
    "count": (COUNT, "number of rows, such as classes"),
    "features": (COUNT, "features of each row"),
    "hidden": (COUNT, "hidden features"),
    "heads": (count_type(256), "attention heads"),
    "key_heads": (count_type(256), "heads of keys and values; as many as heads if none"),
    "head_size": (count_type(1 << 14), "features of a query and a key; features / heads if none"),
    "value_size": (count_type(1 << 14), "features of a value; as many as of a key if none"),
    "layers": (count_type(32), "stacked layers"),
    "bidirectional": (FLAG, "both directions in time"),
    "norm_first": (FLAG, "normalize before attention, not after"),
    "rotary": (FLAG, "rotary positions"),
    "alibi": (FLAG, "ALiBi positions"),
    "window": (count_type(16384), "keys up to its own position that a query attends to; all if none"),
    "length": (count_type(16384), "positions"),
    "base": (number_type(1.0, 1e9), "longest wavelength"),
    "scale": (number_type(), "factor"),
    "offset": (number_type(), "added after the factor"),
    "pieces": (count_type(64), "channels of which the largest is taken"),
    "norm": (number_type(1.0, 100.0), "exponent"),
    "squeezed": (COUNT, "channels between the two convolutions"),
    "new": (COUNT, "channels of zeros that are added"),
    "index": (integer_type(-16384, 16384), "step of the sequence; -1 is the last"),
    "beta": (number_type(), "exponent"), "k": (number_type(), "added to the sum"),
    ("reshape", "shape"): (integers_type(-1, 1 << 20), "sizes of one example; one may be -1"),
    ("permute", "axes"): (integers_type(0, 7), "each axis once, the batch first"),
    ("lrn", "size"): (count_type(64), "adjacent channels"),
    ("prelu", "count"): (COUNT, "slopes: 1, or same for one a channel"),
    ("prelu", "start"): (number_type(), "initial slope"),
    ("gelu", "approximate"): (FLAG, "use the approximation by tanh"),
    ("upsample", "scale"): (sizes_type(16), "factor of the size"),
    ("upsample", "mode"): (choice_type("mode", ("nearest", "bilinear")), "how new pixels are made"),
    ("resize", "size"): (sizes_type(4096), "new height and width"),
    ("resize", "mode"): (choice_type("mode", ("nearest", "bilinear")), "how pixels are made"),
    ("center_crop", "size"): (sizes_type(4096), "height and width that stay"),
    ("adaptive_avg_pool", "size"): (sizes_type(64), "height and width of the result"),
    ("adaptive_max_pool", "size"): (sizes_type(64), "height and width of the result"),
    ("pixel_shuffle", "scale"): (count_type(16), "factor of the size"),
    ("pixel_unshuffle", "scale"): (count_type(16), "factor by which the size shrinks"),
    ("shortcut", "stride"): (count_type(64), "every so many pixels are taken"),
    ("embedding", "padding"): (integer_type(0, 1 << 20), "index without a row"),
}  # fmt: skip
for _pool in ("max_pool", "avg_pool", "max_pool1d", "avg_pool1d", "lp_pool"):
    _TYPES[_pool, "padding"] = (padding_type(("same", "valid")), "border around the input")
for _pad in ("zero_pad", "reflect_pad", "replicate_pad"):
    _TYPES[_pad, "padding"] = (padding_type(()), "border, or one for each of height and width")
_TYPES["crop", "border"] = (padding_type(()), "border that is cut off")
_RENAMED = {"outputs": "out"}
_OMITTED = ("bias_init", "algorithm", "batch_first")
_NORMS = {"inferred": ("features",)}

# name: (constructor, main argument, further facts)
_ROWS: dict[str, dict[str, tuple[Callable[..., Any], str | None, dict[str, Any]]]] = {
    "Convolution": {
        "conv": (nn.Conv2d, "out", {"inferred": ("inputs",), "defaults": {"kernel": 3, "padding": "half"}}),
        "conv_norm": (modules.conv_norm, "out", {"inferred": ("inputs",), "defaults": {"padding": "half"}}),
        "conv1d": (nn.Conv1d, "out", {"inferred": ("inputs",), "defaults": {"kernel": 3, "padding": "half"}}),
        "conv3d": (nn.Conv3d, "out", {"inferred": ("inputs",), "defaults": {"kernel": 3, "padding": "half"}}),
        "depthwise_conv": (nn.DepthwiseConv2d, "kernel", {"inferred": ("inputs",), "defaults": {"kernel": 3, "padding": "half"}}),
        "separable_conv": (nn.SeparableConv2d, "out", {"inferred": ("inputs",), "defaults": {"kernel": 3, "padding": "half"}}),
        "conv_transpose": (nn.ConvTranspose2d, "out", {"inferred": ("inputs",), "defaults": {"kernel": 2, "stride": 2}}),
        "squeeze_excite": (modules.squeeze_excite, "squeezed", {"inferred": ("channels",)}),
        "convnext_block": (ConvNeXtBlock, "drop_path", {"inferred": ("channels",), "defaults": {"drop_path": 0.0}}),
        "shortcut": (Shortcut, "new", {}),
    },
    "Linear": {
        "linear": (nn.Linear, "out", {"axis": -1, "inferred": ("inputs",)}),
        "embedding": (nn.Embedding, "features", {"axis": -1, "defaults": {"count": "classes"}}),
    },
    "Pooling": {
        "max_pool": (nn.MaxPool2d, "size", {"defaults": {"size": 2}}), "avg_pool": (nn.AvgPool2d, "size", {"defaults": {"size": 2}}),
        "max_pool1d": (nn.MaxPool1d, "size", {"defaults": {"size": 2}}), "avg_pool1d": (nn.AvgPool1d, "size", {"defaults": {"size": 2}}),
        "lp_pool": (nn.LPPool2d, "size", {"defaults": {"norm": 2.0, "size": 2}}),
        "adaptive_avg_pool": (nn.AdaptiveAvgPool2d, "size", {}), "adaptive_max_pool": (nn.AdaptiveMaxPool2d, "size", {}),
        "global_avg_pool": (nn.GlobalAvgPool, None, {}), "global_max_pool": (nn.GlobalMaxPool, None, {}),
    },
    "Normalization": {
        "batch_norm": (nn.BatchNorm, None, _NORMS), "layer_norm": (nn.LayerNorm, None, {"axis": -1, "inferred": ("shape",)}),
        "rms_norm": (nn.RMSNorm, None, {"axis": -1, **_NORMS}), "group_norm": (nn.GroupNorm, "groups", _NORMS),
        "instance_norm": (nn.InstanceNorm, None, _NORMS), "channel_norm": (ChannelNorm, None, {"inferred": ("channels",)}), "lrn": (nn.LRN, "size", {}),
    },
    "Activation": {
        "relu": (nn.ReLU, None, {}), "relu6": (nn.ReLU6, None, {}), "leaky_relu": (nn.LeakyReLU, "slope", {}), "prelu": (nn.PReLU, "count", {}), "elu": (nn.ELU, "alpha", {}),
        "selu": (nn.SELU, None, {}), "celu": (nn.CELU, "alpha", {}), "gelu": (nn.GELU, None, {}), "silu": (nn.SiLU, None, {}), "mish": (nn.Mish, None, {}),
        "sigmoid": (nn.Sigmoid, None, {}), "tanh": (nn.Tanh, None, {}), "softplus": (nn.Softplus, None, {}), "softsign": (nn.Softsign, None, {}), "softmax": (nn.Softmax, None, {}),
        "log_softmax": (nn.LogSoftmax, None, {}), "log_sigmoid": (nn.LogSigmoid, None, {}), "hard_sigmoid": (nn.HardSigmoid, None, {}), "hard_swish": (nn.HardSwish, None, {}),
        "hard_tanh": (nn.HardTanh, None, {}), "glu": (nn.GLU, None, {}), "maxout": (nn.Maxout, "pieces", {}), "threshold": (nn.Threshold, "threshold", {}),
    },
    "Regularization": {
        "dropout": (nn.Dropout, "rate", {}), "dropout2d": (nn.Dropout2d, "rate", {}), "drop_path": (nn.DropPath, "rate", {}), "alpha_dropout": (nn.AlphaDropout, "rate", {}),
        "gaussian_dropout": (nn.GaussianDropout, "rate", {}), "gaussian_noise": (nn.GaussianNoise, "std", {}),
    },
    "Shape": {
        "flatten": (nn.Flatten, None, {}), "reshape": (nn.Reshape, "shape", {"unpacked": "shape"}), "permute": (nn.Permute, "axes", {"unpacked": "axes"}),
        "zero_pad": (nn.ZeroPad, "padding", {}), "reflect_pad": (nn.ReflectPad, "padding", {}), "replicate_pad": (nn.ReplicatePad, "padding", {}), "crop": (nn.Crop, "border", {}),
        "center_crop": (nn.CenterCrop, "size", {}), "resize": (nn.Resizing, "size", {}), "upsample": (nn.Upsample, "scale", {}), "pixel_shuffle": (nn.PixelShuffle, "scale", {}),
        "pixel_unshuffle": (nn.PixelUnshuffle, "scale", {}), "channel_shuffle": (nn.ChannelShuffle, "groups", {}), "scale": (nn.Rescaling, "scale", {}), "identity": (nn.Identity, None, {}),
    },
    "Sequence": {
        "lstm": (modules.lstm, "hidden", {"axis": -1, "inferred": ("inputs",)}), "gru": (modules.gru, "hidden", {"axis": -1, "inferred": ("inputs",)}),
        "rnn": (modules.rnn, "hidden", {"axis": -1, "inferred": ("inputs",)}),
        "attention": (nn.MultiHeadAttention, "heads", {"axis": -1, "inferred": ("features",)}),
        "transformer_encoder": (nn.TransformerEncoderLayer, "heads", {"axis": -1, "inferred": ("features",)}),
        "transformer_block": (nn.TransformerBlock, "heads", {"axis": -1, "inferred": ("features",)}),
        "feed_forward": (nn.FeedForward, "hidden", {"axis": -1, "inferred": ("features",)}),
        "positional_encoding": (nn.PositionalEncoding, None, {"axis": -1}), "learned_positions": (nn.LearnedPositions, "length", {"axis": -1, "inferred": ("features",), "omitted": ("init",)}),
        "tokens": (modules.Tokens, None, {}), "class_token": (modules.ClassToken, None, {"axis": -1, "inferred": ("features",)}), "at_time": (modules.AtTime, "index", {"axis": -1}),
    },
}  # fmt: skip


def _argument(layer: str, parameter: inspect.Parameter, defaults: Mapping[str, Any]) -> LayerArgument:
    type_, help_ = _TYPES.get((layer, parameter.name)) or _TYPES[parameter.name]
    has_default = parameter.default is not inspect.Parameter.empty
    default = defaults.get(parameter.name, parameter.default if has_default else REQUIRED)
    return LayerArgument(_RENAMED.get(parameter.name, parameter.name), parameter.name, type_, default, help_)


def _leaf(group: str, name: str, row: tuple[Callable[..., Any], str | None, dict[str, Any]]) -> LayerSpec:
    make, main, facts = row
    skipped = (*facts.get("inferred", ()), *facts.get("omitted", ()), *_OMITTED)
    made = [
        _argument(name, parameter, facts.get("defaults", {}))
        for parameter in inspect.signature(make).parameters.values()
        if parameter.name not in skipped
    ]
    about = (inspect.getdoc(make) or name).partition("\n")[0].strip()
    return LayerSpec(
        name, group, about, make, {one.name: one for one in made}, main, facts.get("axis", 1), facts.get("inferred", ()),
        facts.get("unpacked"),
    )  # fmt: skip


def _held(name: str, help_: str, default: Any = REQUIRED, type_: ValueType = LAYER_LIST) -> LayerArgument:
    return LayerArgument(name, name, type_, default, help_)


def _structural() -> list[LayerSpec]:
    activation = LayerArgument("activation", "activation", ACTIVATION, None, "applied to the sum")
    merge = LayerArgument(
        "merge", "merge", choice_type("merge", tuple(MERGES)), "concat", "how the branches are joined"
    )
    axis = LayerArgument("axis", "axis", integer_type(-4, 4), 1, "axis of concat; 1 is the channels")
    times = LayerArgument("times", "times", count_type(1000), REQUIRED, "how often")
    layers = _held("layers", "the layers inside")
    return [
        LayerSpec("residual", "Structure", "layers(x) + shortcut(x), where the shortcut is x itself unless it is given.", nn.Residual,
                  {"layers": layers, "shortcut": _held("shortcut", "layers beside them", ()), "activation": activation}, "layers", holds=("layers", "shortcut")),
        LayerSpec("branches", "Structure", "Several lists of layers with the same input; their outputs are joined.", modules.MergedBranches,
                  {"paths": _held("paths", "the branches; an empty one is the input itself", REQUIRED, BRANCH_LISTS), "merge": merge, "axis": axis}, "paths", holds=("paths",)),
        LayerSpec("repeat", "Structure", "The same layers several times in sequence, each with weights of its own.", nn.Sequential,
                  {"times": times, "layers": layers}, None, holds=("layers",), fills={"times": "2"}),
        LayerSpec("sequence", "Structure", "Layers as one part, with a name of its own.", nn.Sequential, {"layers": layers}, "layers", holds=("layers",)),
    ]  # fmt: skip


def _merging() -> list[LayerSpec]:
    axis = LayerArgument("axis", "axis", integer_type(-4, 4), 1, "axis; 1 is the channels")
    abouts = {
        "concat": "Outputs of earlier layers, one after the other along the channels.", "add": "The sum of the outputs of earlier layers.",
        "multiply": "The product of the outputs of earlier layers.", "average": "The mean of the outputs of earlier layers.",
        "maximum": "The largest of the outputs of earlier layers.",
    }  # fmt: skip
    return [
        LayerSpec(
            name, "Structure", abouts[name], make, {"axis": axis} if name == "concat" else {}, "from", merges=True
        )
        for name, make in MERGES.items()
    ]


@cache
def layer_specs() -> dict[str, LayerSpec]:
    """All layers by name."""
    leaves = [_leaf(group, name, row) for group, rows in _ROWS.items() for name, row in rows.items()]
    return {spec.name: spec for spec in (*leaves, *_structural(), *_merging())}
