"""`weft.save`: trace a network or a function and write it as a program that runs without the code that built it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..io.safetensors import file_parts
from ..nn.module import Module
from ..tracing.jit import Jit
from ..tree import unflatten
from ..version import __version__
from .archive import write_archive
from .compiled import as_targets, compiled_entries
from .manifest import RESERVED, Manifest
from .trace import ProgramTracer, call_specs, example_sizes, in_mode, stated
from .trace import TensorSpec as TensorSpec


def save(
    path: str | os.PathLike[str],
    program: Callable[..., Any],
    inputs: Any,
    *,
    dynamic: bool = True,
    train: bool = True,
    labels: Sequence[str] | None = None,
    compiled: str | Sequence[str] = (),
    **facts: Any,
) -> None:
    """Save a network or a function, with its state, as one file that runs without the code that built it.

    `inputs`: an example, a `TensorSpec`, or a tuple (positional) or dict (keyword) of them. The first axis of examples is free, so that
    the file serves every batch size; `dynamic=False` fixes all sizes, and a `TensorSpec` names the free ones. Of a network both the
    evaluation and the training mode are saved (`train=False`: only the former). `labels` and other facts (`metrics`, `licence`,
    `origin`, `preprocessing`, ...) go into the manifest; they must be JSON. A network that was loaded from a file keeps the facts of that
    file, unless others are given; None removes one.

    `compiled="host"` adds compiled code for the CPU of this machine, `"cuda"` for its GPU, so that the first call compiles nothing. It
    serves calls with the sizes of the examples (1 for the free dimensions of a `TensorSpec`) on machines with the same CPU and number
    of cores, and the same version of weft; other calls compile as usual. See `weft.load` for who uses it.

    >>> import weft, tempfile
    >>> from weft import nn
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     weft.save(f"{folder}/net.weft", net, weft.zeros((1, 4)))
    ...     again = weft.load(f"{folder}/net.weft").eval()
    >>> x = weft.random.normal((5, 4))
    >>> again(x).tolist() == net(x).tolist()
    True
    """
    reserved = sorted(RESERVED & facts.keys())
    if reserved:
        raise UserError("save", f"the manifest has {', '.join(reserved)} already. Give the fact another name.")
    if labels is not None and (isinstance(labels, str) or not all(isinstance(label, str) for label in labels)):
        raise UserError("save", f"labels must be a list of texts, got {labels!r}.")
    if not callable(program):
        raise UserError("save", f"a network or a function is required, got {program!r}.")
    targets = as_targets(compiled)
    args, kwargs = call_specs(inputs, dynamic)
    function = program.function if isinstance(program, Jit) else program
    tracer = ProgramTracer(function, args, kwargs)
    if isinstance(function, Module):
        for name in ("eval", "train") if train else ("eval",):
            with in_mode(function, name == "train"):
                tracer.add(name)
        tracer.merge_equal()
    else:
        tracer.add("call")
    given = {} if labels is None else {"labels": list(labels)}
    known = {**stated(function, "facts", {}), **given, **facts, "weft": __version__}
    entries = _entries(tracer, {name: fact for name, fact in known.items() if fact is not None})
    if targets:
        sizes = example_sizes(inputs, tracer.dimensions)
        call = unflatten(tracer.structure, [spec.zeros(sizes) for spec in tracer.specs])
        with tempfile.TemporaryDirectory() as folder:  # what cannot be compiled leaves no file, and replaces none
            write_archive(Path(folder, "program.weft"), entries)
            entries |= compiled_entries(Path(folder, "program.weft"), targets, call, sizes)
    write_archive(Path(path), entries)


def _entries(program: ProgramTracer, facts: Mapping[str, Any]) -> dict[str, Any]:
    trainable = tuple(name for name, tensor in program.tensors.items() if tensor.requires_grad)
    manifest = Manifest(
        program.functions, dict(program.dimensions), trainable, dict(sorted(program.ops.items())),
        _frozen_names(program), dict(facts),
    )  # fmt: skip
    try:
        json.dumps(manifest.facts, allow_nan=False)  # other readers of JSON refuse nan
        head = manifest.as_text()
    except (TypeError, ValueError) as error:
        raise UserError("save", f"facts about a program must be JSON: {error}.") from None
    entries: dict[str, Any] = {"manifest.json": [head.encode()]}
    entries |= {f"{name}.py": [text.encode()] for name, text in program.texts.items()}
    return entries | {"weights.safetensors": file_parts(program.tensors)}


def _frozen_names(program: ProgramTracer) -> tuple[str, ...]:
    if not isinstance(program.function, Module):
        return ()
    listed = program.function.named_tensors()
    unlisted = {*program.function.named_state(), *program.function.named_parameters()}
    return tuple(name for name in listed if name not in unlisted)
