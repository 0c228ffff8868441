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
from ..hints import install
from ..jobs.schema import Setting, count, flag
from .arguments import read

_NEEDED = ("nicegui", "sqlalchemy", "alembic", "argon2", "psutil")


def studio(words: Sequence[str]) -> None:
    """Work in the browser: weft studio.

    It shows the runs in a folder, trains, and follows what is trained elsewhere. The printed address carries a key; only this machine can reach it.
    With host=0.0.0.0 others can: then people sign in, and the printed address makes the first account. weft user manages accounts.
    """
    known = {
        "runs": Setting(str, "runs", "folder that runs are kept in"),
        "port": Setting(count, 8800, "port; default: 8800, or the next one that is free"),
        "host": Setting(
            str, "127.0.0.1", "address to listen on; others than this machine's own require people to sign in"
        ),
        "hosts": Setting(
            str,
            None,
            "names that it answers to, with commas; default: this machine's own, or any if others can reach it",
        ),
        "tls_cert": Setting(str, None, "certificate file of HTTPS"),
        "tls_key": Setting(str, None, "file of the certificate's private key"),
        "prefix": Setting(str, None, "path below which a proxy serves the studio, such as /weft"),
        "proxies": Setting(str, None, "addresses of proxies whose X-Forwarded headers are believed, with commas"),
        "database": Setting(str, None, "URL of the database of accounts; default: a SQLite file below the runs"),
        "at_once": Setting(count, 1, "jobs that run at the same time"),
        "roots": Setting(str, None, "folders whose files may be used by their path, with commas; default: this folder"),
        "datasets": Setting(str, None, "folder that datasets are created in; default: datasets beside the runs"),
        "largest_upload": Setting(count, 8192, "megabytes (MiB) of an upload at most"),
        "urls": Setting(flag, False, "let people classify images by their address in the internet"),
        "network_memory": Setting(count, 2048, "megabytes (MiB) of networks that stay loaded for predictions"),
        "python_models": Setting(
            flag, False, "let people train networks from Python files of this machine, which are executed"
        ),
        "open": Setting(flag, _has_screen(), "open the page in the browser; default: if there is a screen"),
    }
    given = read("studio", words, known, 0, studio.__doc__)
    if any(find_spec(name) is None for name in _NEEDED):
        raise UserError("weft studio", f"the packages of the studio are required. {install('studio')}")
    shown: list[str] = []

    def announce(address: str) -> None:
        again = "another browser: " if shown and "token=" in address else "studio: "
        print(f"{again}{address}", flush=True)
        if not shown and given["open"]:
            webbrowser.open(address)
        shown.append(address)

    config = web.StudioConfig(
        Path(given["runs"]), given["host"], given["port"], at_once=given["at_once"],
        roots=tuple(Path(one) for one in _list(given["roots"])), datasets=_path(given["datasets"]),
        hosts=tuple(one.lower() for one in _list(given["hosts"])), prefix=(given["prefix"] or "").rstrip("/"), proxies=_list(given["proxies"]),
        tls_cert=_path(given["tls_cert"]), tls_key=_path(given["tls_key"]), database=given["database"],
        largest_upload=given["largest_upload"] << 20, urls=given["urls"], network_memory=given["network_memory"] << 20,
        python_models=given["python_models"],
    )  # fmt: skip
    web.serve(
        config, announce, "port" in given.given, lambda text: print(f"warning: {text}", file=sys.stderr, flush=True)
    )


def _list(text: str | None) -> tuple[str, ...]:
    return tuple(one.strip() for one in (text or "").split(",") if one.strip())


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _has_screen() -> bool:
    """Whether a browser can open a window here."""
    if not sys.stdout.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
