"""`weft.export_c`: a network as a folder with a C library, its header and an example."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..compiler.cpu.target import find_target
from ..errors import UserError
from ..io.files import cannot_write, replace_file
from ..saved.program import Program, load
from ..saved.save import save
from .archive import static_library
from .compile import CompiledLibrary
from .example import example_text, resize_hint
from .header import header_text
from .program import compile_library
from .sources import makefile_text, readme_text


def export_c(
    folder: str | os.PathLike[str],
    program: Callable[..., Any],
    inputs: Any = None,
    *,
    name: str = "net",
    target: str = "host",
    sizes: Mapping[str, int] | None = None,
    weights: Literal["inside", "file"] = "inside",
    threads: int = 1,
    labels: Sequence[str] | None = None,
    exist_ok: bool = False,
) -> CompiledLibrary:
    """Compile a network or function to a C library that needs no Python, and write it to a folder with a header and an example.

    `program`: what `weft.load` gave, or a network or function with example `inputs` as for `weft.save`; sizes are those of the
    example. `sizes` fixes free dimensions of a saved program; `batch` is 1 if it is not given. `target`: host, x86-64-v2, x86-64-v3, x86-64-v4, aarch64,
    armv7, riscv64 or wasm32. `weights="file"` writes them to a file beside the library, whose address is passed to every call.

    >>> import os, tempfile, weft
    >>> from weft import nn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     library = weft.export_c(f"{folder}/c", nn.Linear(4, 3), weft.zeros((1, 4)), target="armv7")
    ...     sorted(os.listdir(f"{folder}/c"))
    ['Makefile', 'README.md', 'example.c', 'libnet.a', 'net.h']
    >>> library.workspace
    0
    """
    find_target(target)
    place = Path(folder)
    if weights not in ("inside", "file"):
        raise UserError("export_c", f"weights must be 'inside' or 'file', got {weights!r}.")
    if place.exists() and not exist_ok and (not place.is_dir() or any(place.iterdir())):
        raise UserError("export_c", f"{place} already exists. Choose another folder, or pass exist_ok=True.")
    found = _as_program(program, inputs)
    library = compile_library(found, name, target, sizes, weights_inside=weights == "inside", threads=threads)
    known = found.facts.get("preprocessing") or {}
    _write(
        place,
        library,
        target,
        list((found.labels or ()) if labels is None else labels),
        str(known.get("resize", "squash")),
    )
    return library


def _as_program(program: Callable[..., Any], inputs: Any) -> Program:
    if isinstance(program, Program):
        return program.eval()
    if inputs is None:
        raise UserError("export_c", "the types of the inputs are required: pass an example, as for weft.save.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.weft"
        save(path, program, inputs, dynamic=False, train=False)
        return load(path).eval()


def _write(folder: Path, library: CompiledLibrary, target: str, labels: Sequence[str], resize: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write("export_c", folder, error) from error
    name = library.name
    files: dict[str, bytes | str] = {
        f"lib{name}.a": static_library(f"{name}.o", library.object, library.summary.defined),
        f"{name}.h": header_text(library, target, labels),
        "Makefile": makefile_text(library, target),
        "README.md": readme_text(library, target, resize_hint(library, resize)),
    }
    if target != "wasm32":
        files["example.c"] = example_text(library, labels, resize)
    if not library.weights_inside:
        files[f"{name}.weights"] = library.weights
    for path, content in files.items():
        replace_file(folder / path, [content.encode() if isinstance(content, str) else content], "export_c")
