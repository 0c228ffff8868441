"""Networks that are written as text: files, and those that are saved by name beside the runs (RUNS/.networks/NAME.yaml).

`model=net.yaml` trains the network of a file, `model=NAME` a saved one. A run keeps the text, so it needs neither file later.
`model=net.py` is a Python file with a function `network(input_shape, classes)`; it is executed, so the studio refuses it unless its owner
allows it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from .. import nn
from ..data import Dataset, Text
from ..dtypes import int32
from ..errors import UserError
from ..io.files import replace_file
from ..records import dataclass
from ..zoo.catalogue import ALIASES, FACTS
from ..zoo.definition import Definition, DefinitionError, network_costs, parse_network, plan_network
from ..zoo.facts import NetworkFacts

SUFFIXES, PYTHON = (".yaml", ".yml"), ".py"
SAVED, IMPORTED = ".networks", "imported"  # in the folder of runs, and in that
KEPT = "network"  # in the folder of a run
LARGEST = 1 << 20  # bytes of a file


@dataclass
class FileAccess:
    """Which files a process may take networks from: all of them, unless a server restricts it."""

    python: bool = True
    allows: Callable[[Path], bool] | None = None  # whether a path without links may be read

    def check(self, path: Path) -> None:
        if path.suffix.lower() == PYTHON and not self.python:
            raise UserError(
                "network",
                "networks in Python files are not used here: a Python file can do anything on the server. Its owner can allow them with "
                "weft studio python_models=true. Write the network as text instead.",
            )
        if self.allows is not None and not self.allows(Path(os.path.realpath(path))):
            raise UserError("network", f"a file in an allowed folder is required, got {path}.")


ACCESS = FileAccess()  # of this process; the server of the studio restricts it


@dataclass(frozen=True)
class PythonNetwork:
    """A network as a Python file with a function `network(input_shape, classes)`."""

    text: str
    input: tuple[int, ...] | None = None

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """Execute the file and call its function."""
        names: dict[str, Any] = {"__name__": "weft_network"}
        exec(compile(self.text, "<network>", "exec"), names)
        function = names.get("network")
        made = function(input_shape, classes) if callable(function) else None
        if not isinstance(made, nn.Module):
            raise UserError(
                "network",
                "a Python file with a function network(input_shape, classes) that returns a module is required.",
            )
        return made


def is_definition(model: str) -> bool:
    """Whether a network is named by a file."""
    return Path(model).suffix.lower() in (*SUFFIXES, PYTHON)


def network_label(model: str) -> str:
    """The name of a network, or of the file that it is written in.

    >>> network_label("resnet18"), network_label("nets/flower_cnn.yaml")
    ('resnet18', 'flower_cnn')
    """
    return re.sub(r"[^A-Za-z0-9_.-]", "_", Path(model).stem)[:60] if is_definition(model) else model


def definition_file(model: str, runs: str | Path) -> Path | None:
    """The file of a network that is written as text; None for a network of the zoo, or an unknown one."""
    if is_definition(model):
        return Path(model).expanduser()
    saved = Path(runs) / SAVED / f"{model}.yaml"
    is_name = model not in FACTS and re.fullmatch(r"[A-Za-z0-9_-]+", model) is not None
    return saved if is_name and saved.is_file() else None


def read_definition_text(path: Path) -> str:
    """The text of a file."""
    ACCESS.check(path)
    try:
        if path.stat().st_size > LARGEST:
            raise UserError("network", f"a file of at most {LARGEST:,} bytes is required, got {path}.")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("network", f"the file {path} cannot be read: {error}.") from None


def read_definition(path: Path) -> Definition:
    """The network of a file; an error names the file and the line."""
    try:
        return parse_network(read_definition_text(path))
    except DefinitionError as error:
        raise DefinitionError(error.problems, str(path)) from None


def definition_of(settings: Mapping[str, Any]) -> Definition | PythonNetwork | None:
    """The network of these settings, if it is written as text or as a Python file."""
    path = None if settings["model"] is None else definition_file(settings["model"], settings["runs"])
    if path is not None and path.suffix.lower() == PYTHON:
        return PythonNetwork(read_definition_text(path))
    return None if path is None else read_definition(path)


def network_facts(settings: Mapping[str, Any]) -> NetworkFacts | None:
    """What is known of the network of these settings; None if it is chosen by the data."""
    if settings["model"] is None:
        return None
    definition = definition_of(settings)
    if isinstance(definition, PythonNetwork):  # it is not executed to show something
        return None
    return zoo_facts(settings["model"]) if definition is None else definition_facts(definition)


def zoo_facts(model: str) -> NetworkFacts | None:
    return FACTS.get(ALIASES.get(model, model))


def definition_facts(definition: Definition) -> NetworkFacts:
    """The facts of a network that is written as text, for the input that it names."""
    plan = plan_network(definition)
    costs = network_costs(plan)
    shape = plan.input if len(plan.input) == 3 else None
    task = "text" if plan.dtype is int32 else "segmentation" if len(plan.output) == 3 else "classification"
    return NetworkFacts(task, costs.parameters, costs.macs, shape, plan.classes)


def fitted_definition(
    definition: Definition | PythonNetwork, dataset: Dataset, size: tuple[int, int] | None
) -> nn.Module:
    """The network for this dataset, with images of this size."""
    if isinstance(dataset, Text):
        model: Any = _built(definition, (dataset.length,), len(dataset.vocabulary))
        model.context = dataset.length  # characters that a continuation is computed from
        return model  # type: ignore[no-any-return]
    shape = tuple(dataset.shape) if size is None else (dataset.shape[0], *size)
    return _built(definition, shape, len(dataset.classes) or prod(dataset.labels.shape[1:]))


def _built(definition: Definition | PythonNetwork, shape: tuple[int, ...], classes: int) -> nn.Module:
    if isinstance(definition, PythonNetwork):
        return definition.build(shape, classes)
    return plan_network(definition, shape, classes).build()


def keep_definition(folder: Path, label: str, definition: Definition | PythonNetwork) -> None:
    """Keep the text in the folder of a run."""
    place = folder / KEPT
    place.mkdir(exist_ok=True)
    suffix = PYTHON if isinstance(definition, PythonNetwork) else SUFFIXES[0]
    replace_file(place / f"{label}{suffix}", [definition.text.encode()], "train")


def kept_definition(folder: Path) -> Path | None:
    """The text that a run keeps."""
    place = folder / KEPT
    return (
        next((path for path in sorted(place.glob("*")) if is_definition(path.name)), None) if place.is_dir() else None
    )


def imported_file(runs: str | Path, name: str) -> Path | None:
    """The file of an imported network (see network_store.py) by its name; None if there is none."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", name) is None:
        return None
    folder = Path(runs) / SAVED / IMPORTED / name
    return next((path for path in sorted(folder.glob(f"{name}.*")) if path.is_file()), None)
