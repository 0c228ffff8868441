"""`DatasetChanges` says how a new version of a dataset differs from its parent, as JSON holds it too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..hints import nearest
from ..records import dataclass
from .label_kinds import LabelKind, label_of_text
from .split_plan import SPLITS

WHERE = "dataset change"


@dataclass(frozen=True)
class DatasetChanges:
    """Changes to a dataset: rows are numbers of images in their split, from 0; all names are those of the parent.

    `relabel` comes before `rename`. Two classes that get the same new name are merged; a relabel to a name that no class
    has adds a class. `add` is a folder of class folders or a list of files, converted as the parent was. Where images have
    several classes or numbers, a relabel has ; between them ("cat;dog"), and `add` is a list; numbers cannot be renamed.

    >>> changes = DatasetChanges(remove={"train": (3, 5)}, rename={"bellis": "daisy"})
    >>> changes.summary()
    'removed 2 images, renamed bellis to daisy'
    >>> DatasetChanges.from_json(changes.as_json()) == changes
    True
    """

    remove: Mapping[str, Sequence[int]] = field(default_factory=dict)
    relabel: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    move: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    add: str | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return any((*self.remove.values(), *self.relabel.values(), *self.move.values(), self.rename, self.add))

    def as_json(self) -> dict[str, Any]:
        """As JSON holds it, where keys are texts; what is empty is left out."""
        found = {
            "remove": {split: sorted(rows) for split, rows in self.remove.items() if rows},
            "relabel": _texts(self.relabel),
            "move": _texts(self.move),
            "rename": dict(self.rename),
            "add": self.add,
        }
        return {name: value for name, value in found.items() if value}

    @classmethod
    def from_json(cls, found: Any) -> DatasetChanges:
        """From what `as_json` gave, or a person wrote."""
        if not isinstance(found, dict):
            raise UserError(WHERE, f"changes must be a JSON object, got {type(found).__name__}.")
        known = list(cls.__dataclass_fields__)
        for name in found:
            if name not in known:
                raise UserError(WHERE, f"there is no change {name!r}. {nearest(str(name), known)}")
        rows = {split: tuple(_row("remove", row) for row in rows) for split, rows in _table(found, "remove").items()}
        names = {
            change: {
                split: {_row(change, row): _text(change, name) for row, name in rows.items()}
                for split, rows in _table(found, change, dict).items()
            }
            for change in ("relabel", "move")
        }
        rename = {old: _text("rename", new) for old, new in _table(found, "rename", str).items()}
        add = found.get("add")
        return cls(rows, names["relabel"], names["move"], rename, None if add is None else _text("add", add))

    @classmethod
    def read(cls, path: str | Path) -> DatasetChanges:
        """From a JSON file."""
        try:
            return cls.from_json(json.loads(Path(path).read_bytes()))
        except OSError as error:
            raise UserError(WHERE, f"{path} cannot be read: {error.strerror or error}.") from None
        except (ValueError, RecursionError) as error:
            raise UserError(WHERE, f"{path} must hold changes as JSON: {error}.") from None

    def with_merges(self, classes: Sequence[str]) -> DatasetChanges:
        """The same changes, where a class that others are merged into is named too: the name alone would tell of a renaming.

        >>> DatasetChanges(rename={"oxeye": "daisy"}).with_merges(["daisy", "oxeye"]).summary()
        'merged oxeye into daisy'
        """
        kept = {new: new for new in self.rename.values() if new in classes and new not in self.rename}
        return replace(self, rename={**self.rename, **kept})

    def check(self, counts: Mapping[str, int], classes: Sequence[str], kind: LabelKind = "class") -> None:
        """Reject changes that do not fit a dataset with these splits, classes and kind of labels."""
        if not self:
            raise UserError(
                WHERE, "at least one change is required, got none. Give remove, relabel, move, rename or add."
            )
        for change, split, row, _ in self._rows():
            if split not in counts:
                raise UserError(WHERE, f"{change} names the split {split!r}, the dataset has {', '.join(counts)}.")
            if not 0 <= row < counts[split]:
                raise UserError(
                    WHERE, f"{change} names image {row} of {split}, which has the images 0 to {counts[split] - 1}."
                )
        if self.rename and kind == "numbers":
            raise UserError(
                WHERE, "rename needs a dataset with classes, got one whose labels are numbers. Relabel images instead."
            )
        for old, new in self.rename.items():
            if old not in classes:
                raise UserError(WHERE, f"there is no class {old!r} to rename. {nearest(old, list(classes))}")
            _check_class("rename", new)
        self._check_rows(kind)

    def _check_rows(self, kind: LabelKind) -> None:
        removed = {(split, row) for split, rows in self.remove.items() for row in rows}
        for change, split, row, name in self._rows():
            if change == "relabel":
                _check_label(name, kind)
            elif change == "move" and (name not in SPLITS or name == split):
                others = " or ".join(known for known in SPLITS if known != split)
                raise UserError(WHERE, f"image {row} of {split} can be moved to {others}, got {name!r}.")
            if change != "remove" and (split, row) in removed:
                raise UserError(WHERE, f"image {row} of {split} is both removed and changed ({change}). Choose one.")

    def _rows(self) -> Iterator[tuple[str, str, int, str]]:
        """Change, split, row, and the new class or split of each image that changes."""
        for split, rows in self.remove.items():
            yield from (("remove", split, row, "") for row in rows)
        for change, splits in (("relabel", self.relabel), ("move", self.move)):
            for split, names in splits.items():
                yield from ((change, split, row, name) for row, name in names.items())

    def summary(self) -> str:
        """What changes, in one line."""
        parts = [
            _counted(done, sum(len(set(rows)) for rows in splits.values()))
            for done, splits in (("removed", self.remove), ("relabelled", self.relabel), ("moved", self.move))
            if any(splits.values())
        ]
        for new in dict.fromkeys(self.rename.values()):
            old = [name for name, other in self.rename.items() if other == new != name]
            if self.rename.get(new) == new:
                parts += [f"merged {' and '.join(old)} into {new}"] if old else []
            else:
                parts.append(f"{'renamed' if len(old) == 1 else 'merged'} {' and '.join(old)} to {new}")
        return ", ".join(parts + ([f"added {Path(self.add).name}"] if self.add else []))


def _texts(splits: Mapping[str, Mapping[int, str]]) -> dict[str, dict[str, str]]:
    return {split: {str(row): rows[row] for row in sorted(rows)} for split, rows in splits.items() if rows}


def _counted(done: str, count: int) -> str:
    return f"{done} {count:,} image{'' if count == 1 else 's'}"


_SHAPES: dict[type, str] = {
    list: "splits and lists of rows",
    dict: "splits and tables of rows",
    str: "old and new names",
}


def _table(found: dict[str, Any], change: str, of: type = list) -> dict[str, Any]:
    values = found.get(change, {})
    if not isinstance(values, dict) or not all(isinstance(value, of) for value in values.values()):
        raise UserError(WHERE, f"{change} must be a table of {_SHAPES[of]}, got {json.dumps(values)[:80]}.")
    return values


def _row(change: str, row: Any) -> int:
    if isinstance(row, str) and row.isdecimal():
        return int(row)
    if isinstance(row, bool) or not isinstance(row, int):
        raise UserError(WHERE, f"{change} needs numbers of images, got {row!r}.")
    return row


def _text(change: str, text: Any) -> str:
    if not isinstance(text, str):
        raise UserError(WHERE, f"{change} needs a text, got {text!r}.")
    return text


def _check_label(text: str, kind: LabelKind) -> None:
    """Reject a new label of the wrong kind."""
    if kind == "class":
        _check_class("relabel", text)
        return
    try:
        label = label_of_text(text, kind)
    except ValueError:
        label = ()
    if kind == "numbers" and not (label and np.isfinite(np.array(label, float)).all()):
        raise UserError(WHERE, f"relabel needs numbers, with ; between several, got {text!r}.")
    for name in label if kind == "classes" else ():
        _check_class("relabel", str(name))


def _check_class(change: str, name: str) -> None:
    if not name or name != name.strip() or not name.isprintable() or len(name) > 200:
        raise UserError(
            WHERE,
            f"{change} needs the name of a class, up to 200 printable characters without spaces around, got {name!r}.",
        )


def merged(changes: Iterable[DatasetChanges]) -> DatasetChanges:
    """All of these changes to images and classes. An image that one of them removes is not changed by the others.

    >>> merged([DatasetChanges(relabel={"train": {1: "a", 2: "b"}}), DatasetChanges(remove={"train": [2]})]).as_json()
    {'remove': {'train': [2]}, 'relabel': {'train': {'1': 'a'}}}
    """
    remove: dict[str, set[int]] = {}
    tables: dict[str, dict[str, dict[int, str]]] = {"relabel": {}, "move": {}}
    rename: dict[str, str] = {}
    for one in changes:
        for split, rows in one.remove.items():
            remove.setdefault(split, set()).update(rows)
        for name, splits in (("relabel", one.relabel), ("move", one.move)):
            for split, table in splits.items():
                tables[name].setdefault(split, {}).update(table)
        rename |= one.rename
    kept = {
        name: {
            split: {row: new for row, new in table.items() if row not in remove.get(split, ())}
            for split, table in splits.items()
        }
        for name, splits in tables.items()
    }
    return DatasetChanges({s: sorted(rows) for s, rows in remove.items()}, kept["relabel"], kept["move"], rename)
