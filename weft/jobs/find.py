"""Finds runs by folder, by name, or by the end of their name."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UserError
from ..hints import nearest

AMBIGUOUS = "Use a longer name."  # the advice if several runs fit
FILES = {
    ".weft",
    ".onnx",
    ".safetensors",
    ".npz",
    ".pth",
    ".pt",
    ".h5",
    ".keras",
    ".caffemodel",
}  # meant as files, not as names of runs
DEEPEST = 4  # levels of folders below the root that are searched


def find_run(text: str, root: str | os.PathLike[str] = "runs") -> Path:
    """The folder of a run, given as a folder, or by its name or the end of its name if only one run under `root` has it."""
    if _is_run(text):
        return Path(text)
    known = run_folders(root)
    names = {folder: folder.relative_to(root).as_posix() for folder in known}
    for fits in (
        [f for f in known if text in (names[f], f.name)],
        [f for f in known if text and names[f].endswith(text)],
    ):
        if len(fits) == 1:
            return fits[0]
        if fits:
            shown = ", ".join(names[f] for f in fits[:5]) + (", ..." if len(fits) > 5 else "")
            raise UserError("weft", f"{len(fits)} runs under {root} are called {text!r}: {shown}. {AMBIGUOUS}")
    if Path(text).suffix in FILES and not Path(text).exists():
        raise UserError("weft", f"there is no file {text}, and no run under {root} has that name.")
    why = ": it has no args.yaml" if Path(text).is_dir() else f", and no run under {root} has that name"
    hint = nearest(text, [*names.values(), *(f.name for f in known)]) if known else "weft train makes one."
    raise UserError("weft", f"{text} is no folder of a run{why}. {hint}")


def run_folders(root: str | os.PathLike[str]) -> list[Path]:
    """All folders of runs in a folder and a few levels below it; hidden folders hold none."""
    found: list[str] = []
    level = [os.fspath(root)]
    for _ in range(DEEPEST + 1):
        runs = {folder for folder in level if _is_run(folder)}
        found += runs
        level = [inner for folder in level if folder not in runs for inner in _folders(folder)]
    return [Path(folder) for folder in sorted(found, key=lambda folder: folder.split(os.sep))]


def _is_run(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "args.yaml"))


def _folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:  # .jobs, .studio and .trash hold no runs of their own
            return [entry.path for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError:  # folders that cannot be read are skipped
        return []
