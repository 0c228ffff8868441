"""A network of nn modules as text, where the language can express it; parameters keep their order and, below Sequentials, their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any

from ... import nn
from ...errors import UserError
from ...nn.activations import NAMES as ACTIVATION_NAMES
from ...nn.init import Initializer
from ...nn.module import Init, is_made, recording_inits
from ...nn.summary import summary
from ...records import dataclass
from ...tensor import Tensor
from ..building_blocks import HE_NORMAL, Branches, SqueezeExcite
from ..catalogue import FACTS
from ..convnext import ChannelNorm, ConvNeXtBlock
from ..densenet import DenseLayer
from ..googlenet import GoogLeNet
from ..gpt import GPT
from ..inception import InceptionV3
from ..inception_resnet import InceptionResNetBlock
from ..recurrent import CharLSTM
from ..registry import find
from ..resnet import Shortcut
from ..unet import UNet
from ..vit import ViT
from .modules import ACTIVATIONS
from .parse import parse_network
from .plan import PlannedLayer, half_padding, plan_network
from .schema import LayerSpec, layer_specs
from .values import HE_NORMAL_OUT
from .write import WrittenLayer, written

HIDDEN = (300, 100)  # hidden sizes of an mlp that starts from the zoo
VOCABULARY = 65
_CLASS_OF_ACTIVATION = {make: name for name, make in reversed(ACTIVATIONS.items()) if name not in ("swish", "linear")}


class NotExpressible(UserError):
    """The language of networks has no layer for a part of this network."""

    def __init__(self, why: str) -> None:
        super().__init__("network", f"this network cannot be written as text: {why}.")


@dataclass(frozen=True)
class NetworkText:
    """A network as text. `names` maps the names of its parameters and state to those of the module that it was made of."""

    text: str
    names: Mapping[str, str]


def zoo_network_as_text(name: str) -> NetworkText:
    """A network of the zoo as text, for its usual input.

    >>> print(zoo_network_as_text("lenet_300_100").text.partition("layers:")[2].strip())
    - flatten
    - linear: {out: 300, activation: relu}
    - linear: {out: 100, activation: relu}
    - linear: {out: classes, init: glorot_uniform}
    """
    facts, make = FACTS[name], find(name)
    known = inspect.signature(make).parameters
    shape = facts.input or (128,)
    classes = facts.classes or VOCABULARY
    with recording_inits() as inits:
        if facts.takes_vectors and name != "lenet_300_100":
            sizes = (prod(shape), *HIDDEN, classes) if name == "mlp" else (prod(shape), classes)
            model: nn.Module = make(*sizes)
        else:
            wanted = {"classes": classes, "vocabulary": VOCABULARY, "channels": shape[0]}
            model = make(**{key: value for key, value in wanted.items() if key in known})
        if not is_made(model):
            summary(model, (1, *shape))  # finds the sizes that follow from the input
        about = (inspect.getdoc(make) or "").partition("\n")[0]
        return network_as_text(
            model, shape, classes, name=f"{name}_copy", about=about, inits=inits, flat=facts.takes_vectors
        )


def network_as_text(
    model: nn.Module, input_shape: Sequence[int], classes: int, *, name: str = "", about: str = "",
    inits: Mapping[Tensor, Init] | None = None, flat: bool = False,
) -> NetworkText:  # fmt: skip
    """Any network that is made of layers the language has; NotExpressible names the part that it does not have."""
    converter = _Converter(classes, inits or {})
    layers = converter.sequence(model, "")
    if flat and (not layers or layers[0].name != "flatten"):
        layers = [WrittenLayer("flatten"), *layers]
        converter.leaves.insert(0, _Leaf("-"))
    _write_classes(layers, classes)
    text = written(layers, name=name, about=about, input_shape=tuple(input_shape), classes=classes)
    plan = plan_network(parse_network(text))
    return NetworkText(text, _names(plan.layers, converter.leaves, model))


@dataclass(frozen=True)
class _Leaf:
    """A layer of the text without parts, and the module that it stands for; `renamed` maps its tensors to those of the module."""

    path: str
    renamed: Mapping[str, str] = field(default_factory=dict)


def _names(layers: Sequence[PlannedLayer], leaves: Sequence[_Leaf], model: nn.Module) -> dict[str, str]:
    found = _leaf_layers(layers)
    if len(found) != len(leaves):
        raise NotExpressible(f"its text has {len(found)} layers instead of {len(leaves)}")
    known = set(model.named_tensors())
    names: dict[str, str] = {}
    for layer, leaf in zip(found, leaves, strict=True):
        inside = leaf.renamed or {
            path.removeprefix(f"{leaf.path}."): path
            for path in known
            if path.startswith(f"{leaf.path}.") or not leaf.path
        }
        names |= {f"{layer.path}.{mine}": theirs for mine, theirs in inside.items()}
    return names


def _leaf_layers(layers: Sequence[PlannedLayer]) -> list[PlannedLayer]:
    return [
        leaf
        for one in layers
        for leaf in ([one] if not one.parts else [x for part in one.parts for x in _leaf_layers(part)])
    ]


def _write_classes(layers: list[WrittenLayer], classes: int) -> None:
    """The last layer with weights gives one output for each class."""
    for layer in reversed(layers):
        if layer.name in ("linear", "conv") and layer.arguments["out"] == str(classes):
            layer.arguments["out"] = "classes"
        if layer.name in ("linear", "conv") or layer.parts:
            return


class _Converter:
    """Walks modules and notes, for each layer without parts, which module it stands for."""

    def __init__(self, classes: int, inits: Mapping[Tensor, Init]) -> None:
        self.classes, self.inits, self.leaves = classes, inits, list[_Leaf]()

    def sequence(self, module: nn.Module, path: str) -> list[WrittenLayer]:
        """A module as a list of layers; that of a Sequential are its own."""
        if isinstance(module, nn.Sequential) and self._conv_norm(module) is None:
            return [self.layer(one, _join(path, f"layers.{key}")) for key, one in module.named().items()]
        if type(module) in _INLINED:
            return _INLINED[type(module)](self, module, path)
        return [self.layer(module, path)]

    def layer(self, module: nn.Module, path: str) -> WrittenLayer:
        if isinstance(module, nn.Sequential):
            together = self._conv_norm(module)
            if together is not None:
                self.leaves.append(_Leaf(path))
                return together
            return WrittenLayer("sequence", {}, {"layers": self.sequence(module, path)})
        if type(module) in _BLOCKS:
            return _BLOCKS[type(module)](self, module, path)
        if type(module) in _INLINED:
            return WrittenLayer("sequence", {}, {"layers": _INLINED[type(module)](self, module, path)})
        made = self._leaf(module)
        self.leaves.append(_Leaf(path))
        return made

    def _leaf(self, module: nn.Module) -> WrittenLayer:
        spec = _SPECS.get(type(module))
        if spec is None:
            raise NotExpressible(f"there is no layer for {type(module).__name__}")
        arguments = {}
        for argument in spec.arguments.values():
            value = self._value(module, argument.parameter)
            if argument.parameter == "padding" and argument.default == "half" and _is_half(module, value):
                continue
            if argument.type.name == "initializer":
                text = _init_text(value)
                if text not in (None, _init_text(argument.default)) and (type(module), text) != (
                    nn.Embedding,
                    "normal(1)",
                ):
                    arguments[argument.name] = str(text)
            elif value != argument.default or argument.is_required:
                arguments[argument.name] = _text(value)
        return WrittenLayer(spec.name, arguments)

    def _value(self, module: nn.Module, parameter: str) -> Any:
        if parameter == "init":
            weight = getattr(module, "weight", None)
            return self.inits.get(weight, "") if isinstance(weight, Tensor) else ""
        getter = _GETTERS.get((type(module), parameter)) or _GETTERS.get((None, parameter))
        value = getter(module) if getter else getattr(module, parameter)
        if parameter == "activation" and value is not None and value not in ACTIVATION_NAMES:
            raise NotExpressible(f"the activation of {type(module).__name__} has no name")
        return _simple(value)

    def _conv_norm(self, module: nn.Sequential) -> WrittenLayer | None:
        """Convolution, batch norm and activation as one layer."""
        parts = list(module)
        if not 2 <= len(parts) <= 3 or type(parts[0]) is not nn.Conv2d or type(parts[1]) is not nn.BatchNorm2d:
            return None
        if len(parts) == 3 and type(parts[2]) not in _CLASS_OF_ACTIVATION:
            return None
        conv = self._leaf(parts[0]).arguments
        if conv.pop("bias", "true") != "false" or {"activation", "dilation"} & set(conv):
            return None
        init = conv.pop("init", "he_uniform")
        norm = self._leaf(parts[1]).arguments
        if {"affine", "scaled", "track"} & set(norm):
            return None
        made = {**conv, **norm}
        after = _CLASS_OF_ACTIVATION[type(parts[2])] if len(parts) == 3 else "none"
        made |= {"activation": after} if after != "relu" else {}
        made |= {"init": init} if self.inits and init != HE_NORMAL_OUT else {}
        return WrittenLayer(
            "conv_norm",
            {name: made[name] for name in layer_specs()["conv_norm"].arguments if name in made},
        )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _simple(value: Any) -> Any:
    """(3, 3) is 3."""
    if isinstance(value, tuple) and value and all(one == value[0] for one in value) and len(value) > 1:
        return (
            _simple(value[0])
            if isinstance(value[0], int)
            else _pair(value[0])
            if _pair(value[0]) is not None
            else value
        )
    return value


def _pair(value: Any) -> int | None:
    return value[0] if isinstance(value, tuple) and len(value) == 2 and value[0] == value[1] else None


def _is_half(module: Any, value: Any) -> bool:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or isinstance(value, str):
        return False
    kernel = _simple(tuple(weight.shape[2:]))
    half = half_padding(kernel, _simple(module.dilation))
    pairs = tuple((one, one) for one in half) if isinstance(half, tuple) else half
    return bool(value in (half, pairs))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, tuple | list):
        return f"[{', '.join(_text(one) for one in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _init_text(value: Any) -> str | None:
    """How the text writes an initializer; None if it cannot."""
    if value is HE_NORMAL:
        return HE_NORMAL_OUT
    if isinstance(value, Initializer):
        return value.text if "," not in value.text else None
    return value if isinstance(value, str) and value else None


# --- how settings are read from modules -----------------------------------------------------------------------------------------------

_GETTERS: dict[tuple[type | None, str], Callable[[Any], Any]] = {
    (None, "outputs"): lambda m: m.weight.shape[0],
    (None, "groups"): lambda m: "same" if "weight" in vars(m) and m.groups > 1 and m.weight.shape[1] == 1 else m.groups,
    (None, "kernel"): lambda m: _simple(tuple(m.weight.shape[2:])),
    (None, "bias"): lambda m: m.bias is not None,
    (None, "affine"): lambda m: m.shift is not None,
    (None, "scaled"): lambda m: m.scale is not None or m.shift is None,
    (nn.ConvTranspose2d, "outputs"): lambda m: m.weight.shape[1] * m.groups,
    (nn.DepthwiseConv2d, "kernel"): lambda m: _simple(tuple(m.weight.shape[2:])),
    (nn.Embedding, "count"): lambda m: m.weight.shape[0],
    (nn.Embedding, "features"): lambda m: m.weight.shape[1],
    (nn.PReLU, "count"): lambda m: m.slope.shape[0],
    (nn.PReLU, "start"): lambda m: 0.25,
    (ConvNeXtBlock, "drop_path"): lambda m: m.drop.rate,
    (nn.MultiHeadAttention, "bias"): lambda m: m.query.bias is not None,
    (nn.MultiHeadAttention, "key_heads"): lambda m: _key_heads(m),
    (nn.MultiHeadAttention, "head_size"): lambda m: None if m.head_size * m.heads == m.features else m.head_size,
    (nn.MultiHeadAttention, "value_size"): lambda m: None if m.value_size == m.head_size else m.value_size,
    **{(layer, name): getter for layer in (nn.TransformerEncoderLayer, nn.TransformerBlock) for name, getter in {
        "heads": lambda m: m.attention.heads,
        "hidden": lambda m: _hidden(m),
        "activation": lambda m: m.feed_forward.first.activation,
        "key_heads": lambda m: _key_heads(m.attention),
        "rotary": lambda m: m.attention.rotary,
        "alibi": lambda m: m.attention.alibi,
        "window": lambda m: m.attention.window,
        "eps": lambda m: m.attention_norm.eps,
    }.items()},
}  # fmt: skip


def _key_heads(attention: nn.MultiHeadAttention) -> int | None:
    return None if attention.key_heads == attention.heads else attention.key_heads


def _hidden(module: Any) -> int | None:
    hidden, features = module.feed_forward.first.weight.shape
    return None if hidden == 4 * features else int(hidden)


def _class_specs() -> dict[type, LayerSpec]:
    found = {
        spec.make: spec
        for spec in layer_specs().values()
        if isinstance(spec.make, type) and not spec.is_structural and not spec.merges
    }
    batch_norm = layer_specs()["batch_norm"]
    return {**found, nn.BatchNorm1d: batch_norm, nn.BatchNorm2d: batch_norm, nn.BatchNorm3d: batch_norm}


_SPECS = _class_specs()


# --- blocks and networks of the zoo ---------------------------------------------------------------------------------------------------


def _residual(to: _Converter, m: nn.Residual, path: str) -> WrittenLayer:
    if m.activation is not None and m.activation not in ACTIVATION_NAMES:
        raise NotExpressible("the activation of a residual block has no name")
    parts = {"layers": to.sequence(m.body, _join(path, "body"))}
    if m.shortcut is not None:
        parts["shortcut"] = to.sequence(m.shortcut, _join(path, "shortcut"))
    return WrittenLayer("residual", {} if m.activation is None else {"activation": str(m.activation)}, parts)


def _branches(to: _Converter, m: Branches, path: str) -> WrittenLayer:
    return WrittenLayer(
        "branches", {}, {"paths": [to.sequence(one, _join(path, f"branches.{i}")) for i, one in enumerate(m.branches)]}
    )


def _dense(to: _Converter, m: DenseLayer, path: str) -> WrittenLayer:
    return WrittenLayer("branches", {}, {"paths": [[], to.sequence(m.body, _join(path, "body"))]})


def _squeeze_excite(to: _Converter, m: SqueezeExcite, path: str) -> WrittenLayer:
    to.leaves.append(_Leaf(path))
    arguments = {"squeezed": str(m.reduce.weight.shape[0])}
    for name, module, default in (("activation", m.activation, nn.SiLU), ("gate", m.gate, nn.Sigmoid)):
        if type(module) is not default:
            arguments[name] = _CLASS_OF_ACTIVATION[type(module)]
    return WrittenLayer("squeeze_excite", arguments)


def _inception_resnet(to: _Converter, m: InceptionResNetBlock, path: str) -> WrittenLayer:
    layers = [to.layer(m.branches, _join(path, "branches")), to.layer(m.up, _join(path, "up"))]
    if m.scale != 1.0:
        layers.append(WrittenLayer("scale", {"scale": f"{m.scale:g}"}))
        to.leaves.append(_Leaf("-"))
    return WrittenLayer("residual", {} if m.last else {"activation": "relu"}, {"layers": layers})


def _cannot_gpt(to: _Converter, m: GPT, path: str) -> WrittenLayer:
    raise NotExpressible(
        "its last layer shares the weights of its embedding. Write embedding, learned_positions, transformer_block and linear for a "
        "network like it"
    )


def _googlenet(to: _Converter, m: GoogLeNet, path: str) -> list[WrittenLayer]:
    if m.heads:
        raise NotExpressible("it has auxiliary heads")
    made = to.sequence(m.stem, _join(path, "stem"))
    for key, part in m.parts.items():
        made += to.sequence(part, _join(path, f"parts.{key}"))
    return [*made, *to.sequence(m.top, _join(path, "top"))]


def _inception(to: _Converter, m: InceptionV3, path: str) -> list[WrittenLayer]:
    if m.aux is not None:
        raise NotExpressible("it has an auxiliary head")
    return [one for part in ("lower", "upper", "top") for one in to.sequence(getattr(m, part), _join(path, part))]


def _unet(to: _Converter, m: UNet, path: str) -> list[WrittenLayer]:
    def block(name: str, module: nn.Module, place: str) -> WrittenLayer:
        made = to.layer(module, _join(path, place))
        return WrittenLayer(made.name, {**made.arguments, "name": name}, made.parts)

    made = [block("level0", m.first, "first")]
    for i, down in enumerate(m.down):
        made += [to.layer(m.pool, "-"), block(f"level{i + 1}", down, f"down.{i}")]
    for i, (grow, up) in enumerate(zip(m.grow, m.up, strict=True)):
        made.append(to.layer(grow, _join(path, f"grow.{i}")))
        made.append(WrittenLayer("concat", {"from": f"[level{len(m.down) - 1 - i}, previous]"}))
        to.leaves.append(_Leaf("-"))
        made.append(to.layer(up, _join(path, f"up.{i}")))
    return [*made, to.layer(m.top, _join(path, "top"))]


def _vit(to: _Converter, m: ViT, path: str) -> list[WrittenLayer]:
    made = [to.layer(m.patches, _join(path, "patches"))]
    made += [
        WrittenLayer("tokens"),
        WrittenLayer("class_token"),
        WrittenLayer("learned_positions", {"length": str(m.places.shape[1])}),
    ]
    to.leaves += [
        _Leaf("-"),
        _Leaf("-", {"token": _join(path, "first")}),
        _Leaf("-", {"weight": _join(path, "places")}),
    ]
    made += [to.layer(m.dropout, "-")] if m.dropout.rate else []
    made += [to.layer(block, _join(path, f"blocks.{i}")) for i, block in enumerate(m.blocks)]
    made += [to.layer(m.norm, _join(path, "norm")), WrittenLayer("at_time", {"index": "0"})]
    to.leaves.append(_Leaf("-"))
    return [*made, to.layer(m.top, _join(path, "top"))]


def _char_lstm(to: _Converter, m: CharLSTM, path: str) -> list[WrittenLayer]:
    embedding = to.layer(m.embedding, _join(path, "embedding"))
    if m.embedding.weight.shape[0] == to.classes:
        embedding.arguments.pop("count", None)
    hidden = m.lstm.forward_layers[0].hidden
    settings = {"hidden": str(hidden), "layers": str(m.lstm.layers), "dropout": f"{m.lstm.dropout:g}"}
    defaults = {"layers": "1", "dropout": "0"}
    lstm = WrittenLayer("lstm", {name: value for name, value in settings.items() if defaults.get(name) != value})
    inside = list(m.lstm.named_tensors())
    to.leaves.append(_Leaf("-", {f"recurrent.{name}": _join(path, f"lstm.{name}") for name in inside}))
    return [embedding, lstm, to.layer(m.top, _join(path, "top"))]


_BLOCKS: dict[type, Callable[..., WrittenLayer]] = {
    nn.Residual: _residual, Branches: _branches, DenseLayer: _dense, SqueezeExcite: _squeeze_excite,
    InceptionResNetBlock: _inception_resnet, GPT: _cannot_gpt,
}  # fmt: skip
_INLINED: dict[type, Callable[..., list[WrittenLayer]]] = {
    GoogLeNet: _googlenet, InceptionV3: _inception, UNet: _unet, ViT: _vit, CharLSTM: _char_lstm,
}  # fmt: skip
_ = (ChannelNorm, Shortcut)  # layers of the language by themselves
