"""Compiled code for a saved program: what running it would compile, collected in entries of its archive."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..compiler.store import recording
from ..device_names import CPU, CUDA
from ..errors import UserError
from ..knobs import knobs
from ..runtime.team import native_code
from ..tensor import Tensor
from ..tracing.jit import jit
from ..tree import flatten
from ..version import __version__
from .program import load
from .trust import INDEX, SIGNATURE, entry_of, sign

TARGETS = {"host": CPU, CUDA: CUDA}  # the devices that compile for them
_VERSION = 1


def as_targets(given: str | Sequence[str]) -> list[str]:
    """Names of targets, checked: one, several, or several in one text (host,cuda)."""
    names = [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else list(given)
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        raise UserError(
            "save", f"compiled must name targets of {', '.join(TARGETS)}, got {', '.join(map(repr, unknown))}."
        )
    return list(dict.fromkeys(names))


def compiled_entries(
    path: Path, targets: Sequence[str], call: tuple[tuple[Any, ...], dict[str, Any]], sizes: Mapping[str, int]
) -> dict[str, list[bytes]]:
    """The entries with the code that the program in a file needs for a call with these arguments, without and with `jit`."""
    objects = {target: _objects(path, TARGETS[target], *call) for target in targets}
    index = {
        "version": _VERSION,
        "weft": __version__,
        "sizes": dict(sizes),
        "targets": {
            target: {name: sha256(content).hexdigest() for name, content in sorted(found.items())}
            for target, found in objects.items()
        },
    }
    text = (json.dumps(index, indent=1) + "\n").encode()
    signature = sign(text)
    entries = {INDEX: [text]} | ({} if signature is None else {SIGNATURE: [signature]})
    return entries | {
        entry_of(target, name): [content]
        for target, found in objects.items()
        for name, content in sorted(found.items())
    }


def _objects(path: Path, device: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, bytes]:
    with knobs.set(device=device), recording() as objects:
        native_code()
        program = load(path, trust_compiled=False).eval()
        jit(program).lower(*args, **kwargs)  # compiled, not run
        if "eval" in program.manifest.functions:  # it has no state that a run would change
            with knobs.set(compile_after=sys.maxsize):  # not what was computed often before
                for leaf in flatten(program(*args, **kwargs))[0]:
                    if isinstance(leaf, Tensor):
                        leaf.realize()  # large programs are compiled without jit, too
    return objects
