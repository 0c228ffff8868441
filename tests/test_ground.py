"""Checks what everything stands on: nested values, settings, and errors."""

import os
import pathlib
import re
import subprocess
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import weft
from weft.errors import Source, WeftError, user_source
from weft.knobs import KNOBS, Knobs
from weft.tree import Structure, flatten, map_tree, unflatten

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


# --- nested values ---------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    x: Any
    y: Any


Old = namedtuple("Old", ["a"])
# A nested value, its leaves, and its structure in words.
TREES: list[tuple[Any, list[Any], str]] = [
    (1, [1], "*"),
    (None, [], "None"),
    ([], [], "list()"),
    ({}, [], "dict()"),
    ("text", ["text"], "*"),
    ([1, (2, 3)], [1, 2, 3], "list(*, tuple(*, *))"),
    ({"b": [1, None], "a": 2}, [2, 1], "dict('a': *, 'b': list(*, None))"),
    (Point(1, {"k": Old([2])}), [1, 2], "Point(*, dict('k': Old(list(*))))"),
    ((None, [None]), [], "tuple(None, list(None))"),
    ({1: "a", (2, 3): "b"}, ["a", "b"], "dict(1: *, (2, 3): *)"),
]


@pytest.mark.parametrize(("value", "leaves", "words"), TREES, ids=[words for _, _, words in TREES])
def test_nested_values_come_apart_and_together(value: Any, leaves: list[Any], words: str) -> None:
    found, structure = flatten(value)
    assert found == leaves
    assert str(structure) == words
    assert structure.leaves == len(leaves)
    again = unflatten(structure, found)
    assert again == value
    assert type(again) is type(value)
    assert flatten(again)[1] == structure
    assert hash(flatten(again)[1]) == hash(structure)


def test_other_containers_are_leaves() -> None:
    for value in (OrderedDict(a=1), {1, 2}, weft.zeros(3), range(3)):
        assert flatten(value) == ([value], Structure(None))


def test_map_tree_keeps_the_structure() -> None:
    value = Point([1, None], {"a": (2,)})
    assert map_tree(lambda a: a * 10, value) == Point([10, None], {"a": (20,)})
    assert map_tree(lambda a, b, c: a + b + c, value, value, value) == Point([3, None], {"a": (6,)})
    assert map_tree(lambda: 1, None) is None


# Pairs that look alike and are not: a mapped function would silently meet the wrong leaves.
UNLIKE: list[tuple[Any, Any]] = [
    ([1], (1,)),
    ([1], [1, 2]),
    ([1], [None]),
    ({"a": 1}, {"b": 1}),
    (Point(1, 2), (1, 2)),
    ([1], [[1]]),
    (Point(1, 2), Old(1)),
]


@pytest.mark.parametrize(("one", "other"), UNLIKE, ids=str)
def test_unlike_structures_are_refused(one: Any, other: Any) -> None:
    words = f"[tree] trees of the same structure are required, got {flatten(one)[1]} and {flatten(other)[1]}."
    with pytest.raises(weft.UserError) as caught:
        map_tree(lambda a, b: a, one, other)
    assert words in str(caught.value)


@pytest.mark.parametrize("leaves", [[], [1], [1, 2, 3]], ids=str)
def test_the_wrong_number_of_leaves_is_refused(leaves: list[int]) -> None:
    with pytest.raises(weft.UserError, match=r"\[tree\] "):
        unflatten(flatten((0, 0))[1], leaves)


# --- settings --------------------------------------------------------------------------------------------------------


def test_defaults_then_environment_then_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KNOBS:
        monkeypatch.delenv(f"WEFT_{name.upper()}", raising=False)
    assert {name: getattr(Knobs(), name) for name in KNOBS} == {name: knob.default for name, knob in KNOBS.items()}
    monkeypatch.setenv("WEFT_SEED", "17")
    monkeypatch.setenv("WEFT_DEVICE", "null")
    knobs = Knobs()
    assert (knobs.seed, knobs.device) == (17, "null")
    with knobs.set(seed=18):
        assert (knobs.seed, knobs.device) == (18, "null")
    assert knobs.seed == 17


def test_set_holds_for_the_block_only() -> None:
    before = {name: getattr(weft.knobs, name) for name in KNOBS}
    with weft.knobs.set(seed=5, debug=0):
        with weft.knobs.set(seed=6, pending_nodes="77"):
            assert (weft.knobs.seed, weft.knobs.pending_nodes) == (6, 77)
        assert weft.knobs.seed == 5
    with pytest.raises(KeyError), weft.knobs.set(seed=9):
        raise KeyError
    with pytest.raises(weft.UserError), weft.knobs.set(seed=9, nonsense=1):
        pass
    assert {name: getattr(weft.knobs, name) for name in KNOBS} == before


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"nonsense": 1}, "[knobs] there is no setting 'nonsense'. The settings are device, seed, "),
    ({"seed": -1}, "[knobs] WEFT_SEED cannot be '-1': it must be 0 or more."),
    ({"seed": "abc"}, "[knobs] WEFT_SEED cannot be 'abc': "),
    ({"seed": 1.5}, "[knobs] WEFT_SEED cannot be '1.5': "),
    ({"pending_nodes": 0}, "[knobs] WEFT_PENDING_NODES cannot be '0': it must be 1 or more."),
    ({"pending_bytes": None}, "[knobs] WEFT_PENDING_BYTES cannot be 'None': "),
    ({"debug": True}, "[knobs] WEFT_DEBUG cannot be 'True': "),
    ({"device": "moon"}, "WEFT_DEVICE cannot be 'moon'"),
    ({"device": None}, "WEFT_DEVICE cannot be 'None'"),
]


@pytest.mark.parametrize(("settings", "text"), WRONG, ids=str)
def test_wrong_settings_are_refused_when_they_are_set(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(weft.UserError) as caught, weft.knobs.set(**settings):
        pass
    assert text in str(caught.value)


def test_a_wrong_variable_stops_the_program_with_its_name() -> None:
    environment = {**os.environ, "WEFT_PENDING_NODES": "many"}
    done = subprocess.run([sys.executable, "-c", "import weft"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "[knobs] WEFT_PENDING_NODES cannot be 'many': " in done.stderr


def test_every_setting_is_documented() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| `(\w+)` \| `(.*?)` \|", (REPOSITORY / "docs/settings.md").read_text(), re.MULTILINE
    )
    assert rows == [(name, f"WEFT_{name.upper()}", str(knob.default)) for name, knob in KNOBS.items()]
    assert all(knob.help for knob in KNOBS.values())


# --- errors ----------------------------------------------------------------------------------------------------------


def here() -> int:
    """The line that calls."""
    return sys._getframe(1).f_lineno


KINDS: list[tuple[type[WeftError], type[Exception]]] = [
    (weft.UserError, ValueError),
    (weft.RunError, RuntimeError),
    (weft.InternalError, AssertionError),
]


@pytest.mark.whole_errors
@pytest.mark.parametrize(("kind", "base"), KINDS)
def test_three_kinds_of_error(kind: type[WeftError], base: type[Exception]) -> None:
    error, line = kind("somewhere", "it is so."), here()
    assert isinstance(error, WeftError)
    assert isinstance(error, base)
    assert not any(isinstance(error, other) for other, _ in KINDS if other is not kind)
    assert (error.where, error.message) == ("somewhere", "it is so.")
    assert (
        str(error)
        == f'test_ground.py:{line}: error, line = kind("somewhere", "it is so."), here()\n[somewhere] it is so.'
    )


@pytest.mark.whole_errors
def test_an_error_can_name_another_line() -> None:
    source, line = user_source(), here()
    error = weft.RunError("somewhere", "it is so.", source)
    assert error.source is source
    assert str(error).startswith(f"test_ground.py:{line}: source, line = user_source(), here()\n")


def deep(x: weft.Tensor) -> weft.Tensor:
    return x.reshape(7)  # the innermost line of the user's own code is the one to name


CALLS: dict[str, Callable[[], Any]] = {
    "at once": lambda: weft.zeros(3).reshape(7),
    "in a function": lambda: deep(weft.zeros(3)),
    "in a body": lambda: weft.checkpoint(deep)(weft.zeros(3)),
    "in a derivative": lambda: weft.grad(lambda x: deep(x).sum())(weft.zeros(3)),
}


@pytest.mark.whole_errors
@pytest.mark.parametrize("name", CALLS)
def test_the_users_line_stands_on_top(name: str) -> None:
    with pytest.raises(weft.UserError) as caught:
        CALLS[name]()
    top, message = str(caught.value).split("\n")
    assert re.fullmatch(r"test_ground\.py:\d+: .*reshape\(7\).*", top)
    assert message == "[reshape] shape (3,) has 3 elements, which do not fill (7,)."


@pytest.mark.whole_errors
def test_a_line_without_a_file_is_still_named() -> None:
    code = compile("\n\nweft.zeros(3).reshape(7)", "<typed>", "exec")
    with pytest.raises(weft.UserError) as caught:
        exec(code, {"weft": weft})
    assert str(caught.value).startswith("<typed>:3\n[reshape] ")


def test_a_source_knows_its_line_after_the_frame_is_gone() -> None:
    def inner() -> Source | None:
        return user_source()

    source = inner()
    assert source is not None
    assert source.line == inner.__code__.co_firstlineno + 1
