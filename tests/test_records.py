"""`weft.records.dataclass` gives what the decorator of the standard library gives."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import pytest

from weft import records

Decorator = Callable[..., Any]


def classes(dataclass: Decorator) -> dict[str, type]:
    """Classes with everything that a dataclass may have in weft."""

    @dataclass(frozen=True)
    class Point:
        """Two numbers."""

        x: int
        y: float = 2.0
        unit: ClassVar[str] = "m"

        @cached_property
        def norm(self) -> float:
            return float((self.x**2 + self.y**2) ** 0.5)

    @dataclass(frozen=True)
    class Named(Point):
        name: str = "p"
        parts: list[int] = field(default_factory=list, compare=False)
        hidden: int = field(default=3, repr=False)

    @dataclass
    class Changing:
        x: int = 1
        items: dict[str, int] = field(default_factory=dict)
        total: int = field(init=False)
        made: list[int] = field(init=False, default_factory=lambda: [1])

        def __post_init__(self) -> None:
            self.total = self.x + len(self.items)

    @dataclass(eq=False)
    class Same:
        x: int

    @dataclass(frozen=True, eq=False)
    class FrozenSame:
        x: int

    @dataclass(frozen=True)
    class OwnEquality:
        x: int
        y: int = 0

        def __eq__(self, other: object) -> bool:
            return isinstance(other, OwnEquality) and self.x == other.x

        def __repr__(self) -> str:
            return f"<{self.x}>"

    @dataclass(frozen=True)
    class OwnHash:
        x: Any

        def __hash__(self) -> int:
            return 7

        def __post_init__(self) -> None:
            object.__setattr__(self, "x", [self.x])

    @dataclass(frozen=True)
    class Empty:
        pass

    class Derived(Point):
        """No dataclass itself."""

    found = [Point, Named, Changing, Same, FrozenSame, OwnEquality, OwnHash, Empty, Derived]
    return {cls.__name__: cls for cls in found}


OURS, STANDARD = classes(records.dataclass), classes(dataclasses.dataclass)
CALLS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "Point": [((1,), {}), ((1, 2.0), {}), ((), {"x": 1, "y": 3.0}), ((float("nan"),), {})],
    "Named": [((1,), {}), ((1, 2.0, "q"), {"parts": [1]}), ((1,), {"hidden": 4}), ((1, 2.0, "p", [9]), {})],
    "Changing": [((), {}), ((2,), {}), ((), {"items": {"a": 1}})],
    "Same": [((1,), {}), ((1,), {})],
    "FrozenSame": [((1,), {}), ((1,), {})],
    "OwnEquality": [((1,), {}), ((1, 2), {}), ((2,), {})],
    "OwnHash": [((1,), {}), ((1,), {}), ((2,), {})],
    "Empty": [((), {}), ((), {})],
    "Derived": [((1,), {}), ((2, 1.0), {})],
}


def outcome(action: Callable[[], Any]) -> str:
    """What comes of it, or the error and what it says."""
    try:
        return repr(action())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def made(cls: type) -> list[Any]:
    return [cls(*args, **kwargs) for args, kwargs in CALLS[cls.__name__]]


def described(cls: type) -> list[str]:
    """What can be seen of a class and of its objects."""
    objects = made(cls)
    one = objects[0]
    found = [str(inspect.signature(cls)), str(cls.__match_args__), str([f.name for f in fields(cls)])]
    found += [repr(o) for o in objects] + [str(asdict(o)) for o in objects]
    found += [str(a == b) for a in objects for b in objects] + [str(one == 1), str(cls.__hash__ is None)]
    if cls.__name__ not in ("Same", "FrozenSame"):  # by identity
        found += [outcome(lambda a=a, b=b: hash(a) == hash(b)) for a in objects for b in objects]
    found += [outcome(lambda: cls(1, 2, 3, 4, 5, 6)), outcome(lambda: cls(unknown=1)), outcome(cls)]
    found += [outcome(lambda: setattr(one, "x", 5)), outcome(lambda: delattr(one, "x")), repr(vars(one).get("x"))]
    found += [
        outcome(lambda: setattr(one, "other", 5)),
        outcome(lambda: replace(objects[-1], x=9)),
        repr(copy.deepcopy(objects[-1])),
    ]
    return found


@pytest.mark.parametrize("name", list(CALLS))
def test_a_class_is_that_of_the_standard_library(name: str) -> None:
    assert described(OURS[name]) == described(STANDARD[name])


def test_what_a_class_says_of_itself_stays() -> None:
    assert (OURS["Point"].__doc__, OURS["Same"].__doc__) == ("Two numbers.", "Same")


def test_a_cached_property_of_a_frozen_class() -> None:
    point = OURS["Point"](3, 4.0)
    assert (point.norm, point.norm, vars(point)["norm"]) == (5.0, 5.0, 5.0)


def test_defaults_are_made_for_each_object() -> None:
    assert OURS["Named"](1).parts is not OURS["Named"](1).parts


def test_a_default_that_can_change_is_refused() -> None:
    with pytest.raises(ValueError, match="mutable default"):

        @records.dataclass
        class Wrong:
            x: list[int] = []  # noqa: RUF012


@records.dataclass(frozen=True)
class Kept:
    x: int
    y: tuple[int, ...] = ()


def test_objects_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(Kept(1, (2,)))) == Kept(1, (2,))
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        pickle.loads(pickle.dumps(Kept(1))).x = 3


def test_an_object_that_holds_itself_is_shown() -> None:
    changing = OURS["Changing"]()
    changing.items = {"me": changing}
    assert "..." in repr(changing)
