"""The job `export`: the network of a run as a file that can be downloaded, in exports/ of the run folder.

settings: run (its folder), to (weft, onnx, c or web), and for to=c: target, batch, weights, threads
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..aot.export import export_c
from ..compiler.cpu.target import TARGETS
from ..errors import UserError
from ..io.files import replace_with
from .events import Event, Listener
from .export import export_onnx, export_run, exported_program
from .queue.job_queue import JobQueue
from .queue.kinds import EXPORT
from .queue.record import JobRecord
from .schema import Setting, count, validated
from .web import export_web

FOLDER = "exports"  # below the run folder
FORMATS = {"weft": "a saved program", "onnx": "an ONNX model", "c": "a C library", "web": "a page for browsers"}
SETTINGS = {
    "run": Setting(str, None, "folder of the run"),
    "to": Setting(str, "weft", "the format", choices=tuple(FORMATS)),
    "target": Setting(str, "host", "the CPU that code is compiled for", "to=c", ("host", *TARGETS)),
    "batch": Setting(count, 1, "the batch size", "to=c"),
    "weights": Setting(str, "inside", "where weights are: inside the library, or in a file beside it", "to=c", ("inside", "file")),
    "threads": Setting(count, 1, "how many threads a call runs on", "to=c"),
}  # fmt: skip


def submit_export(queue: JobQueue, run: Path, given: Mapping[str, Any], owner: str = "") -> JobRecord:
    """Check the settings of an export and add it to the queue."""
    settings = validated("export", {**{n: s.default for n, s in SETTINGS.items()}, **given, "run": str(run)}, SETTINGS)
    if not (run / "weights" / "best.safetensors").exists():
        raise UserError("export", f"a run with weights is required, got {run.name}, which has finished no epoch yet.")
    return queue.add(settings, EXPORT, owner=owner)


def export(settings: Mapping[str, Any], earlier: Path | None, listener: Listener) -> None:
    """Write the file. What an earlier attempt left is replaced."""
    told = validated("export", {n: v for n, v in settings.items() if n in SETTINGS}, SETTINGS)
    run = Path(told["run"])
    (run / FOLDER).mkdir(exist_ok=True)
    listener(Event("activity", {"text": f"exporting {run.name} as {FORMATS[told['to']]}"}))
    path = {"weft": _program, "onnx": _onnx, "c": _library, "web": _page}[told["to"]](run, told)
    listener(Event("result", {"file": path.relative_to(run).as_posix(), "bytes": path.stat().st_size}))


def exported_files(run: Path) -> list[Path]:
    """The files that were exported, the newest first."""
    found = [p for p in (run / FOLDER).glob("*") if p.is_file() and not p.name.startswith(".")]
    return sorted(found, key=lambda p: -p.stat().st_mtime)


def _program(run: Path, told: Mapping[str, Any]) -> Path:
    path = run / FOLDER / f"{run.name}.weft"
    export_run("export", run, path)
    return path


def _onnx(run: Path, told: Mapping[str, Any]) -> Path:
    path = run / FOLDER / f"{run.name}.onnx"
    export_onnx("export", run, path)
    return path


def _library(run: Path, told: Mapping[str, Any]) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / f"{run.name}-c"
        sizes = {"batch": told["batch"]}
        export_c(
            place, exported_program("export", str(run)), target=told["target"], sizes=sizes, weights=told["weights"], threads=told["threads"]
        )  # fmt: skip
        name = run.name if told["target"] == "host" else f"{run.name}-{told['target']}"
        return _zipped(place, run / FOLDER / f"{name}-c.zip")


def _page(run: Path, told: Mapping[str, Any]) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / f"{run.name}-web"
        export_web(exported_program("export", str(run)), place)
        return _zipped(place, run / FOLDER / f"{run.name}-web.zip")


def _zipped(folder: Path, path: Path) -> Path:
    def write(file: Any) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
            for part in sorted(p for p in folder.rglob("*") if p.is_file()):
                packed.write(part, Path(folder.name) / part.relative_to(folder))

    replace_with(path, write, "export")
    shutil.rmtree(folder, ignore_errors=True)
    return path
