"""`weft.load`: a network from a file, of weft's own format or of another, chosen by the file's content."""

from __future__ import annotations

import os

from . import onnx
from .errors import UserError
from .io.file_kind import file_kind
from .nn.module import Module
from .saved.program import load as load_program


def load(path: str | os.PathLike[str], *, trust_compiled: bool | None = None) -> Module:
    """Load a network from a file: a program that `weft.save` wrote, or an ONNX model (which requires the extra `onnx`).

    The result is a module that is called like what was saved. Nothing in the file is executed: its graph is parsed and checked.
    `load(path).eval()` computes what the network computed in evaluation mode, `weft.jit(network)` compiles it, and it can be trained
    further. See `weft.save` for an example.

    Compiled code in the file (`weft.save(..., compiled="host")`) is used if you made it yourself, which a signature proves. With
    `trust_compiled=True` it is used wherever it comes from: it is native code, so say this only of files that you would run as a
    program. With False it is never used. Without it the program is compiled when it first runs.
    """
    kind = file_kind(path)
    if kind == "weights":
        raise UserError(
            "load",
            f"{path} holds weights alone, not a network. Read them with weft.io.load_weights, or give them to a network of the zoo: "
            "weft convert FILE net.weft model=NAME.",
        )
    return onnx.load(path) if kind == "onnx" else load_program(path, trust_compiled=trust_compiled)
