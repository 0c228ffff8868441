"""`weft.load`: a network from a file, of weft's own format or of another, chosen by the file's content."""

from __future__ import annotations

import os
from pathlib import Path

from . import onnx
from .errors import RunError
from .io.zip_archive import START
from .nn.module import Module
from .saved.program import load as load_program


def load(path: str | os.PathLike[str]) -> Module:
    """Load a network from a file: a program that `weft.save` wrote, or an ONNX model (`pip install 'weft[onnx]'`).

    The result is a module that is called like what was saved. Nothing in the file is executed: its graph is parsed and checked.
    `load(path).eval()` computes what the network computed in evaluation mode, `weft.jit(network)` compiles it, and it can be trained
    further. See `weft.save` for an example.
    """
    try:
        with Path(path).open("rb") as file:
            is_program = file.read(len(START)) == START
    except OSError as error:
        raise RunError("load", f"{path} cannot be read: {error.strerror or error}.") from None
    return load_program(path) if is_program else onnx.load(path)
