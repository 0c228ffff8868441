"""Writes the folder of a page: the files of `page/`, a description with the compiled code, and the weights in parts.

A page that is opened as a file may load scripts and nothing else, so binary data is base64 in scripts. The weights are split, so that a
large network never is one text: the page loads, decodes and forgets one part after another.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..io.files import cannot_write

PAGE = Path(__file__).parent / "page"
DESCRIPTION = "description.js"
_PART = 3 << 20  # bytes of weights in a script; a multiple of 3, so that base64 needs no padding


def write_page(folder: Path, description: Mapping[str, Any], code: bytes, weights: bytes | memoryview) -> None:
    """Write the folder beside its place, then move it there; a page that was there is replaced."""
    _check_replaceable(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as beside:
            made = Path(beside) / folder.name
            _write_files(made, description, code, memoryview(weights))
            if folder.exists():
                os.rename(folder, Path(beside) / "old")
            os.rename(made, folder)
    except OSError as error:
        raise cannot_write("export", folder, error) from error


def _check_replaceable(folder: Path) -> None:
    """Only a page or an empty folder is replaced: what else is there is somebody's."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / DESCRIPTION).is_file())):
        raise UserError(
            "export", f"a new folder, an empty one or a page is required, got {folder}. Choose another name (out=)."
        )


def _write_files(folder: Path, description: Mapping[str, Any], code: bytes, weights: memoryview) -> None:
    shutil.copytree(PAGE, folder)
    parts = {f"weights/{i}.js": weights[at : at + _PART] for i, at in enumerate(range(0, len(weights), _PART))}
    (folder / "weights").mkdir()
    for name, part in parts.items():
        _write_script(folder / name, f"weightsPart({json.dumps(name)}, {json.dumps(_base64(part))});\n")
    content = json.dumps({**description, "parts": list(parts), "code": _base64(code)}, indent=1)
    _write_script(
        folder / DESCRIPTION,
        f"// The network: its facts, and its compiled code as base64.\nconst NETWORK = {content};\n",
    )


def _write_script(path: Path, text: str) -> None:
    path.write_text(text, encoding="ascii")


def _base64(data: bytes | memoryview) -> str:
    return base64.b64encode(data).decode("ascii")
