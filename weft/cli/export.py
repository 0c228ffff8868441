"""The verb `export`: a trained network as a file, a C library or a page that needs neither its run nor the code that built it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..aot.export import export_c
from ..aot.header import signature
from ..compiler.cpu.target import TARGETS
from ..errors import UserError
from ..jobs.device import on
from ..jobs.export import export_onnx, export_run, exported_program
from ..jobs.schema import Setting, count, flag
from ..jobs.settings import DEVICE
from ..jobs.stored import run_of
from ..jobs.web import export_web
from .arguments import Words, read
from .table import pairs

_ONLY = {
    "compiled": ("weft",), "preprocessing": ("onnx",), "licence": ("weft", "onnx"),
    **dict.fromkeys(("target", "batch", "sizes", "weights", "threads", "name"), ("c",)),
}  # fmt: skip # settings of some formats
_SUFFIXES = {".weft": "weft", ".onnx": "onnx"}
_Ports = tuple[Sequence[str], Sequence[str], Sequence[str]]  # inputs, outputs, labels


def export(words: Sequence[str]) -> None:
    """Export a network as a file, an ONNX model, C library or web page: weft export RUN to=onnx, to=c or to=web.

    The file holds the graph, the best weights, preprocessing, labels, metrics and origin: `weft predict` needs
    nothing else. In Python: weft.load("net.weft"). An ONNX model takes pixels and gives what the network predicts in any runtime for
    ONNX; it requires the extra onnx. to=c writes a folder with a C library, its header and an example, for this CPU or
    another. to=web writes a folder that classifies pictures in a browser, without a server. For both a saved program or an ONNX model can be given
    instead of a run: weft export to=c target=armv7 net.weft.
    """
    known = {
        "to": Setting(str, None, "format; default: by the suffix of out=, or weft", choices=("weft", "onnx", "c", "web")),
        "out": Setting(str, None, "file or folder; default: the name of the run"),
        "compiled": Setting(str, None, "targets to add compiled code for: host, cuda or host,cuda; only to=weft"),
        "licence": Setting(str, None, "licence of the network, for the file; only to=weft and to=onnx"),
        "preprocessing": Setting(flag, True, "normalization and softmax inside; without, a model takes normalized images and gives logits; only to=onnx"),
        "exist_ok": Setting(flag, False, "replace a file or folder that is there"),
        "device": DEVICE,
        "target": Setting(str, "host", "the CPU that code is compiled for", "to=c", ("host", *TARGETS)),
        "batch": Setting(count, 1, "the batch size", "to=c"),
        "sizes": Setting(sizes_by_name, {}, "sizes of other free dimensions, such as length:64", "to=c"),
        "weights": Setting(str, "inside", "where weights are: inside the library, or in a file beside it", "to=c", ("inside", "file")),
        "threads": Setting(count, 1, "how many threads a call runs on", "to=c"),
        "name": Setting(str, "net", "what the names of its functions begin with", "to=c"),
    }  # fmt: skip
    given = read("export", words, known, 1)
    to = _format(given)
    for name, formats in _ONLY.items():
        if name in given.given and to not in formats:
            raise UserError("weft export", f"{name} is a setting of to={' and to='.join(formats)}, got to={to}.")
    if to in ("c", "web"):
        return (_as_library if to == "c" else _as_page)(given, to)
    if given.plain and Path(given.plain[0]).is_file():
        raise UserError(
            "weft export",
            f"a run is required, got the file {given.plain[0]}: weft convert {given.plain[0]} net.{to} converts files.",
        )
    folder = run_of("export", given.plain)
    path = Path(given["out"] or f"{folder.name}.{to}")
    if path.exists() and not given["exist_ok"]:
        raise UserError("weft export", f"{path} already exists. Choose another name (out=), or pass exist_ok=true.")
    with on(given["device"]):
        if to == "onnx":
            inputs, outputs, labels = _as_onnx(folder, path, given)
        else:
            inputs, outputs, labels = _as_program(folder, path, given["compiled"] or (), given["licence"])
    facts = {"file": str(path), "size": f"{path.stat().st_size:,} bytes"}
    facts |= {"inputs": ", ".join(inputs), "outputs": ", ".join(outputs)}
    print(pairs(facts | _labels(labels)))


def _format(given: Words) -> str:
    """The format that to= names, or the suffix of out=; they must not contradict each other."""
    told = _SUFFIXES.get(Path(given["out"] or "").suffix.lower())
    if given["to"] is not None and told not in (None, given["to"]):
        raise UserError("weft export", f"out={given['out']} is the name of a file for to={told}, got to={given['to']}.")
    return str(given["to"] or told or "weft")


def _labels(labels: Sequence[str]) -> dict[str, str]:
    return {"labels": f"{len(labels)}: {', '.join(labels[:5])}{', ...' if len(labels) > 5 else ''}"} if labels else {}


def sizes_by_name(text: str) -> dict[str, int]:
    """length:64,width:32 as a dict."""
    try:
        return {name: count(size) for name, size in (part.split(":") for part in text.split(",") if part)}
    except ValueError:
        raise ValueError("it must be names and sizes such as length:64,width:32") from None


def _as_library(given: Words, to: str) -> None:
    """A folder with a C library."""
    name, folder = _source_and_folder(given, to)
    with on(given["device"]):
        program = exported_program("export", name)
        sizes = given["sizes"] | ({"batch": given["batch"]} if "batch" in given.given else {})
        library = export_c(
            folder, program, name=given["name"], target=given["target"], sizes=sizes, weights=given["weights"],
            threads=given["threads"], exist_ok=given["exist_ok"],
        )  # fmt: skip
    memory = {"code": library.summary.code, "weights": len(library.weights), "workspace": library.workspace}
    facts = {"folder": str(folder), "function": signature(library)}
    facts |= {name: f"{size:,} bytes" for name, size in memory.items()}
    print(pairs(facts | _labels(program.labels or ())))


def _as_program(folder: Path, path: Path, compiled: str | Sequence[str], licence: str | None) -> _Ports:
    program = export_run("export", folder, path, compiled, licence=licence).eval()
    return program.argument_types(), program.result_types(), program.labels or ()


def _as_onnx(folder: Path, path: Path, given: Words) -> _Ports:
    model = export_onnx("export", folder, path, given["licence"], preprocessing=given["preprocessing"])
    labels = json.loads(model.metadata.get("labels", "[]"))
    return [str(port) for port in model.inputs], [str(port) for port in model.outputs], labels


def _as_page(given: Words, to: str) -> None:
    """A folder with a page for browsers."""
    name, folder = _source_and_folder(given, to)
    if folder.exists() and not given["exist_ok"]:
        raise UserError("weft export", f"{folder} already exists. Choose another name (out=), or pass exist_ok=true.")
    with on(given["device"]):
        program = exported_program("export", name)
        size = export_web(program, folder)
    facts = {"folder": str(folder), "open": str((folder / "index.html").resolve())}
    facts |= {"code": f"{size.code:,} bytes of WebAssembly", "weights": f"{size.weights:,} bytes"}
    print(pairs(facts | _labels(program.labels or ())))


def _source_and_folder(given: Words, to: str) -> tuple[str, Path]:
    """The run or saved program, and the folder to write."""
    if not given.plain:
        raise UserError(
            "weft export", "a run or a saved program is required: weft runs list shows which runs there are."
        )
    return given.plain[0], Path(given["out"] or f"{Path(given.plain[0]).stem}-{to}")
