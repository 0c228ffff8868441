"""From layers as they were written to layers with all sizes known: the network is traced layer by layer, without values.

An error of a layer becomes a problem at its line. Repeated layers are written out, blocks are expanded; how many there can be is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any

from ... import nn
from ...dtypes import DEFAULT_FLOAT, DType, int32
from ...errors import WeftError
from ...graph.node import Type
from ...nn.module import without_values
from ...records import dataclass
from ...tensor import Tensor
from ...tracing.trace import trace
from ...tree import flatten
from .modules import INPUT, PREVIOUS, MergedBranches, NamedLayers, merge_layer
from .parse import Definition, LayerText
from .problems import DefinitionError, Fix, Place, TextProblem
from .values import CLASSES, Formula, InvalidValue, as_init

BATCH = 3  # of the trace: a size that no other axis is likely to have
MOST_LAYERS = 2000
COUNTED = {
    "attention": 5,
    "transformer_encoder": 10,
    "transformer_block": 10,
    "lstm": 10,
    "gru": 10,
    "rnn": 10,
}  # layers of many parts
MOST_PARAMETERS = 10**10
MOST_ELEMENTS = 1 << 27  # of the output of a layer for one example
LONGEST_SEQUENCE = 16384  # that attention is computed over
MOST_TABLED = 1 << 24  # numbers in all tables of positions, which exist as arrays while the network is traced
USUAL_CLASSES = 10
USUAL_INPUT = (3, 224, 224)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class PlannedLayer:
    """A layer with its place in the network, the arguments of its constructor, and the shapes of one example."""

    text: LayerText
    key: str  # among its siblings
    path: str
    arguments: Mapping[str, Any]
    parts: tuple[tuple[PlannedLayer, ...], ...] = ()
    inputs: tuple[Shape, ...] = ()
    output: Shape = ()
    parameters: int = 0

    @property
    def kind(self) -> str:
        return "block" if self.text.block is not None else self.text.spec.name


@dataclass(frozen=True)
class NetworkPlan:
    """A network whose sizes are known."""

    definition: Definition
    layers: tuple[PlannedLayer, ...]
    input: Shape
    output: Shape
    classes: int
    dtype: DType = field(default=DEFAULT_FLOAT)

    def build(self) -> nn.Module:
        """The network with initial values, or without them inside `without_values()`."""
        return _chain(self.layers, always=True)


def plan_network(
    definition: Definition, input_shape: Sequence[int] | None = None, classes: int | None = None
) -> NetworkPlan:
    """Find all sizes for examples of this shape; by default, that of the text."""
    shape = tuple(input_shape or definition.input or USUAL_INPUT)
    count = classes or definition.classes or USUAL_CLASSES
    takes_ids = _first_leaf(definition.layers) == "embedding"
    dtype = int32 if takes_ids else DEFAULT_FLOAT
    planner = _NetworkPlanner(definition, count)
    results: list[tuple[tuple[PlannedLayer, ...], Any]] = []

    def walk(x: Tensor) -> Tensor:
        results.append(planner.sequence(definition.layers, x, "layers", {CLASSES: count}))
        return results[-1][1]  # type: ignore[no-any-return]

    with without_values():
        trace(walk, [Type((BATCH, *shape), dtype)], flatten((0,))[1])
    layers, y = results[0]
    plan = NetworkPlan(definition, layers, shape, tuple(y.shape[1:]), count, dtype)
    _check_output(plan)
    return plan


def _first_leaf(layers: Sequence[LayerText]) -> str:
    while layers:
        first = layers[0]
        if first.block is not None:
            layers = first.block.layers
        elif first.spec.name in ("sequence", "repeat"):
            layers = first.arguments["layers"]
        else:
            return first.spec.name
    return ""


class _NetworkPlanner:
    """Walks the layers with a tensor that has a shape and no values."""

    def __init__(self, definition: Definition, classes: int) -> None:
        self.definition, self.count, self.parameters, self.tabled = definition, 0, 0, 0

    def sequence(
        self, layers: Sequence[LayerText], x: Tensor, path: str, names: Mapping[str, int]
    ) -> tuple[tuple[PlannedLayer, ...], Tensor]:
        """Layers in sequence. `names` are those of formulas."""
        planned: list[PlannedLayer] = []
        known = {INPUT: x, PREVIOUS: x}
        keys: set[str] = set()
        x = self._steps(layers, x, path, names, planned, known, keys)
        return tuple(planned), x

    def _steps(
        self, layers: Sequence[LayerText], x: Tensor, path: str, names: Mapping[str, int], planned: list[PlannedLayer],
        known: dict[str, Tensor], keys: set[str],
    ) -> Tensor:  # fmt: skip
        for layer in layers:
            self._count(layer)
            if layer.spec.name == "repeat" and layer.block is None:
                times = self._known(layer, names, x)["times"]
                for _ in range(times):
                    self._count(layer)
                    x = self._steps(layer.arguments["layers"], x, path, names, planned, known, keys)
                continue
            known[PREVIOUS] = x
            key = _free_key(layer.name or str(len(planned)), keys)
            keys.add(key)
            inputs = tuple(known[name] for name, _ in layer.sources) if layer.sources else (x,)
            made, x = self._layer(layer, key, inputs, f"{path}.{key}", names)
            planned.append(made)
            if layer.name is not None:
                known[layer.name] = x
        return x

    def _count(self, layer: LayerText) -> None:
        self.count += COUNTED.get(layer.spec.name, 1)
        if self.count > MOST_LAYERS:
            raise _error(
                layer.place, f"A network of at most {MOST_LAYERS:,} layers is accepted, got more.", "Repeat less."
            )

    def _layer(
        self, layer: LayerText, key: str, inputs: tuple[Tensor, ...], path: str, names: Mapping[str, int]
    ) -> tuple[PlannedLayer, Tensor]:
        known = self._known(layer, names, inputs[0])
        shapes = tuple(tuple(one.shape[1:]) for one in inputs)
        try:
            if layer.block is not None or layer.spec.is_structural:
                parts, y = self._structural(layer, inputs[0], path, names, known)
                counted = sum(one.parameters for part in parts for one in part)
                made = PlannedLayer(layer, key, path, known, parts, shapes, tuple(y.shape[1:]), counted)
            else:
                y, counted = self._leaf(layer, known, inputs)
                made = PlannedLayer(layer, key, path, known, (), shapes, tuple(y.shape[1:]), counted)
        except WeftError as error:
            if isinstance(error, DefinitionError):
                raise
            raise _error(layer.place, _sentence(error.message)) from None
        self._check_result(layer, y)
        return made, y

    def _known(self, layer: LayerText, names: Mapping[str, int], x: Tensor) -> dict[str, Any]:
        """The arguments of the constructor, formulas as numbers, with those that follow from the input."""
        spec = layer.spec
        size = x.shape[spec.axis] if x.ndim > 1 else 1
        words = {**names, "same": size, "double": 2 * size, **({} if size % 2 else {"half": size // 2})}
        try:
            given = {name: _resolved(value, words) for name, value in layer.arguments.items() if name not in spec.holds}
        except InvalidValue as wrong:
            raise DefinitionError([wrong.problem]) from None
        known: dict[str, Any] = {}
        for argument in spec.arguments.values():
            if argument.name not in spec.holds:
                value = given.get(argument.name, argument.default) if argument.name in given else argument.default
                if isinstance(value, str) and value == CLASSES:
                    value = names[CLASSES]
                known[argument.parameter] = (
                    as_init(value) if argument.type.name == "initializer" else _resolved(value, words)
                )
        if known.get("padding") == "half":
            known["padding"] = half_padding(known["kernel"], known.get("dilation", 1))
        if layer.block is None:
            known |= dict.fromkeys(spec.inferred, size)
        return known

    def _leaf(self, layer: LayerText, known: Mapping[str, Any], inputs: tuple[Tensor, ...]) -> tuple[Tensor, int]:
        self._check_input(layer, inputs[0])
        self._check_tables(layer, known, inputs[0])
        module = made_layer(layer, known).eval()
        counted = sum(prod(t.shape) for t in module.named_parameters().values())
        self.parameters += counted
        if self.parameters > MOST_PARAMETERS:
            raise _error(
                layer.place,
                f"A network of at most {MOST_PARAMETERS:,} parameters is accepted, got {self.parameters:,}.",
            )
        y = module(*inputs)
        return y, counted

    def _structural(
        self, layer: LayerText, x: Tensor, path: str, names: Mapping[str, int], known: Mapping[str, Any]
    ) -> tuple[tuple[tuple[PlannedLayer, ...], ...], Tensor]:
        if layer.block is not None:
            part, y = self.sequence(layer.block.layers, x, f"{path}.layers", {**known, CLASSES: names[CLASSES]})
            return (part,), y
        if layer.spec.name == "sequence":
            part, y = self.sequence(layer.arguments["layers"], x, f"{path}.layers", names)
            return (part,), y
        if layer.spec.name == "residual":
            body, y = self._part(layer.arguments["layers"], x, f"{path}.body", names)
            beside, z = self._part(layer.arguments.get("shortcut", ()), x, f"{path}.shortcut", names)
            if y.shape != z.shape:
                raise _error(
                    layer.place,
                    f"The layers give {_text(y)} and the shortcut {_text(z)}; one shape is required.",
                    _shortcut_hint(layer, y, z),
                )
            return (body, beside), y
        found = [self._part(part, x, f"{path}.branches.{i}", names) for i, part in enumerate(layer.arguments["paths"])]
        merged = merge_layer(known["merge"], known["axis"])
        if known["merge"] != "concat" and len({y.shape for _, y in found}) > 1:
            raise _error(
                layer.place, f"Branches of one shape are required, got {' and '.join(_text(y) for _, y in found)}."
            )
        return tuple(part for part, _ in found), merged(*(y for _, y in found))

    def _part(
        self, layers: Sequence[LayerText], x: Tensor, path: str, names: Mapping[str, int]
    ) -> tuple[tuple[PlannedLayer, ...], Tensor]:
        """A list of layers inside another layer: a single one stands for itself, several are a Sequential."""
        part, y = self.sequence(layers, x, f"{path}.layers", names)
        if _stands_alone(part):
            part = (_moved(part[0], path),)
        return part, y

    def _check_input(self, layer: LayerText, x: Tensor) -> None:
        name = layer.spec.name
        if name == "linear" and x.ndim == 4:
            message = f"linear reads vectors, got images of {_text(x)}."
            raise DefinitionError(
                [
                    TextProblem(
                        layer.place,
                        message,
                        "Add flatten or global_avg_pool before it.",
                        self._before(layer, "flatten"),
                    )
                ]
            )
        if (
            name in ("attention", "transformer_encoder", "transformer_block")
            and x.ndim == 3
            and x.shape[1] > LONGEST_SEQUENCE
        ):
            raise _error(
                layer.place, f"A sequence of at most {LONGEST_SEQUENCE:,} steps is accepted, got {x.shape[1]:,}."
            )

    def _check_tables(self, layer: LayerText, known: Mapping[str, Any], x: Tensor) -> None:
        if layer.spec.name == "positional_encoding" or known.get("rotary"):
            self.tabled += prod(x.shape[1:])
        if self.tabled > MOST_TABLED:
            raise _error(
                layer.place,
                f"Tables of positions of at most {MOST_TABLED:,} numbers are accepted, got more.",
                "Use shorter sequences, or learned_positions.",
            )

    def _before(self, layer: LayerText, other: str) -> Fix | None:
        """The change that writes another layer before this one."""
        lines = self.definition.text.splitlines()
        line, column = layer.place.line, layer.place.column
        before = lines[line - 1][: column - 1] if line <= len(lines) else ""
        place = Place(line, column, line, column)
        found = re.fullmatch(r"(\s*)-\s+", before)
        text = f"{other}\n{found.group(1)}- " if found else f"{other}, "
        return Fix(place, text, f"Add {other}")

    def _check_result(self, layer: LayerText, y: Any) -> None:
        if not isinstance(y, Tensor):
            raise _error(layer.place, f"{layer.spec.name} gives several results, which cannot be used here.")
        if y.ndim < 2 or y.shape[0] != BATCH:
            raise _error(
                layer.place, f"{layer.spec.name} changes the first axis, which is the batch.", "Leave axis 0 as it is."
            )
        if prod(y.shape[1:]) > MOST_ELEMENTS:
            raise _error(
                layer.place,
                f"Results of at most {MOST_ELEMENTS:,} numbers are accepted, got {_text(y)}.",
                "Use a larger stride or fewer channels.",
            )


def _resolved(value: Any, words: Mapping[str, int]) -> Any:
    if isinstance(value, Formula):
        return value.value(words)
    return tuple(_resolved(one, words) for one in value) if isinstance(value, tuple) else value


def half_padding(kernel: Any, dilation: Any) -> Any:
    """Zeros for half of the kernel on each side."""
    if isinstance(kernel, int) and isinstance(dilation, int):
        return dilation * (kernel - 1) // 2 if kernel % 2 else dilation * kernel // 2
    sizes = (kernel,) * len(dilation) if isinstance(kernel, int) else kernel
    steps = (dilation,) * len(sizes) if isinstance(dilation, int) else dilation
    return tuple(half_padding(k, d) for k, d in zip(sizes, steps, strict=True))


def _free_key(wanted: str, taken: set[str]) -> str:
    key, number = wanted, 2
    while key in taken:
        key, number = f"{wanted}_{number}", number + 1
    return key


def _stands_alone(part: Sequence[PlannedLayer]) -> bool:
    return len(part) == 1 and part[0].text.name is None and part[0].text.sources is None


def _moved(layer: PlannedLayer, path: str) -> PlannedLayer:
    """The same layer at another path."""
    old = layer.path
    parts = tuple(tuple(_moved(one, path + one.path.removeprefix(old)) for one in part) for part in layer.parts)
    return PlannedLayer(
        layer.text, layer.key, path, layer.arguments, parts, layer.inputs, layer.output, layer.parameters
    )


# --- modules ------------------------------------------------------------------------------------------------------------------------


def made_layer(layer: LayerText, known: Mapping[str, Any]) -> nn.Module:
    """The module of a layer without parts."""
    spec, given = layer.spec, dict(known)
    unpacked = given.pop(spec.unpacked) if spec.unpacked else ()
    made: nn.Module = spec.make(*unpacked, **given)
    return made


def _module(layer: PlannedLayer) -> nn.Module:
    known = layer.arguments
    if layer.text.block is not None or layer.text.spec.name == "sequence":
        return _chain(layer.parts[0], always=True)
    if layer.text.spec.name == "residual":
        body, beside = layer.parts
        return nn.Residual(_chain(body), _chain(beside) if beside else None, known["activation"])
    if layer.text.spec.name == "branches":
        return MergedBranches([_chain(part) for part in layer.parts], known["merge"], known["axis"])
    return made_layer(layer.text, known)


def _chain(layers: Sequence[PlannedLayer], always: bool = False) -> nn.Module:
    """Layers in sequence; a single one stands for itself unless `always`."""
    if not always and _stands_alone(layers):
        return _module(layers[0])
    made = {layer.key: _module(layer) for layer in layers}
    sources = {layer.key: tuple(name for name, _ in layer.text.sources) for layer in layers if layer.text.sources}
    names = {layer.key: layer.text.name for layer in layers if layer.text.name is not None}
    if sources:
        return NamedLayers(made, sources, names)
    return nn.Sequential(made) if names else nn.Sequential(*made.values())


# --- problems -----------------------------------------------------------------------------------------------------------------------


def _check_output(plan: NetworkPlan) -> None:
    """A classifier gives one number for each class."""
    last = plan.layers[-1]
    is_classifier = last.kind == "linear" or plan.definition.classes is not None
    if len(plan.output) != 1 or plan.output[0] == plan.classes or not is_classifier:
        return
    message = f"The last layer gives {plan.output[0]:,} numbers, and there are {plan.classes:,} classes."
    place = last.text.places.get("out")
    fix = None if place is None else Fix(place, CLASSES, f"Write {CLASSES}")
    raise DefinitionError(
        [TextProblem(place or last.text.place, message, f"Write {last.text.spec.name}: {CLASSES}." if fix else "", fix)]
    )


def _shortcut_hint(layer: LayerText, y: Tensor, z: Tensor) -> str:
    if "shortcut" in layer.arguments or y.ndim != z.ndim:
        return ""
    stride = max(1, round(z.shape[-1] / y.shape[-1])) if y.ndim == 4 else 1
    strided = f", stride: {stride}" if stride > 1 else ""
    return f"Give a shortcut: [conv: {{out: {y.shape[1]}, kernel: 1{strided}}}]."


def _text(x: Tensor) -> str:
    return " × ".join(map(str, x.shape[1:]))


def _sentence(message: str) -> str:
    return f"{message[:1].upper()}{message[1:]}"


def _error(place: Place, message: str, hint: str = "") -> DefinitionError:
    return DefinitionError([TextProblem(place, message, hint)])
