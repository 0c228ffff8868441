"""The verb `weights`: the local store of published weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from ..errors import UserError
from ..jobs.schema import Setting, flag
from ..jobs.weights_store import StoredWeights, add, find_stored, is_url, remove, store_folder, stored
from .arguments import part, read
from .contents import size_text
from .display import Display
from .table import as_json, pairs, table

_JSON = Setting(flag, False, "print JSON, for programs")


def weights(words: Sequence[str]) -> None:
    """Manage pretrained weights on this machine: weft weights add FILE network=mobilenet_v2, then weft train weights=mobilenet_v2."""
    part("weights", words, {"list": _list, "add": _add, "show": _show, "remove": _remove})


def _list(words: Sequence[str]) -> None:
    """The weights in the store."""
    given = read("weights list", words, {"json": _JSON}, 0, _list.__doc__)
    found = stored()
    if given["json"]:
        print(as_json([asdict(entry) for entry in found]))
        return
    if not found:
        print(f"{store_folder()} is empty. weft weights add FILE network=NAME puts weights into it.")
        return
    rows = [[e.name, e.network, e.library, size_text(e.bytes), e.licence or "-", e.sha256[:16]] for e in found]
    print(
        table(
            ["name", "network", "names of", "size", "licence", "sha256"],
            rows,
            left=("name", "network", "names of", "licence", "sha256"),
        )
    )


def _add(words: Sequence[str]) -> None:
    """Put a file, or what is at a URL, into the store: weft weights add FILE network=mobilenet_v2 licence=BSD-3-Clause.

    A URL needs the hash of the file: weft weights add https://... network=resnet18 sha256=...
    """
    known = {
        "network": Setting(str, None, "network of the zoo that they are for; default: the name"),
        "name": Setting(str, None, "name in the store; default: the name of the network"),
        "sha256": Setting(str, None, "hash that the file must have; required of a URL"),
        "licence": Setting(str, "", "licence of the weights, as their publisher gives it"),
        "origin": Setting(str, "", "where they come from; default: the file or URL"),
        "json": _JSON,
    }
    given = read("weights add", words, known, 1, _add.__doc__)
    if not given.plain:
        raise UserError("weft weights add", "a file or a URL is required: weft weights add FILE network=mobilenet_v2.")
    source = given.plain[0]
    options = {name: given[name] for name in ("network", "sha256", "licence", "origin")}
    if is_url(source):
        with Display() as display:
            entry = add(
                source, given["name"], **options, report=lambda done, total: display.bar("downloading", done, total)
            )
    else:
        entry = add(source, given["name"], **options)
    print(as_json(asdict(entry)) if given["json"] else _page(entry))


def _show(words: Sequence[str]) -> None:
    """What is known about weights in the store: weft weights show mobilenet_v2."""
    entry, as_program = _named("show", words)
    entry.checked_path()
    print(as_json(asdict(entry)) if as_program else _page(entry))


def _remove(words: Sequence[str]) -> None:
    """Delete weights from the store: weft weights remove mobilenet_v2."""
    entry, as_program = _named("remove", words)
    folder = remove(entry.name)
    print(as_json({"removed": str(folder)}) if as_program else f"removed {folder}")


def _named(what: str, words: Sequence[str]) -> tuple[StoredWeights, bool]:
    given = read(f"weights {what}", words, {"json": _JSON}, 1, (_show if what == "show" else _remove).__doc__)
    if not given.plain:
        raise UserError(f"weft weights {what}", "which weights? weft weights list shows their names.")
    return find_stored(given.plain[0]), given["json"]


def _page(entry: StoredWeights) -> str:
    facts = asdict(entry) | {"bytes": size_text(entry.bytes), "file": str(entry.path)}
    return f"{pairs(facts)}\n\ntrain from them: weft train DATA weights={entry.name} freeze=5"
