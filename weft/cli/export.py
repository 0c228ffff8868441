"""The verb `export`: a trained network as a file that needs neither its run nor the code that built it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..jobs.device import on
from ..jobs.predictor import export_run
from ..jobs.schema import Setting, flag
from ..jobs.settings import DEVICE
from ..jobs.stored import run_of
from .arguments import read
from .table import pairs


def export(words: Sequence[str]) -> None:
    """Save a trained network as a program that needs no run and no code: weft export RUN out=net.weft.

    The file holds the graph as text, the best weights, preprocessing, labels, metrics and origin: weft predict net.weft photo.jpg needs
    nothing else. In Python: weft.load("net.weft").
    """
    known = {
        "to": Setting(str, "weft", "the format", choices=("weft",)),
        "out": Setting(str, None, "the file; the name of the run if nobody says"),
        "exist_ok": Setting(flag, False, "replace a file that is there"),
        "device": DEVICE,
    }
    given = read("export", words, known, 1)
    folder = run_of("export", given.plain)
    path = Path(given["out"] or f"{folder.name}.weft")
    if path.exists() and not given["exist_ok"]:
        raise UserError("weft export", f"{path} is there already. Choose another name (out=), or say exist_ok=true.")
    with on(given["device"]):
        program = export_run("export", folder, path)
    size, inputs = f"{path.stat().st_size:,} bytes", ", ".join(program.argument_types())
    facts = {"file": str(path), "size": size, "inputs": inputs}
    if program.labels:
        facts["labels"] = (
            f"{len(program.labels)}: {', '.join(program.labels[:5])}{', ...' if len(program.labels) > 5 else ''}"
        )
    print(pairs(facts))
