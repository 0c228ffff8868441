"""Values of arguments: numbers, sizes, words, and counts as small formulas such as `4 * width`. Nothing is evaluated by Python."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from ...nn import activations, init
from ...records import dataclass
from ..building_blocks import HE_NORMAL
from .problems import Fix, Place, TextProblem, unknown
from .yaml_tree import ListNode, ScalarNode, TreeNode

LARGEST = 1 << 20  # a count
WORDS = {"same": "as many as the input", "double": "twice the input channels", "half": "half the input channels"}
CLASSES = "classes"


class InvalidValue(Exception):
    """A value that cannot be used."""

    def __init__(self, problem: TextProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True)
class Formula:
    """A count with names in it; `names` are known when the network is built."""

    text: str
    tokens: tuple[str, ...]
    place: Place

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(token for token in self.tokens[::2] if not token.isdecimal())

    def value(self, known: Mapping[str, int]) -> int:
        """Products first, from left to right."""
        terms, signs = [self._factor(self.tokens[0], known)], [1]
        for operator, token in zip(self.tokens[1::2], self.tokens[2::2], strict=True):
            factor = self._factor(token, known)
            if operator == "*":
                terms[-1] *= factor
            elif operator == "/":
                if factor == 0 or terms[-1] % factor:
                    raise InvalidValue(TextProblem(self.place, f"{self.text} does not divide: {terms[-1]} / {factor}."))
                terms[-1] //= factor
            else:
                terms.append(factor)
                signs.append(1 if operator == "+" else -1)
        found = sum(sign * term for sign, term in zip(signs, terms, strict=True))
        if not 1 <= found <= LARGEST:
            raise InvalidValue(
                TextProblem(self.place, f"A count from 1 to {LARGEST:,} is required, got {self.text} = {found:,}.")
            )
        return found

    def _factor(self, token: str, known: Mapping[str, int]) -> int:
        if token.isdecimal():
            return int(token)
        if token not in known:
            raise InvalidValue(unknown("name", token, known, self.place))
        return known[token]


_TOKEN = re.compile(r"\s*(?:([A-Za-z_][A-Za-z0-9_]*|[0-9]{1,9})|([*/+-]))")
MOST_TOKENS = 31


def formula(text: str, place: Place) -> Formula | None:
    """A formula of counts and names with * / + - between them; None if it is none."""
    tokens: list[str] = []
    at = 0
    stripped = text.strip()
    while at < len(stripped):
        found = _TOKEN.match(stripped, at)
        if found is None or bool(found.group(2)) == (len(tokens) % 2 == 0) or len(tokens) >= MOST_TOKENS:
            return None
        tokens.append(found.group(1) or found.group(2))
        at = found.end()
    return Formula(text, tuple(tokens), place) if len(tokens) % 2 else None


@dataclass(frozen=True)
class ValueType:
    """How an argument is read: a word for forms and completion, what is expected in words, and the reader."""

    name: str
    expected: str
    read: Callable[[TreeNode], Any]
    choices: tuple[str, ...] = ()


def count_type(most: int = LARGEST, least: int = 1) -> ValueType:
    expected = f"a whole number from {least} to {most:,}"

    def read(node: TreeNode) -> Any:
        text, place = _scalar(node, expected)
        if re.fullmatch(r"[+-]?\d{1,12}", text):
            if not least <= int(text) <= most:
                raise InvalidValue(_required(expected, text, place))
            return int(text)
        made = formula(text, place) if least == 1 else None
        if made is None:
            raise InvalidValue(_required(expected, text, place, _as_whole(text, place)))
        return made if made.names else made.value({})

    return ValueType("count", expected, read, (*WORDS, CLASSES) if least == 1 and most == LARGEST else ())


def sizes_type(most: int = 1024, least: int = 1) -> ValueType:
    expected = f"a size from {least} to {most:,}, or a list of them such as [1, {max(7, least)}]"
    one = count_type(most, least)

    def read(node: TreeNode) -> Any:
        if isinstance(node, ListNode):
            if not 1 <= len(node.items) <= 3:
                raise InvalidValue(_required(expected, f"a list of {len(node.items)}", node.place))
            return tuple(one.read(item) for item in node.items)
        text, place = _scalar(node, expected)
        if not re.fullmatch(r"[+-]?\d{1,9}", text) and formula(text, place) is None:
            raise InvalidValue(_required(expected, text, place, _as_whole(text, place)))
        return one.read(node)

    return ValueType("size", expected, read)


def padding_type(words: tuple[str, ...]) -> ValueType:
    expected = (
        f"a border of 0 or more, a list of them, or one of {', '.join(words)}"
        if words
        else "a border of 0 or more, or a list of them"
    )
    one = count_type(1024, 0)

    def pair(node: TreeNode) -> Any:
        if isinstance(node, ListNode):
            if len(node.items) != 2:
                raise InvalidValue(_required("a pair [before, behind]", f"a list of {len(node.items)}", node.place))
            return tuple(one.read(item) for item in node.items)
        return one.read(node)

    def read(node: TreeNode) -> Any:
        if isinstance(node, ListNode):
            if not 1 <= len(node.items) <= 3:
                raise InvalidValue(_required(expected, f"a list of {len(node.items)}", node.place))
            return tuple(pair(item) for item in node.items)
        text, place = _scalar(node, expected)
        if text in words:
            return text
        if re.fullmatch(r"[A-Za-z_]+", text):
            raise InvalidValue(unknown("padding", text, words, place))
        return one.read(node)

    return ValueType("padding", expected, read, words)


def number_type(least: float = -1e9, most: float = 1e9) -> ValueType:
    expected = f"a number from {least:g} to {most:g}"

    def read(node: TreeNode) -> float:
        text, place = _scalar(node, expected)
        try:
            value = float(text) if len(text) < 40 else math.nan
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            fix = _percent(text, place) if most <= 1 else None
            raise InvalidValue(_required(expected, text, place, fix))
        return value

    return ValueType("number", expected, read)


def rate_type() -> ValueType:
    inner = number_type(0.0, 0.999)
    return ValueType("rate", "a rate from 0 to below 1", inner.read)


def integer_type(least: int, most: int) -> ValueType:
    expected = f"a whole number from {least} to {most}"

    def read(node: TreeNode) -> int:
        text, place = _scalar(node, expected)
        if not re.fullmatch(r"[+-]?\d{1,9}", text) or not least <= int(text) <= most:
            raise InvalidValue(_required(expected, text, place))
        return int(text)

    return ValueType("integer", expected, read)


def integers_type(least: int, most: int) -> ValueType:
    expected = f"a list of whole numbers from {least} to {most:,}"
    one = integer_type(least, most)

    def read(node: TreeNode) -> tuple[int, ...]:
        items = node.items if isinstance(node, ListNode) else (node,)
        if not 1 <= len(items) <= 8:
            raise InvalidValue(_required(expected, f"a list of {len(items)}", node.place))
        return tuple(one.read(item) for item in items)

    return ValueType("integers", expected, read)


def choice_type(name: str, choices: tuple[str, ...]) -> ValueType:
    expected = f"one of {', '.join(choices[:6])}" + (", ..." if len(choices) > 6 else "")

    def read(node: TreeNode) -> str | None:
        text, place = _scalar(node, expected)
        if text in choices:
            return None if text == "none" else text
        raise InvalidValue(unknown(name, text, choices, place))

    return ValueType(name, expected, read, choices)


def _read_flag(node: TreeNode) -> bool:
    text, place = _scalar(node, "true or false")
    known = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if text.lower() not in known:
        fix = Fix(place, "true" if text == "1" else "false", "Write true or false") if text in ("0", "1") else None
        raise InvalidValue(_required("true or false", text, place, fix))
    return known[text.lower()]


_CALL = re.compile(r"(normal|truncated_normal|constant)\(([0-9.eE+-]{1,20})\)")
_MAKERS: dict[str, Callable[[float], Any]] = {
    "normal": lambda std: init.normal(std=std), "truncated_normal": lambda std: init.truncated_normal(std=std),
    "constant": init.constant,
}  # fmt: skip
HE_NORMAL_OUT = "he_normal_out"
_NAMED = {HE_NORMAL_OUT: HE_NORMAL}  # initializers that `nn.init` has no name for: that of ResNet


def _read_init(node: TreeNode) -> Any:
    """The name of an initializer, or one with its number such as normal(0.02)."""
    text, place = _scalar(node, "the name of an initializer")
    called = _CALL.fullmatch(text)
    if called:
        try:
            value = float(called.group(2))
        except ValueError:
            value = math.nan
        if not abs(value) <= 1e6 or (value < 0 and called.group(1) != "constant"):
            raise InvalidValue(_required(f"a number in {called.group(1)}(...)", called.group(2), place))
        return _MAKERS[called.group(1)](value)
    if text in _NAMED or text in init.NAMES:
        return text
    raise InvalidValue(unknown("initializer", text, [*init.NAMES, *_NAMED], place))


def as_init(value: Any) -> Any:
    """What the constructor of a layer takes."""
    return _NAMED.get(value, value) if isinstance(value, str) else value


COUNT, SIZES = count_type(), sizes_type()
FLAG = ValueType("flag", "true or false", _read_flag, ("true", "false"))
ACTIVATION = choice_type("activation", (*activations.NAMES, "none"))
INIT = ValueType(
    "initializer",
    "the name of an initializer, or normal(0.02)",
    _read_init,
    (*init.NAMES, HE_NORMAL_OUT, "normal(0.02)", "truncated_normal(0.02)"),
)


def _scalar(node: TreeNode, expected: str) -> tuple[str, Place]:
    if not isinstance(node, ScalarNode):
        what = "a list" if isinstance(node, ListNode) else "a mapping"
        raise InvalidValue(_required(expected, what, node.place))
    return node.text, node.place


def _required(expected: str, given: str, place: Place, fix: Fix | None = None) -> TextProblem:
    shown = given[:60] if given else "nothing"
    return TextProblem(
        place,
        f"{expected[:1].upper()}{expected[1:]} is required, got {shown}.",
        "" if fix is None else f"{fix.title}.",
        fix,
    )


def _as_whole(text: str, place: Place) -> Fix | None:
    """32.0 and "32 " are meant as 32."""
    try:
        value = float(text) if len(text) < 20 else math.nan
    except ValueError:
        return None
    return (
        Fix(place, str(int(value)), f"Write {int(value)}")
        if value == value and abs(value) < LARGEST and value >= 1 and value == int(value)
        else None
    )


def _percent(text: str, place: Place) -> Fix | None:
    """A rate of 20 or 20 % is meant as 0.2."""
    found = re.fullmatch(r"(\d{1,2})\s*%?", text)
    if not found or not 1 < int(found.group(1)) < 100:
        return None
    return Fix(place, f"{int(found.group(1)) / 100:g}", f"Write {int(found.group(1)) / 100:g}")
