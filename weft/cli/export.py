"""The verb `export`: a trained network as a file that needs neither its run nor the code that built it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..jobs.device import on
from ..jobs.export import export_onnx, export_run
from ..jobs.schema import Setting, flag
from ..jobs.settings import DEVICE
from ..jobs.stored import run_of
from .arguments import read
from .table import pairs


def export(words: Sequence[str]) -> None:
    """Save a trained network as a file that needs no run and no code: weft export RUN out=net.weft, or to=onnx.

    The file holds the graph, the best weights, preprocessing, labels, metrics and origin: `weft predict` needs
    nothing else. In Python: weft.load("net.weft"). An ONNX model takes pixels and gives what the network predicts in any runtime for
    ONNX; it requires pip install 'weft[onnx]'.
    """
    known = {
        "to": Setting(str, "weft", "the format", choices=("weft", "onnx")),
        "out": Setting(str, None, "the file; the name of the run if nobody says"),
        "compiled": Setting(str, None, "targets to add compiled code for: host, cuda or host,cuda; only to=weft"),
        "exist_ok": Setting(flag, False, "replace a file that is there"),
        "device": DEVICE,
    }
    given = read("export", words, known, 1)
    folder = run_of("export", given.plain)
    path = Path(given["out"] or f"{folder.name}.{given['to']}")
    if path.exists() and not given["exist_ok"]:
        raise UserError("weft export", f"{path} is there already. Choose another name (out=), or say exist_ok=true.")
    if given["compiled"] and given["to"] != "weft":
        raise UserError("weft export", f"compiled code is a part of to=weft, got to={given['to']}.")
    with on(given["device"]):
        if given["to"] == "onnx":
            inputs, labels = _as_onnx(folder, path)
        else:
            inputs, labels = _as_program(folder, path, given["compiled"] or ())
    facts = {"file": str(path), "size": f"{path.stat().st_size:,} bytes", "inputs": ", ".join(inputs)}
    if labels:
        facts["labels"] = f"{len(labels)}: {', '.join(labels[:5])}{', ...' if len(labels) > 5 else ''}"
    print(pairs(facts))


def _as_program(folder: Path, path: Path, compiled: str | Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    program = export_run("export", folder, path, compiled)
    return program.argument_types(), program.labels or ()


def _as_onnx(folder: Path, path: Path) -> tuple[Sequence[str], Sequence[str]]:
    model = export_onnx("export", folder, path)
    return [str(port) for port in model.inputs], json.loads(model.metadata.get("labels", "[]"))
