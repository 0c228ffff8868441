"""Networks that people keep beside their runs: texts with all their versions, and files of other programs.

RUNS/.networks/NAME.yaml                  the text of a network, its latest version
RUNS/.networks/versions/NAME/0001.yaml    all versions, the first one first
RUNS/.networks/imported/NAME/             a file that was imported, and about.json
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

from .. import nn, onnx, zoo
from ..errors import UserError, WeftError
from ..hints import nearest
from ..io import load_weights
from ..io.files import replace_file
from ..nn.module import is_made, without_values
from ..records import dataclass
from ..zoo.catalogue import ALIASES, FACTS
from ..zoo.definition import parse_network
from ..zoo.published import NAMINGS, has_all_names
from .definitions import IMPORTED, LARGEST, SAVED, read_definition_text
from .prediction.find import find_predictor

VERSIONS, ABOUT = "versions", "about.json"
PROGRAMS = (".weft", ".onnx")
WEIGHTS = (".safetensors", ".npz", ".pth", ".pt", ".h5", ".keras", ".caffemodel")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,59}")


@dataclass(frozen=True)
class ImportedNetwork:
    """A file of another program, or a saved program: what is known of it."""

    name: str
    file: str  # its name in the folder
    kind: str  # program, onnx or weights
    nbytes: int
    parameters: int
    network: str = ""  # of the zoo, that weights are known to be for
    task: str = ""  # of a program that can be used as it is
    shape: tuple[int, ...] = ()
    classes: int = 0
    problem: str = ""  # why it cannot be used as it is

    @property
    def is_runnable(self) -> bool:
        """Whether it predicts as it is; weights need a network."""
        return self.kind != "weights" and not self.problem


class NetworkStore:
    """The networks beside a folder of runs."""

    def __init__(self, runs: str | Path) -> None:
        self.folder = Path(runs) / SAVED

    # --- texts --------------------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The networks that are saved as text."""
        return sorted(path.stem for path in self.folder.glob("*.yaml") if _NAME.fullmatch(path.stem))

    def path(self, name: str) -> Path:
        """The file of a network."""
        path = self.folder / f"{name}.yaml"
        if not _NAME.fullmatch(name) or not path.is_file():
            raise UserError(
                "networks", f"there is no network {name[:60]!r} in {self.folder}. {_hint(name, self.names())}"
            )
        return path

    def text(self, name: str, version: int | None = None) -> str:
        """The text of a network, the latest or an earlier version."""
        if version is None:
            return read_definition_text(self.path(name))
        path = self._versions(name) / f"{version:04d}.yaml"
        if not path.is_file():
            raise UserError("networks", f"there is no version {version} of {name}: there are {self.versions(name)}.")
        return read_definition_text(path)

    def versions(self, name: str) -> list[int]:
        """The numbers of all versions, the first one first."""
        return sorted(int(path.stem) for path in self._versions(name).glob("*.yaml") if path.stem.isdecimal())

    def save(self, name: str, text: str) -> int:
        """Save a text under a name; the number of this version. It must be YAML that can be parsed."""
        check_network_name(name, self)
        if len(text.encode()) > LARGEST:
            raise UserError("networks", f"a text of at most {LARGEST:,} bytes is required.")
        parse_network(text)
        versions = self._versions(name)
        versions.mkdir(parents=True, exist_ok=True)
        found = self.versions(name)
        number = found[-1] if found else 0
        if not found or self.text(name, number) != text:
            number = _add_version(versions, number + 1, text)
        replace_file(self.folder / f"{name}.yaml", [text.encode()], "networks")
        return number

    def delete(self, name: str) -> None:
        """Delete a network with all versions, or an imported one. Runs keep the text of their networks."""
        if name in (one.name for one in self.imported()):
            shutil.rmtree(self.folder / IMPORTED / name)
            return
        self.path(name).unlink()
        shutil.rmtree(self._versions(name), ignore_errors=True)

    def _versions(self, name: str) -> Path:
        return self.folder / VERSIONS / name

    # --- imported files -----------------------------------------------------------------------------------------------------------

    def imported(self) -> list[ImportedNetwork]:
        """The files that were imported."""
        found = sorted((self.folder / IMPORTED).glob(f"*/{ABOUT}"))
        return [one for path in found if _NAME.fullmatch(path.parent.name) and (one := _read_about(path)) is not None]

    def import_path(self, name: str) -> Path:
        """The file of an imported network."""
        one = next((one for one in self.imported() if one.name == name), None)
        if one is None:
            names = [one.name for one in self.imported()]
            raise UserError("networks", f"there is no imported network {name[:60]!r}. {_hint(name, names)}")
        return self.folder / IMPORTED / name / one.file

    def import_file(self, source: Path, name: str | None = None, *, filename: str | None = None) -> ImportedNetwork:
        """Import a saved program, an ONNX model or a file of weights: it is read, checked and copied. Nothing in it is executed."""
        shown = filename or source.name
        suffix = Path(shown).suffix.lower()
        if suffix not in (*PROGRAMS, *WEIGHTS):
            known = ", ".join((*PROGRAMS, *WEIGHTS))
            raise UserError("networks", f"a file of one of {known} is required, got {shown[:80]}.")
        name = name or re.sub(r"[^A-Za-z0-9_-]", "_", Path(shown).stem)[:60]
        check_network_name(name, self, is_new=True)
        place = self.folder / IMPORTED
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, prefix=".importing-") as folder:
            made = Path(folder) / name
            made.mkdir()
            file = made / f"{name}{suffix}"
            shutil.copyfile(source, file)
            try:
                about = _described(name, file)
            except WeftError as error:  # the file at its place for a moment is called what the user calls it
                raise UserError("networks", error.message.replace(str(file), shown)) from None
            (made / ABOUT).write_text(json.dumps(asdict(about), indent=1), encoding="utf-8")
            made.rename(place / name)
        return about


def _add_version(folder: Path, number: int, text: str) -> int:
    """Write the next version, under the next number that is not taken."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".saving-") as file:
        file.write(text.encode())
        file.flush()
        while True:
            try:
                os.link(file.name, folder / f"{number:04d}.yaml")  # fails if it exists
                return number
            except FileExistsError:
                number += 1


def check_network_name(name: str, store: NetworkStore, is_new: bool = False) -> None:
    """A name that is none of the zoo and, for a new one, not taken."""
    if not _NAME.fullmatch(name):
        raise UserError(
            "networks", f"a name of letters, digits, _ and - that begins with a letter is required, got {name[:60]!r}."
        )
    if name in FACTS or name in ALIASES:
        raise UserError("networks", f"another name is required: {name} is a network of the zoo.")
    imported = {one.name for one in store.imported()}
    if name in imported or (is_new and name in store.names()):
        raise UserError(
            "networks",
            f"a name that is not taken is required, got {name}. Delete that network first, or take another name.",
        )


def _described(name: str, file: Path) -> ImportedNetwork:
    if file.suffix in WEIGHTS:
        values = load_weights(file)
        counted = sum(int(np.prod(value.shape)) for value in values.values())
        return ImportedNetwork(name, file.name, "weights", file.stat().st_size, counted, _network_of(values))
    kind = "onnx" if file.suffix == ".onnx" else "program"
    try:
        found = find_predictor("networks", str(file), trust_compiled=False)
    except WeftError as error:
        if kind == "program":
            raise
        values = onnx.load_onnx_weights(file)  # an error if it is no ONNX model at all
        counted = sum(int(np.prod(value.shape)) for value in values.values())
        return ImportedNetwork(name, file.name, kind, file.stat().st_size, counted, problem=error.message[:500])
    counted = sum(int(np.prod(t.shape)) for t in found.model.named_tensors().values())
    return ImportedNetwork(
        name, file.name, kind, file.stat().st_size, counted, "", found.task, tuple(found.shape), len(found.classes)
    )


def _network_of(values: Mapping[str, np.ndarray]) -> str:
    """The network of the zoo that weights are for, by the names and shapes of its tensors; empty if none is."""
    for name, facts in FACTS.items():
        if facts.task == "text" or facts.takes_vectors:
            continue
        with without_values():
            model = zoo.find(name)()
            if is_made(model) and _fits(model, name, values):
                return name
    return ""


def _fits(model: nn.Module, name: str, values: Mapping[str, np.ndarray]) -> bool:
    """Whether the tensors of a network are among these; those of its last layer may be for other classes."""
    own = model.named_tensors()
    if set(own) <= set(values):
        return sum(tuple(own[n].shape) != values[n].shape for n in own) <= 2
    return name in NAMINGS and has_all_names(model, name, values)


def _read_about(path: Path) -> ImportedNetwork | None:
    """What is known of an imported file; None if it is damaged."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        known = {one.name: told[one.name] for one in fields(ImportedNetwork)}
        return ImportedNetwork(**{**known, "shape": tuple(known["shape"])})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _hint(name: str, names: list[str]) -> str:
    return nearest(name, names) if names else "None is saved yet."
