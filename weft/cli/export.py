"""The verb `export`: a trained network as a file, or a page, that needs neither its run nor the code that built it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..jobs.device import on
from ..jobs.export import export_onnx, export_run
from ..jobs.schema import Setting, flag
from ..jobs.settings import DEVICE
from ..jobs.stored import run_of
from ..jobs.web import export_web
from ..saved.program import load
from .arguments import Words, read
from .table import pairs


def export(words: Sequence[str]) -> None:
    """Save a trained network as a file that needs no run and no code: weft export RUN out=net.weft, to=onnx, or to=web.

    The file holds the graph, the best weights, preprocessing, labels, metrics and origin: `weft predict` needs
    nothing else. In Python: weft.load("net.weft"). An ONNX model takes pixels and gives what the network predicts in any runtime for
    ONNX; it requires pip install 'weft[onnx]'. A page (to=web) is a folder that classifies pictures in a browser, without a server; RUN
    may be a saved program (net.weft) as well.
    """
    known = {
        "to": Setting(str, "weft", "the format", choices=("weft", "onnx", "web")),
        "out": Setting(str, None, "the file, or the folder of a page; the name of the run if nobody says"),
        "exist_ok": Setting(flag, False, "replace a file, or a page, that is there"),
        "device": DEVICE,
    }
    given = read("export", words, known, 1)
    saved = _saved_program(given)
    source = run_of("export", given.plain) if saved is None else saved
    path = Path(given["out"] or (f"{source.stem}-web" if given["to"] == "web" else f"{source.name}.{given['to']}"))
    if path.exists() and not given["exist_ok"]:
        raise UserError("weft export", f"{path} is there already. Choose another name (out=), or say exist_ok=true.")
    with on(given["device"]):
        print(pairs({"weft": _as_program, "onnx": _as_onnx, "web": _as_page}[given["to"]](source, path)))


def _saved_program(given: Words) -> Path | None:
    """The file that is exported, if it is none of a run."""
    if not given.plain or not Path(given.plain[0]).is_file():
        return None
    if given["to"] != "web":
        raise UserError(
            "weft export",
            f"to={given['to']} requires a run, got the file {given.plain[0]}. A file can become a page: to=web.",
        )
    return Path(given.plain[0])


def _as_program(folder: Path, path: Path) -> dict[str, str]:
    program = export_run("export", folder, path)
    return _facts(path, program.argument_types(), program.labels or ())


def _as_onnx(folder: Path, path: Path) -> dict[str, str]:
    model = export_onnx("export", folder, path)
    return _facts(path, [str(port) for port in model.inputs], json.loads(model.metadata.get("labels", "[]")))


def _facts(path: Path, inputs: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    facts = {"file": str(path), "size": f"{path.stat().st_size:,} bytes", "inputs": ", ".join(inputs)}
    if labels:
        facts["labels"] = f"{len(labels)}: {', '.join(labels[:5])}{', ...' if len(labels) > 5 else ''}"
    return facts


def _as_page(source: Path, path: Path) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        program = load(source) if source.is_file() else export_run("export", source, Path(folder) / "net.weft")
        size = export_web(program, path)
    code, weights = f"{size.code:,} bytes of WebAssembly", f"{size.weights:,} bytes"
    return {"folder": str(path), "code": code, "weights": weights, "open": str((path / "index.html").resolve())}
