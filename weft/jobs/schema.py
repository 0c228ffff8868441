"""The schema of settings: type, default, choices, help and group of each, and validation of input."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import UserError
from ..hints import nearest
from ..records import dataclass


@dataclass(frozen=True)
class Setting:
    """One setting: how its text is parsed, its default, its help, and its group."""

    read: Callable[[str], Any]
    default: Any
    help: str
    group: str = ""
    choices: tuple[str, ...] = ()
    nothing: tuple[str, ...] = ("none", "null")  # what stands for no value, if that is the default

    def parse(self, text: str) -> Any:
        """Parse a text; ValueError says what is wrong with it."""
        if text.lower() in self.nothing and self.default is None:
            return None
        if self.choices and text not in self.choices:
            raise ValueError(f"it must be {', '.join(self.choices[:-1])} or {self.choices[-1]}")
        return self.read(text)

    @property
    def type(self) -> str:
        """The type in one word, for forms and documentation."""
        return "choice" if self.choices else TYPES.get(self.read, "text")


def parsed(where: str, name: str, text: str, known: Mapping[str, Setting]) -> Any:
    """The value of a setting that is written as text."""
    if name not in known:
        raise UserError(where, f"there is no setting {name!r}. {nearest(name, list(known))}")
    try:
        return known[name].parse(text)
    except ValueError as error:
        raise UserError(where, f"{name}={text} cannot be used: {error}.") from None


def validated(where: str, given: Mapping[str, Any], known: Mapping[str, Setting]) -> dict[str, Any]:
    """The defaults with these values, each text or a value of its type; unknown names and invalid values are rejected.

    >>> known = {"epochs": Setting(count, 10, "passes over the data"), "rate": Setting(number, None, "learning rate")}
    >>> validated("train", {"rate": "1e-3"}, known)
    {'epochs': 10, 'rate': 0.001}
    """
    values = {name: parsed(where, name, as_text(value), known) for name, value in given.items()}
    return {name: setting.default for name, setting in known.items()} | values


def described(known: Mapping[str, Setting]) -> list[dict[str, Any]]:
    """The schema as JSON holds it, in the order of the table."""
    return [
        {
            "name": name, "type": setting.type, "default": setting.default, "choices": list(setting.choices),
            "help": setting.help, "group": setting.group,
        }
        for name, setting in known.items()
    ]  # fmt: skip


def as_text(value: Any) -> str:
    """A value as a command writes it.

    >>> as_text(None), as_text(True), as_text((8, 9))
    ('none', 'true', '8,9')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(as_text, value)) if isinstance(value, tuple | list) else str(value)


# --- types of values --------------------------------------------------------------------------------------------------------


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("it must be a number") from None
    if not math.isfinite(value):
        raise ValueError("it must be a finite number")
    return value


def not_negative(text: str) -> float:
    if number(text) < 0:
        raise ValueError("it must be 0 or more")
    return number(text)


def positive(text: str) -> float:
    if number(text) <= 0:
        raise ValueError("it must be above 0")
    return number(text)


def fraction(text: str) -> float:
    value = number(text)
    if not 0.0 <= value < 1.0:
        raise ValueError("it must be a fraction from 0 to below 1")
    return value


def two_fractions(text: str) -> tuple[float, float]:
    values = tuple(map(fraction, text.split(",")))
    if len(values) != 2:
        raise ValueError("it must be two numbers such as 0.9,0.999")
    return values[0], values[1]


def fraction_or_path(text: str) -> float | str:
    """A fraction such as 0.25, or else a folder or a list."""
    try:
        value = float(text)
    except ValueError:
        return text
    if not 0 <= value < 1:
        raise ValueError("it must be a fraction from 0 to below 1, or a path")
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("it must be a whole number") from None


def whole(text: str) -> int:
    value = _integer(text)
    if value < 0:
        raise ValueError("it must be 0 or more")
    return value


def count(text: str) -> int:
    value = _integer(text)
    if value < 1:
        raise ValueError("it must be 1 or more")
    return value


def zero_stage(text: str) -> int:
    if text not in ("0", "1", "2"):
        raise ValueError("it must be 0, 1 or 2")
    return int(text)


def number_or_auto(text: str) -> float | str:
    return "auto" if text == "auto" else number(text)


def count_or_auto(text: str) -> int | str:
    if text == "auto":
        return text
    if whole(text) == 0:
        raise ValueError("it must be 1 or more, or auto")
    return whole(text)


def seed(text: str) -> int:
    if whole(text) >= 1 << 64:
        raise ValueError("it must be below 2**64")
    return whole(text)


def flag(text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.lower() not in known:
        raise ValueError("it must be true or false")
    return known[text.lower()]


def one_of(*known: str) -> Callable[[str], str]:
    """A parser of a few words, for parts of a value."""

    def chosen(text: str) -> str:
        if text not in known:
            raise ValueError(f"it must be {', '.join(known[:-1])} or {known[-1]}")
        return text

    return chosen


def numbers(text: str) -> tuple[float, ...]:
    """One number, or several such as 0.5,0.5,0.5."""
    return tuple(map(number, text.split(",")))


def fold(text: str) -> str:
    """2/5: the second of five folds."""
    if not 1 <= fold_numbers(text)[0] <= fold_numbers(text)[1] or fold_numbers(text)[1] < 2:
        raise ValueError("it must be a fold such as 2/5, of 2 folds or more")
    return text


def fold_numbers(text: str) -> tuple[int, int]:
    """The number of a fold, from 1, and how many folds there are.

    >>> fold_numbers("2/5")
    (2, 5)
    """
    number_, slash, folds = text.partition("/")
    if not slash or not number_.isdecimal() or not folds.isdecimal():
        raise ValueError("it must be a fold such as 2/5")
    return int(number_), int(folds)


def sizes(text: str) -> tuple[int, int]:
    """28, or 28x32 (height x width).

    >>> sizes("28"), sizes("28x32"), sizes("28 × 32")
    ((28, 28), (28, 32), (28, 32))
    """
    parts = text.lower().replace(",", "x").replace("×", "x").split("x")
    if not 1 <= len(parts) <= 2 or not all(p.strip().isdecimal() and int(p) > 0 for p in parts):
        raise ValueError("it must be a size such as 28, or 28x32 (height x width)")
    return int(parts[0]), int(parts[-1])


TYPES: dict[Callable[[str], Any], str] = {
    str: "text", flag: "boolean", whole: "integer", count: "integer", seed: "integer", zero_stage: "integer", count_or_auto: "integer",
    number: "number", not_negative: "number", positive: "number", fraction: "number", number_or_auto: "number",
    two_fractions: "numbers", numbers: "numbers", sizes: "size",
}  # fmt: skip
