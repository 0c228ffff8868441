"""The local store of published weights: one folder for each name, with the file as it was published and a description.

It is the folder `weights` in the folder for data. A file is checked against its SHA-256 each time it is used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from dataclasses import asdict, fields
from pathlib import Path

from .. import zoo
from ..data.catalogue import check_writable, data_folder
from ..data.download import Report, checksum, fetch
from ..errors import RunError, UserError
from ..hints import nearest
from ..io import load_weights
from ..nn.module import without_values
from ..records import dataclass
from ..zoo.published import NAMINGS, find_naming

FILE, ABOUT = "weights", "about.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StoredWeights:
    """What is known about weights in the store."""

    name: str
    network: str  # of the zoo
    library: str  # whose names its tensors have
    sha256: str
    bytes: int
    licence: str
    origin: str

    @property
    def path(self) -> Path:
        return store_folder() / self.name / FILE

    def checked_path(self) -> Path:
        """The file, if it still is the one that was added."""
        found = checksum(self.path) if self.path.is_file() else "none"
        if found != self.sha256:
            raise RunError(
                "weights",
                f"{self.path} is damaged: its SHA-256 is {found[:16]}..., it should be {self.sha256[:16]}.... Remove and add it again.",
            )
        return self.path


def store_folder() -> Path:
    """The folder of the store."""
    return data_folder() / "weights"


def stored() -> list[StoredWeights]:
    """All weights in the store, by name."""
    folder = store_folder()
    names = sorted(path.parent.name for path in folder.glob(f"*/{ABOUT}")) if folder.is_dir() else []
    return [_read(name) for name in names if _NAME.fullmatch(name)]


def is_stored(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and (store_folder() / name / ABOUT).is_file()


def find_stored(name: str) -> StoredWeights:
    """Weights by name."""
    if not is_stored(name):
        names = [each.name for each in stored()]
        hint = nearest(name, names) if names else "The store is empty: weft weights add FILE puts weights into it."
        raise UserError("weights", f"there are no weights {name!r} in {store_folder()}. {hint}")
    return _read(name)


def add(
    source: str,
    name: str | None = None,
    *,
    network: str | None = None,
    sha256: str | None = None,
    licence: str = "",
    origin: str = "",
    report: Report | None = None,
) -> StoredWeights:
    """Put a file, or what is at a URL, into the store. The name is by default that of the network.

    The file must hold weights of that network. A download needs its `sha256`; of a file it is checked if it is given.
    """
    network = network or name
    if network not in NAMINGS:
        hint = "" if network is None else f" {nearest(network, list(NAMINGS))}"
        raise UserError("weft weights add", f"which network are they for? Say network=mobilenet_v2, for example.{hint}")
    name = name or network
    _check_new(name, sha256)
    check_writable(store_folder())
    with tempfile.TemporaryDirectory(dir=store_folder(), prefix=".adding-") as folder:
        made = Path(folder) / name
        made.mkdir()
        file = _fetched(source, made / FILE, sha256, report)
        entry = StoredWeights(
            name,
            network,
            _library(network, file, source),
            checksum(file),
            file.stat().st_size,
            licence,
            origin or source,
        )
        (made / ABOUT).write_text(json.dumps(asdict(entry), indent=1), encoding="utf-8")
        try:
            os.rename(made, store_folder() / name)
        except OSError as error:
            raise RunError("weights", f"{store_folder() / name} cannot be written: {error.strerror}.") from error
    return entry


def remove(name: str) -> Path:
    """Delete weights from the store; the folder that was deleted."""
    find_stored(name)
    folder = store_folder() / name
    shutil.rmtree(folder)
    return folder


def is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _check_new(name: str, sha256: str | None) -> None:
    if not _NAME.fullmatch(name):
        raise UserError("weights", f"a name of letters, digits, dots and dashes is required, got {name!r}.")
    if (store_folder() / name).exists():
        raise UserError(
            "weft weights add",
            f"{name} is in the store already. Take another name=, or remove it: weft weights remove {name}",
        )
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise UserError("weft weights add", f"sha256 is 64 hexadecimal digits, got {sha256!r}.")


def _fetched(source: str, target: Path, sha256: str | None, report: Report | None) -> Path:
    """The file, downloaded or copied, with the hash that was given."""
    if is_url(source):
        if sha256 is None:
            raise UserError(
                "weft weights add", "a download needs the hash of the file: sha256=..., as its publisher gives it."
            )
        try:
            return fetch([source], target, sha256, report)
        except RunError as error:
            problem = error.message.partition(" On a machine without network")[0]
            raise RunError(
                "weights", f"{problem} Where there is no network, bring the file by other means: weft weights add FILE"
            ) from None
    if not Path(source).is_file():
        raise UserError("weights", f"a file, or a URL that begins with https://, is required, got {source!r}.")
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise RunError(
            "weights", f"{source} cannot be copied to {target.parent.parent}: {error.strerror or error}."
        ) from error
    found = checksum(target)
    if sha256 not in (None, found):
        raise RunError("weights", f"{source} is another file: its SHA-256 is {found}, and {sha256} was given.")
    return target


def _library(network: str, file: Path, source: str) -> str:
    """The library whose names the tensors have; an error if they are not of this network."""
    try:
        values = load_weights(file)
    except RunError as error:
        raise RunError("weights", error.message.replace(str(file), source)) from None
    with without_values():
        return find_naming(zoo.find(network)(), network, values).library


def _read(name: str) -> StoredWeights:
    path = store_folder() / name / ABOUT
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        known = {each.name: told[each.name] for each in fields(StoredWeights)}
        if known["name"] != name or not all(isinstance(v, int if k == "bytes" else str) for k, v in known.items()):
            raise ValueError("it does not describe these weights")
        return StoredWeights(**known)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError("weights", f"{path} is damaged: {error}. Remove the folder and add the weights again.") from None
