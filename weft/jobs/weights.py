"""The weights that a training begins from: a run, a file of any program, or a name in the store."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .. import nn, onnx, zoo
from ..io import load_weights
from ..io.file_kind import FileKind, file_kind
from ..nn.module import without_values
from ..records import dataclass
from ..saved.program import load as load_program
from ..train.transfer import transfer
from ..zoo.catalogue import FACTS
from ..zoo.published import NAMINGS, has_all_names, load_published
from ..zoo.published.naming import Statistics
from .definitions import definition_file, imported_file
from .find import find_run
from .networks import full_name
from .weights_store import find_stored, is_stored

DEPLOYED = "network."  # prefix of a run's tensors in a program of `weft export`, which also holds its preprocessing


@dataclass(frozen=True)
class StartingWeights:
    """Where weights are: the folder of a run, or a file; and the network that they are known to be for."""

    place: Path
    network: str | None = None

    @cached_property
    def kind(self) -> FileKind:
        return file_kind(self.place, "weights")

    def values(self) -> dict[str, np.ndarray]:
        if self.kind == "program":
            tensors = load_program(self.place, trust_compiled=False).named_tensors()
            return {name.removeprefix(DEPLOYED): tensor.numpy() for name, tensor in tensors.items()}
        return onnx.load_onnx_weights(self.place) if self.kind == "onnx" else load_weights(self.place)


@dataclass(frozen=True)
class InitialWeights:
    """What `load_initial_weights` did: the tensors that were loaded, those of a new head, and the image statistics that the weights expect."""

    names: list[str]
    new_head: list[str]
    statistics: Statistics | None = None


def find_weights(text: str, runs: str | Path = "runs") -> StartingWeights:
    """What `weights=` names: a file, else a file that was imported, else a name in the store, else a run."""
    if Path(text).is_file():
        return StartingWeights(Path(text))
    imported = imported_file(runs, text)
    if imported is not None:
        return StartingWeights(imported)
    if is_stored(text):
        entry = find_stored(text)
        return StartingWeights(entry.checked_path(), entry.network)
    return StartingWeights(find_run(text))


def settings_for_weights(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with what follows from weights: the network that they are for, and the size of its images if they are published ones."""
    found = dict(settings)
    if settings["weights"] is None:
        return found
    start = find_weights(settings["weights"], settings.get("runs", "runs"))
    if settings["model"] is None and start.network is not None:
        found["model"] = start.network
    if found["model"] is None or settings["size"] is not None or start.place.is_dir():
        return found
    if definition_file(found["model"], found.get("runs", "runs")) is not None:
        return found
    network = full_name(found["model"])
    shape = FACTS[network].input
    if shape is not None and is_published(network, start.values()):
        found["size"] = shape[1:]
    return found


def is_published(network: str, values: Mapping[str, Any]) -> bool:
    """Whether values are for a network that libraries publish, under names that are not weft's own."""
    if network not in NAMINGS:
        return False
    with without_values():
        return not set(values).intersection(zoo.find(network)().named_tensors())


def load_initial_weights(model: nn.Module, network: str, text: str, runs: str | Path = "runs") -> InitialWeights:
    """Load the weights that `weights=` names into a network."""
    start = find_weights(text, runs)
    if start.place.is_dir():
        return InitialWeights(transfer(model, start.place), [])
    values = start.values()
    has_own_names = not set(values).isdisjoint(model.named_tensors())
    if start.kind == "onnx" and not has_own_names and not has_all_names(model, network, values):
        found, new_head = onnx.assign_in_order(model, start.place)
        model.load(found, strict=False)
        return InitialWeights(list(found), new_head)
    if has_own_names or network not in NAMINGS:
        return InitialWeights(transfer(model, values), [])
    loaded = load_published(model, network, values, new_head=True)
    return InitialWeights(loaded.names, loaded.new_head, loaded.statistics)
