"""The verb `studio`: weft in the browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from .. import studio as web
from ..errors import UserError
from ..jobs.schema import Setting, count, flag
from .arguments import read

_NEEDED = ("nicegui", "sqlalchemy", "alembic", "argon2", "psutil")


def studio(words: Sequence[str]) -> None:
    """Work in the browser: weft studio.

    It shows the runs in a folder, trains, and follows what is trained elsewhere. The printed address carries a key; only this machine can reach it.
    """
    known = {
        "runs": Setting(str, "runs", "folder that runs are kept in"),
        "port": Setting(count, 8800, "port; default: 8800, or the next one that is free"),
        "at_once": Setting(count, 1, "jobs that run at the same time"),
        "roots": Setting(str, None, "folders whose files may be used by their path, with commas; default: this folder"),
        "datasets": Setting(str, None, "folder that datasets are created in; default: datasets beside the runs"),
        "largest_upload": Setting(count, 8192, "megabytes (MiB) of an upload at most"),
        "python_models": Setting(
            flag, False, "let people train networks from Python files of this machine, which are executed"
        ),
        "open": Setting(flag, _has_screen(), "open the page in the browser; default: if there is a screen"),
    }
    given = read("studio", words, known, 0, studio.__doc__)
    if any(find_spec(name) is None for name in _NEEDED):
        raise UserError(
            "weft studio", "the packages of the studio are required. Install them: pip install 'weft[studio]'."
        )
    shown: list[str] = []

    def announce(address: str) -> None:
        again = "another browser: " if shown else "studio: "
        print(f"{again}{address}", flush=True)
        if not shown and given["open"]:
            webbrowser.open(address)
        shown.append(address)

    config = web.StudioConfig(
        Path(given["runs"]), port=given["port"], at_once=given["at_once"],
        roots=tuple(Path(one.strip()) for one in (given["roots"] or "").split(",") if one.strip()),
        datasets=None if given["datasets"] is None else Path(given["datasets"]),
        largest_upload=given["largest_upload"] << 20, python_models=given["python_models"],
    )  # fmt: skip
    web.serve(config, announce, fixed_port="port" in given.given)


def _has_screen() -> bool:
    """Whether a browser can open a window here."""
    if not sys.stdout.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
