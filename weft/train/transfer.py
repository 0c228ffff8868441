"""Transfer learning: starting from pretrained weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..io import load_weights
from ..nn.module import Module


def transfer(model: Module, source: str | os.PathLike[str] | Mapping[str, Any]) -> list[str]:
    """Load pretrained weights wherever name and shape agree; the names of the tensors that were loaded.

    The rest, such as a head for other classes, is left unchanged. `source` is a file of weights, a run folder, or values
    by name, which are weft's own: `zoo.load_published` translates those of other libraries. Lazy layers must know their sizes: call the network once first.
    """
    values = source if isinstance(source, Mapping) else load_weights(_weights(Path(source)))
    own = model.named_tensors()
    fitting = {n: v for n, v in values.items() if n in own and tuple(v.shape) == own[n].shape}
    if not fitting:
        raise UserError(
            "transfer",
            f"no tensor of {_some(values)} fits this network, which has {_some(own)}. Is it the same architecture?",
        )
    model.load(fitting, strict=False)
    return list(fitting)


def _weights(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = path / "weights" / "best.safetensors"
    if not found.exists():
        raise UserError("transfer", f"{path} is no folder of a run with weights: it has no {found.relative_to(path)}.")
    return found


def _some(values: Mapping[str, Any]) -> str:
    names = list(values)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def parts_of(model: Module, names: Sequence[str]) -> list[Module]:
    """The modules whose parameters were all loaded: they can be frozen as a whole, running statistics included."""
    chosen: set[str] = {*names, *model.named_state()}
    found: list[tuple[str, Module]] = []
    for path, module in model.named_modules().items():
        inside = [f"{path}.{n}" if path else n for n in module.named_tensors()]
        covered = any(path == p or path.startswith(f"{p}.") for p, _ in found)
        if chosen.intersection(names, inside) and not covered and chosen.issuperset(inside):
            found.append((path, module))
    return [module for _, module in found]
