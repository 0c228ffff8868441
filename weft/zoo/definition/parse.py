"""From the text of a network to its layers as they were written, checked as far as that is possible without shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from ...records import dataclass
from .modules import INPUT, PREVIOUS
from .problems import DefinitionError, Fix, Place, TextProblem, unknown
from .schema import BRANCH_LISTS, LAYER_LIST, LayerArgument, LayerSpec, layer_specs
from .values import CLASSES, COUNT, LARGEST, WORDS, Formula, InvalidValue, count_type
from .yaml_tree import ListNode, MappingNode, ScalarNode, TreeNode, read_yaml

MOST_PROBLEMS = 20
MOST_BLOCKS = 100
TOP = ("name", "about", "input", "classes", "blocks", "layers")
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,39}")


@dataclass(frozen=True)
class LayerText:
    """A layer as it was written. Arguments hold values, formulas, lists of layers, or lists of such lists."""

    spec: LayerSpec
    arguments: Mapping[str, Any]
    place: Place  # of the layer's name
    places: Mapping[str, Place] = field(default_factory=dict)
    name: str | None = None
    sources: tuple[tuple[str, Place], ...] | None = None
    block: BlockText | None = None  # the named block that it uses


@dataclass(frozen=True)
class BlockText:
    """A named block: its arguments with defaults, and its layers."""

    name: str
    arguments: Mapping[str, int | Formula]
    layers: tuple[LayerText, ...]


@dataclass(frozen=True)
class Definition:
    """The text of a network, parsed."""

    text: str
    layers: tuple[LayerText, ...]
    name: str = ""
    about: str = ""
    input: tuple[int, ...] | None = None
    classes: int | None = None
    blocks: Mapping[str, BlockText] = field(default_factory=dict)


def parse_network(text: str) -> Definition:
    """Parse the text of a network; DefinitionError says everything that is wrong with it.

    >>> parse_network("layers: [flatten, linear: classes]").layers[1].spec.name
    'linear'
    """
    root = read_yaml(text)
    if isinstance(root, ListNode):
        return _NetworkParser(text).network(MappingNode(((ScalarNode("layers", root.place), root),), root.place))
    if not isinstance(root, MappingNode):
        raise DefinitionError([TextProblem(root.place, "A network begins with `layers:` and a list of layers.")])
    return _NetworkParser(text).network(root)


class _NetworkParser:
    """Collects problems and continues, so that all of them are reported together."""

    def __init__(self, text: str) -> None:
        self.text, self.problems = text, list[TextProblem]()
        self.blocks: dict[str, BlockText] = {}

    def network(self, root: MappingNode) -> Definition:
        for key, _ in root.pairs:
            if key.text not in TOP:
                self._note(unknown("setting", key.text, TOP, key.place))
        self._blocks(root.get("blocks"))
        written = root.get("layers")
        layers: tuple[LayerText, ...] = ()
        if written is None:
            self._note(TextProblem(root.place, "A list of layers is required.", "Add `layers:` and a list."))
        else:
            layers = self._layers(written, frozenset())
            if not layers and not self.problems:
                self._note(TextProblem(written.place, "At least one layer is required, got an empty list."))
        made = Definition(
            self.text, layers, self._word(root, "name"), self._word(root, "about"), self._input(root.get("input")),
            self._classes(root.get("classes")), self.blocks,
        )  # fmt: skip
        if self.problems:
            ordered = sorted(self.problems, key=lambda one: (one.place.line, one.place.column))
            raise DefinitionError(ordered[:MOST_PROBLEMS])
        return made

    def _note(self, problem: TextProblem) -> None:
        if len(self.problems) < 10 * MOST_PROBLEMS:
            self.problems.append(problem)

    # --- what stands at the top ---------------------------------------------------------------------------------------------------

    def _word(self, root: MappingNode, key: str) -> str:
        node = root.get(key)
        if node is None or isinstance(node, ScalarNode):
            return "" if node is None else node.text[:200]
        self._note(TextProblem(node.place, f"A text is required for {key}."))
        return ""

    def _input(self, node: TreeNode | None) -> tuple[int, ...] | None:
        if node is None:
            return None
        items = node.items if isinstance(node, ListNode) else (node,)
        found = [self._value(COUNT.read, item) for item in items]
        if not 1 <= len(items) <= 4 or not all(isinstance(size, int) for size in found):
            self._note(
                TextProblem(
                    node.place, "The shape of one example is required, such as [3, 224, 224]: channels, height, width."
                )
            )
            return None
        return tuple(found)

    def _classes(self, node: TreeNode | None) -> int | None:
        if node is None:
            return None
        found = self._value(count_type(LARGEST).read, node)
        if isinstance(found, Formula):
            self._note(TextProblem(node.place, "A number of classes is required."))
            return None
        return found  # type: ignore[no-any-return]

    def _blocks(self, node: TreeNode | None) -> None:
        if node is None:
            return
        if not isinstance(node, MappingNode) or len(node.pairs) > MOST_BLOCKS:
            self._note(
                TextProblem(
                    node.place, f"Up to {MOST_BLOCKS} blocks by name are required: `blocks:`, then NAME and its layers."
                )
            )
            return
        for key, value in node.pairs:
            if self._is_new_name(key):
                self.blocks[key.text] = self._block(key, value)

    def _is_new_name(self, key: ScalarNode) -> bool:
        if key.text in layer_specs():
            self._note(TextProblem(key.place, f"{key.text} is a layer already.", "Choose another name for the block."))
        elif not _NAME.fullmatch(key.text):
            self._note(TextProblem(key.place, "A name of letters, digits and _ is required for a block."))
        else:
            return True
        return False

    def _block(self, key: ScalarNode, value: TreeNode) -> BlockText:
        """A list of layers, or {arguments: {width: 64}, layers: [...]}."""
        arguments: dict[str, int | Formula] = {}
        layers = value
        if isinstance(value, MappingNode):
            for inner, _ in value.pairs:
                if inner.text not in ("arguments", "layers"):
                    self._note(unknown("part of a block", inner.text, ("arguments", "layers"), inner.place))
            given = value.get("arguments")
            if isinstance(given, MappingNode):
                for name, default in given.pairs:
                    if not _NAME.fullmatch(name.text) or name.text in (*WORDS, CLASSES, "name", "from"):
                        self._note(TextProblem(name.place, f"{name.text[:40]} cannot be the name of an argument."))
                    arguments[name.text] = self._value(COUNT.read, default) or 1
            elif given is not None:
                self._note(
                    TextProblem(
                        given.place, "Arguments with their defaults are required, such as {width: 64, stride: 1}."
                    )
                )
            layers = value.get("layers") or ListNode((), value.place)
        return BlockText(key.text, arguments, self._layers(layers, frozenset(arguments)))

    # --- layers -------------------------------------------------------------------------------------------------------------------

    def _layers(self, node: TreeNode, names: frozenset[str]) -> tuple[LayerText, ...]:
        """A list of layers. `names` can be used in formulas."""
        if isinstance(node, ScalarNode) and node.is_plain and not node.text:
            return ()
        if not isinstance(node, ListNode):
            self._note(
                TextProblem(node.place, "A list of layers is required.", "Begin each layer with a dash: - relu.")
            )
            return ()
        found: list[LayerText] = []
        seen = {INPUT: 0, PREVIOUS: 0}
        for item in node.items:
            layer = self._layer(item, names)
            if layer is None:
                continue
            for source, place in layer.sources or ():
                if source not in seen:
                    self._note(unknown("earlier layer", source, seen, place))
            if layer.name is not None:
                seen[layer.name] = len(found)
            found.append(layer)
        return tuple(found)

    def _layer(self, node: TreeNode, names: frozenset[str]) -> LayerText | None:
        if isinstance(node, ScalarNode):
            return self._made(node, None, names)
        if isinstance(node, MappingNode) and node.pairs:
            key, value = node.pairs[0]
            for other, extra in node.pairs[1:]:
                self._note(self._misplaced(key, value, other, extra))
            return self._made(key, value, names)
        self._note(
            TextProblem(
                node.place,
                "A layer is required, such as `relu` or `conv: {out: 32, kernel: 3}`.",
                "Lists of layers belong into sequence, residual or branches." if isinstance(node, ListNode) else "",
            )
        )
        return None

    def _misplaced(self, key: ScalarNode, value: TreeNode, other: ScalarNode, extra: TreeNode) -> TextProblem:
        """Arguments beside a layer instead of in its braces."""
        spec = self._spec(key.text)
        fix = None
        if (
            spec is not None
            and isinstance(value, ScalarNode)
            and isinstance(extra, ScalarNode)
            and spec.main
            and value.place.line == other.place.line
        ):
            text = f"{{{spec.main}: {value.text}, {other.text}: {extra.text}}}"
            fix = Fix(
                Place(value.place.line, value.place.column, extra.place.end_line, extra.place.end_column),
                text,
                "Put it in braces",
            )
        return TextProblem(
            other.place,
            f"The arguments of {key.text[:40]} stand in braces.",
            f"Write {key.text[:40]}: {{..., {other.text[:40]}: ...}}, and begin each layer with a dash.",
            fix,
        )

    def _spec(self, name: str) -> LayerSpec | None:
        if name in self.blocks:
            block = self.blocks[name]
            arguments = {
                key: LayerArgument(key, key, COUNT, default, "argument of the block")
                for key, default in block.arguments.items()
            }
            return LayerSpec(name, "Blocks", f"The block {name}.", object, arguments, next(iter(arguments), None))
        return layer_specs().get(name)

    def _made(self, key: ScalarNode, value: TreeNode | None, names: frozenset[str]) -> LayerText | None:
        spec = self._spec(key.text)
        if spec is None:
            self._note(unknown("layer", key.text, [*self.blocks, *layer_specs()], key.place))
            return None
        given, wrong = self._given(spec, key, value)
        if wrong:
            return None
        name = self._layer_name(given.pop("name", None))
        sources = self._sources(spec, key, given.pop("from", None))
        values, places = {}, {}
        for argument, node in given.items():
            read = self._argument(spec.arguments[argument], node, names)
            if read is None and argument not in spec.holds and not _is_none(node):
                return None
            values[argument], places[argument] = read, node.place
        missing = [one for one in spec.arguments.values() if one.is_required and one.name not in values]
        if missing:
            self._note(_missing(spec, key, value, missing))
            return None
        return LayerText(spec, values, key.place, places, name, sources, self.blocks.get(key.text))

    def _given(self, spec: LayerSpec, key: ScalarNode, value: TreeNode | None) -> tuple[dict[str, TreeNode], bool]:
        """The arguments as they were written, by name."""
        if value is None or (isinstance(value, ScalarNode) and value.is_plain and not value.text):
            return {}, False
        if not isinstance(value, MappingNode):
            if spec.main is None:
                self._note(_takes_no_value(spec, value))
                return {}, True
            return {spec.main: value}, False
        wrong = False
        known = (*spec.arguments, "name", "from")
        for name, _ in value.pairs:
            if name.text not in known:
                self._note(unknown(f"argument of {spec.name}", name.text, known, name.place, _OTHERS.get(name.text)))
                wrong = True
        return {name.text: node for name, node in value.pairs}, wrong

    def _argument(self, argument: LayerArgument, node: TreeNode, names: frozenset[str]) -> Any:
        if argument.type is LAYER_LIST:
            return self._layers(node, names)
        if argument.type is BRANCH_LISTS:
            if not isinstance(node, ListNode) or not node.items:
                self._note(
                    TextProblem(
                        node.place,
                        "A list of branches is required, each a list of layers.",
                        "Write - [conv: 32, relu] for each.",
                    )
                )
                return None
            return tuple(
                self._layers(
                    item if isinstance(item, ListNode) or _is_none(item) else ListNode((item,), item.place), names
                )
                if not _is_none(item)
                else ()
                for item in node.items
            )
        if argument.default is None and _is_none(node):
            return None
        found = self._value(argument.type.read, node)
        for one in found if isinstance(found, tuple) else (found,):
            if isinstance(one, Formula):
                for word in one.names:
                    if word not in names and word not in WORDS and word != CLASSES:
                        self._note(unknown("name", word, (*WORDS, CLASSES, *names), one.place))
                        return None
        return found

    def _value(self, read: Any, node: TreeNode) -> Any:
        try:
            return read(node)
        except InvalidValue as wrong:
            self._note(wrong.problem)
            return None

    def _layer_name(self, node: TreeNode | None) -> str | None:
        if node is None:
            return None
        if not isinstance(node, ScalarNode) or not _NAME.fullmatch(node.text) or node.text in (INPUT, PREVIOUS):
            self._note(
                TextProblem(
                    node.place, f"A name of letters, digits and _ is required, other than {INPUT} and {PREVIOUS}."
                )
            )
            return None
        return node.text

    def _sources(self, spec: LayerSpec, key: ScalarNode, node: TreeNode | None) -> tuple[tuple[str, Place], ...] | None:
        if node is None:
            if spec.merges:
                self._note(
                    TextProblem(
                        key.place,
                        f"{spec.name} needs the layers that it reads.",
                        f"Write {spec.name}: [NAME, {PREVIOUS}].",
                    )
                )
            return None
        items: Sequence[TreeNode] = node.items if isinstance(node, ListNode) else (node,)
        if not items or not all(isinstance(item, ScalarNode) for item in items) or len(items) > 64:
            self._note(TextProblem(node.place, "Names of earlier layers are required."))
            return None
        if not spec.merges and len(items) > 1:
            self._note(
                TextProblem(
                    node.place, f"{spec.name} reads one layer, got {len(items)}.", "Join them with concat or add first."
                )
            )
        return tuple((item.text, item.place) for item in items if isinstance(item, ScalarNode))


# Names of arguments in other libraries.
_OTHERS = {
    "filters": "out", "out_channels": "out", "channels": "out", "units": "out", "out_features": "out", "outputs": "out",
    "kernel_size": "kernel", "pool_size": "size", "strides": "stride", "p": "rate", "use_bias": "bias", "pad": "padding",
    "hidden_size": "hidden", "num_heads": "heads", "num_layers": "layers", "epsilon": "eps", "n": "times", "block": "layers", "body": "layers",
}  # fmt: skip


def _is_none(node: TreeNode) -> bool:
    return isinstance(node, ScalarNode) and node.is_plain and node.text in ("none", "null", "~", "")


def _takes_no_value(spec: LayerSpec, value: TreeNode) -> TextProblem:
    if spec.arguments:
        return TextProblem(
            value.place,
            f"{spec.name} takes its arguments by name.",
            f"Write {spec.name}: {{{next(iter(spec.arguments))}: ...}}.",
        )
    return TextProblem(value.place, f"{spec.name} takes no value.", f"Write - {spec.name}.")


def _missing(spec: LayerSpec, key: ScalarNode, value: TreeNode | None, missing: Sequence[LayerArgument]) -> TextProblem:
    """An argument that is required; the fix writes one."""
    first = missing[0]
    sample = {"out": "32", "times": "2", "heads": "4", "squeezed": "8", "size": "1"}.get(first.name, "1")
    fix = None
    if not spec.holds and value is None:
        fix = Fix(
            Place(key.place.line, key.place.column, key.place.end_line, key.place.end_column),
            f"{spec.name}: {sample}" if first.name == spec.main else f"{spec.name}: {{{first.name}: {sample}}}",
            f"Add {first.name}",
        )
    return TextProblem(
        key.place,
        f"{spec.name} requires {first.name}: {first.help}.",
        f"Write {spec.name}: {sample}." if first.name == spec.main and not spec.holds else f"Add {first.name}: ...",
        fix,
    )
