"""The verb `networks`: networks that are written as text, and imported ones, which are kept beside the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..errors import UserError
from ..jobs.definitions import is_definition, read_definition, read_definition_text
from ..jobs.network_store import NetworkStore
from ..jobs.schema import Setting, flag
from ..zoo.catalogue import ALIASES, FACTS
from ..zoo.definition import layer_specs, network_costs, plan_network, zoo_network_as_text
from .arguments import part, read
from .contents import size_text
from .table import as_json, pairs, table

_JSON = Setting(flag, False, "print JSON, for programs")
_RUNS = Setting(str, "runs", "folder of runs, beside which networks are saved")


def networks(words: Sequence[str]) -> None:
    """Check and manage networks written as text: weft networks check net.yaml, then weft train DATA model=net.yaml."""
    parts = {
        "list": _list,
        "layers": _layers,
        "show": _show,
        "check": _check,
        "save": _save,
        "import": _import,
        "delete": _delete,
    }
    part("networks", words, parts)


def _list(words: Sequence[str]) -> None:
    """The networks that are saved beside the runs, and the imported ones."""
    given = read("networks list", words, {"runs": _RUNS, "json": _JSON}, 0, _list.__doc__)
    store = NetworkStore(given["runs"])
    saved = {name: store.versions(name) for name in store.names()}
    if given["json"]:
        print(as_json({"saved": saved, "imported": [asdict(one) for one in store.imported()]}))
        return
    rows = [[name, "text", f"{len(versions)} versions"] for name, versions in saved.items()]
    rows += [[one.name, one.kind, size_text(one.nbytes)] for one in store.imported()]
    if rows:
        print(table(["name", "kind", "size"], rows, left=("name", "kind", "size")))
    else:
        print(
            f"{store.folder} is empty. weft networks save net.yaml puts a network into it; weft networks lists those of the zoo."
        )


def _layers(words: Sequence[str]) -> None:
    """The layers that a network can be written with, and their arguments: weft networks layers."""
    given = read("networks layers", words, {"json": _JSON}, 0, _layers.__doc__)
    specs = layer_specs().values()
    if given["json"]:
        print(as_json({spec.name: {"about": spec.about, "arguments": list(spec.arguments)} for spec in specs}))
        return
    group = ""
    for spec in specs:
        if spec.group != group:
            group = spec.group
            print(f"\n{group}")
        arguments = [
            f"{one.name}" + (f"={one.default_text}" if one.default_text else "") for one in spec.arguments.values()
        ]
        print(f"  {spec.name}: {', '.join(arguments) or 'no arguments'}\n      {spec.about}")


def _show(words: Sequence[str]) -> None:
    """A network as text, to start from: weft networks show resnet18 > net.yaml."""
    given = read("networks show", words, {"runs": _RUNS}, 1, _show.__doc__)
    name = _first("show", given.plain)
    if is_definition(name):
        print(read_definition_text(Path(name)), end="")
    elif ALIASES.get(name, name) in FACTS:
        print(zoo_network_as_text(ALIASES.get(name, name)).text, end="")
    else:
        print(NetworkStore(given["runs"]).text(name), end="")


def _check(words: Sequence[str]) -> None:
    """Check the text of a network, and say what it costs: weft networks check net.yaml."""
    given = read("networks check", words, {"json": _JSON}, 1, _check.__doc__)
    plan = plan_network(read_definition(Path(_first("check", given.plain)).expanduser()))
    costs = network_costs(plan)
    facts = {
        "input": "x".join(map(str, plan.input)), "output": "x".join(map(str, plan.output)), "parameters": costs.parameters,
        "macs": costs.macs, "training_bytes_of_batch_64": costs.training_bytes(64),
    }  # fmt: skip
    shown = facts | {"parameters": f"{costs.parameters:,}", "macs": f"{costs.macs:,}"}
    shown["training_bytes_of_batch_64"] = f"about {size_text(costs.training_bytes(64))}"
    print(as_json(facts) if given["json"] else pairs(shown))


def _save(words: Sequence[str]) -> None:
    """Keep the text of a network under a name: weft networks save net.yaml name=mine, then weft train DATA model=mine."""
    known = {"name": Setting(str, None, "name; default: the name of the file"), "runs": _RUNS}
    given = read("networks save", words, known, 1, _save.__doc__)
    path = Path(_first("save", given.plain)).expanduser()
    name = given["name"] or path.stem
    version = NetworkStore(given["runs"]).save(name, read_definition_text(path))
    print(f"{name} is saved as version {version}. Train it with: weft train DATA model={name}")


def _import(words: Sequence[str]) -> None:
    """Keep a saved program, an ONNX model or weights: weft networks import net.onnx; weights then start a training: weights=NAME."""
    known = {"name": Setting(str, None, "name; default: the name of the file"), "runs": _RUNS, "json": _JSON}
    given = read("networks import", words, known, 1, _import.__doc__)
    source = Path(_first("import", given.plain)).expanduser()
    if not source.is_file():
        raise UserError("weft networks import", f"a file is required, got {source}.")
    found = NetworkStore(given["runs"]).import_file(source, given["name"])
    print(as_json(asdict(found)) if given["json"] else pairs(asdict(found)))


def _delete(words: Sequence[str]) -> None:
    """Delete a network that was saved or imported: weft networks delete NAME. Runs keep the text of theirs."""
    given = read("networks delete", words, {"runs": _RUNS}, 1, _delete.__doc__)
    name = _first("delete", given.plain)
    NetworkStore(given["runs"]).delete(name)
    print(f"{name} is deleted.")


def _first(what: str, plain: Sequence[str]) -> str:
    if not plain:
        raise UserError(f"weft networks {what}", f"a network is required, got none: weft networks {what} NAME.")
    return plain[0]
