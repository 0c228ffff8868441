"""Writes layers as the text of a network: one layer a line where it fits, equal neighbours as `repeat`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from ...records import dataclass
from .schema import layer_specs

WIDTH = 64  # characters of a line: it fits beside a picture
LONGEST_PERIOD = 6  # layers that are repeated together


@dataclass
class WrittenLayer:
    """A layer: arguments as text, and parts that are lists of layers, or lists of such lists."""

    name: str
    arguments: dict[str, str] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)


def written(
    layers: Sequence[WrittenLayer], *, name: str, about: str, input_shape: tuple[int, ...], classes: int
) -> str:
    """The whole text."""
    head = [f"# {line}" for line in about.splitlines()]
    head += [f"name: {name}"] if name else []
    head += [f"input: [{', '.join(map(str, input_shape))}]", f"classes: {classes}", "layers:"]
    return "\n".join([*head, *_lines(_repeated(layers), "  ")]) + "\n"


def _lines(layers: Sequence[WrittenLayer], indent: str) -> list[str]:
    return [line for layer in layers for line in _layer(layer, indent)]


def _layer(layer: WrittenLayer, indent: str) -> list[str]:
    flow = _flow(layer)
    if not layer.parts or (_is_short(layer) and len(indent) + len(flow) + 2 <= WIDTH):
        return [f"{indent}- {flow}"]
    main = layer_specs()[layer.name].main
    if not layer.arguments and list(layer.parts) == [main]:
        return [f"{indent}- {layer.name}:", *_part(layer.parts[str(main)], layer.name, f"{indent}    ")]
    lines = [f"{indent}- {layer.name}:"]
    before = [one for one in layer.arguments if one == "times"]
    lines += [f"{indent}    {one}: {layer.arguments[one]}" for one in before]
    for part, inner in layer.parts.items():
        lines += [f"{indent}    {part}:", *_part(inner, layer.name, f"{indent}      ")]
    return lines + [f"{indent}    {one}: {value}" for one, value in layer.arguments.items() if one not in before]


def _part(part: Any, name: str, indent: str) -> list[str]:
    if name != "branches":
        return _lines(_repeated(part), indent)
    lines = []
    for branch in part:
        flow = f"[{', '.join(map(_flow, branch))}]"
        if len(indent) + len(flow) + 2 <= WIDTH and all(_is_short(one) for one in branch):
            lines.append(f"{indent}- {flow}")
            continue
        inner = _lines(_repeated(branch), f"{indent}  ")
        lines += [f"{indent}- {inner[0].lstrip()}", *inner[1:]]
    return lines


def _is_short(layer: WrittenLayer) -> bool:
    """Whether a layer is easy to read in one line: it has no parts, or a single list of simple layers."""
    return all(not isinstance(one, list) and not one.parts for part in layer.parts.values() for one in part)


def _flow(layer: WrittenLayer) -> str:
    """A layer in one line."""
    main = layer_specs()[layer.name].main
    first = {name: value for name, value in layer.arguments.items() if name == "times"}
    given = {**first, **{part: _flow_part(inner) for part, inner in layer.parts.items()}, **layer.arguments}
    if not given:
        return layer.name
    if main is not None and list(given) == [main]:
        return f"{layer.name}: {given[main]}"
    return f"{layer.name}: {{{', '.join(f'{name}: {value}' for name, value in given.items())}}}"


def _flow_part(part: Any) -> str:
    inside = [_flow_part(one) if isinstance(one, list) else _flow(one) for one in part]
    return f"[{', '.join(inside)}]"


def _repeated(layers: Sequence[WrittenLayer]) -> list[WrittenLayer]:
    """Equal neighbours as repeat, where that is shorter. Layers with names stay as they are: others read them."""
    found: list[WrittenLayer] = []
    at = 0
    while at < len(layers):
        times, period = max(
            ((_times(layers, at, size), size) for size in range(1, LONGEST_PERIOD + 1)),
            key=lambda one: one[0] * one[1] if one[0] > 1 else 0,
        )
        group = list(layers[at : at + period])
        if times * period >= 4 or (times >= 2 and any(one.parts for one in group)):
            found.append(WrittenLayer("repeat", {"times": str(times)}, {"layers": group}))
            at += times * period
        else:
            found.append(layers[at])
            at += 1
    return found


def _times(layers: Sequence[WrittenLayer], at: int, period: int) -> int:
    group = list(layers[at : at + period])
    if len(group) < period or any("name" in one.arguments or "from" in one.arguments for one in group):
        return 1
    times = 1
    while list(layers[at + times * period : at + (times + 1) * period]) == group:
        times += 1
    return times
