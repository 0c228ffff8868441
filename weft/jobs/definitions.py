"""Networks that are written as text: files, and those that are saved by name beside the runs (RUNS/.networks/NAME.yaml).

`model=net.yaml` trains the network of a file, `model=NAME` a saved one. A run keeps the text, so it needs neither file later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from .. import nn
from ..data import Dataset, Text
from ..dtypes import int32
from ..errors import UserError
from ..io.files import replace_file
from ..zoo.catalogue import ALIASES, FACTS
from ..zoo.definition import Definition, DefinitionError, network_costs, parse_network, plan_network
from ..zoo.facts import NetworkFacts

SUFFIXES = (".yaml", ".yml")
SAVED, IMPORTED = ".networks", "imported"  # in the folder of runs, and in that
KEPT = "network"  # in the folder of a run
LARGEST = 1 << 20  # bytes of a file


def is_definition(model: str) -> bool:
    """Whether a network is named by a file."""
    return Path(model).suffix.lower() in SUFFIXES


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


def definition_of(settings: Mapping[str, Any]) -> Definition | None:
    """The network of these settings, if it is written as text."""
    path = None if settings["model"] is None else definition_file(settings["model"], settings["runs"])
    return None if path is None else read_definition(path)


def network_facts(settings: Mapping[str, Any]) -> NetworkFacts | None:
    """What is known of the network of these settings; None if it is chosen by the data."""
    if settings["model"] is None:
        return None
    definition = definition_of(settings)
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


def fitted_definition(definition: Definition, dataset: Dataset, size: tuple[int, int] | None) -> nn.Module:
    """The network for this dataset, with images of this size."""
    if isinstance(dataset, Text):
        model: Any = plan_network(definition, (dataset.length,), len(dataset.vocabulary)).build()
        model.context = dataset.length  # characters that a continuation is computed from
        return model  # type: ignore[no-any-return]
    shape = tuple(dataset.shape) if size is None else (dataset.shape[0], *size)
    return plan_network(definition, shape, len(dataset.classes) or prod(dataset.labels.shape[1:])).build()


def keep_definition(folder: Path, label: str, text: str) -> None:
    """Keep the text in the folder of a run."""
    place = folder / KEPT
    place.mkdir(exist_ok=True)
    replace_file(place / f"{label}.yaml", [text.encode()], "train")


def kept_definition(folder: Path) -> Path | None:
    """The text that a run keeps."""
    return next(iter(sorted((folder / KEPT).glob("*.yaml"))), None)


def imported_file(runs: str | Path, name: str) -> Path | None:
    """The file of an imported network (see network_store.py) by its name; None if there is none."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", name) is None:
        return None
    folder = Path(runs) / SAVED / IMPORTED / name
    return next((path for path in sorted(folder.glob(f"{name}.*")) if path.is_file()), None)
