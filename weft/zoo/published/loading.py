"""Gives a network of the zoo published weights: finds which library named them, translates, and lists whatever does not fit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ... import nn
from ...errors import UserError
from ...records import dataclass
from .naming import Naming, Statistics, sources
from .tables import NAMINGS

WRAPPERS = (
    "module.",
    "_orig_mod.",
    "model.",
    "backbone.",
    "net.",
)  # of DataParallel, torch.compile, and training programs
COUNTERS = r"(^|\.)num_batches_tracked$"
SHOWN = 8  # names of a list in a message


@dataclass(frozen=True)
class LoadedWeights:
    """What was set: the library whose names they are, weft's names, and the tensors of the head if it stays new."""

    library: str
    names: list[str]
    new_head: list[str]
    statistics: Statistics | None


def load_published(
    model: nn.Module, network: str, values: Mapping[str, Any], *, new_head: bool = False
) -> LoadedWeights:
    """Set all tensors of a network of the zoo from published values (`weft.io.load_weights` reads them from a file).

    Strict: an error lists what is missing, extra, or of another shape, and nothing is changed. With `new_head`, the last layer stays
    as it is if its number of classes is another one.

    >>> import numpy as np
    >>> from weft import zoo
    >>> shapes = {"conv1": (20, 1, 5, 5), "conv2": (50, 20, 5, 5), "ip1": (500, 800), "ip2": (10, 500)}
    >>> caffe = {f"{n}.weight": np.zeros(s) for n, s in shapes.items()} | {f"{n}.bias": np.zeros(s[0]) for n, s in shapes.items()}
    >>> zoo.load_published(zoo.lenet5(), "lenet5", caffe).library
    'caffe'
    """
    naming, renamed, wanted = _best(model, network, values)
    own = model.named_tensors()
    head = _head(wanted) if new_head else []
    found: dict[str, np.ndarray] = {}
    missing, wrong = [], []
    for name, source in wanted.items():
        if source.name not in renamed:
            missing.append(source.name)
            continue
        value = _fitted(source.value(renamed), own[name].shape)
        if value.shape == own[name].shape:
            found[name] = value
        elif name not in head or value.shape[1:] != own[name].shape[1:]:
            wrong.append(f"{source.name} is {value.shape}, and {own[name].shape} is needed")
    used = {source.name for source in wanted.values()}
    extra = [name for name in renamed if name not in used]
    _refuse(network, naming, missing, extra, wrong)
    kept = [name for name in head if name not in found]
    found = {
        name: value for name, value in found.items() if not kept or name not in head
    }  # a head is set whole or not at all
    model.load(found, strict=False)
    return LoadedWeights(naming.library, list(found), [name for name in own if name not in found], naming.statistics)


def has_all_names(model: nn.Module, network: str, values: Mapping[str, Any]) -> bool:
    """Whether a library's names of all tensors are among these."""
    try:
        _, renamed, wanted = _best(model, network, values)
    except UserError:
        return False
    return all(source.name in renamed for source in wanted.values())


def find_naming(model: nn.Module, network: str, values: Mapping[str, Any]) -> Naming:
    """The library whose names these are. Other networks share a few names: at least half of this one's must be there."""
    naming, renamed, wanted = _best(model, network, values)
    names = {source.name for source in wanted.values()}
    found = len(names & renamed.keys())
    if 2 * found < len(names):
        raise UserError(
            "load_published",
            f"weights of {network} are required, got {found} of its {len(names)} tensors. Is it the right network?",
        )
    return naming


def _best(
    model: nn.Module, network: str, values: Mapping[str, Any]
) -> tuple[Naming, dict[str, np.ndarray], dict[str, Any]]:
    """The naming that most of the names fit, the values under its names, and the sources of the network's tensors."""
    if network not in NAMINGS:
        known = ", ".join(NAMINGS)
        raise UserError(
            "load_published", f"no names of published weights are known for {network!r}. They are for: {known}."
        )
    tried = []
    for naming in NAMINGS[network]:
        try:
            wanted = sources(model, naming)
        except (ValueError, KeyError, StopIteration):  # the network was built with other parts than this library's
            continue
        renamed = _renamed(naming, values, {source.name for source in wanted.values()})
        tried.append((sum(source.name in renamed for source in wanted.values()), naming, renamed, wanted))
    best = max(tried, key=lambda each: each[0], default=None)
    if best is None or best[0] == 0:
        libraries = " or ".join(each.library for each in NAMINGS[network])
        raise UserError(
            "load_published",
            f"weights of {network} under the names of {libraries} are required, got {_some(list(values))}. Is it the right network?",
        )
    return best[1:]


def _renamed(naming: Naming, values: Mapping[str, Any], wanted: set[str]) -> dict[str, np.ndarray]:
    """The values without wrappers and counters, under the names of the table."""
    names = list(values)
    for wrapper in WRAPPERS * 2:
        if names and all(name.startswith(wrapper) for name in names):
            names = [name.removeprefix(wrapper) for name in names]
    found: dict[str, np.ndarray] = {}
    for name, value in zip(names, values.values(), strict=True):
        name = name.removeprefix(naming.prefix)
        for pattern, by in naming.renamed.items():
            name = re.sub(pattern, by, name)
        ignored = naming.ignored and re.search(naming.ignored, name) and name not in wanted
        if not ignored and not re.search(COUNTERS, name):
            found[name] = np.asarray(value)
    for name, other in naming.tied.items():
        if name in found and other in found and np.array_equal(found[name], found[other]):
            del found[name]
    return found


def _fitted(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Axes of length 1 more or less, and linear layers stored as convolutions over a whole image, hold the same numbers."""
    squeezed = [n for n in value.shape if n != 1] == [n for n in shape if n != 1]
    flattened = len(shape) == 2 and value.ndim == 4 and value.shape[0] == shape[0]
    return value.reshape(shape) if value.size == prod(shape) and (squeezed or flattened) else value


def _head(wanted: Mapping[str, Any]) -> list[str]:
    """The tensors of the last layer."""
    last = list(wanted)[-1].rpartition(".")[0]
    return [name for name in wanted if name.rpartition(".")[0] == last]


def _refuse(network: str, naming: Naming, missing: Sequence[str], extra: Sequence[str], wrong: Sequence[str]) -> None:
    problems = [f"missing: {_some(missing)}"] if missing else []
    problems += [f"not in this network: {_some(extra)}"] if extra else []
    problems += [f"other shapes: {_some(wrong)}"] if wrong else []
    if problems:
        raise UserError(
            "load_published", f"these weights of {naming.library} do not fit {network}. {'. '.join(problems)}."
        )


def _some(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
