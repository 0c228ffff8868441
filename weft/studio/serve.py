"""Starts a studio: the server, and the runner of its queue."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import replace

import uvicorn

from ..errors import RunError, UserError
from ..jobs.definitions import ACCESS
from ..jobs.queue.job_queue import JobQueue
from ..jobs.queue.runner import Runner
from .config import StudioConfig
from .keys import OneTimeToken
from .server import create
from .store.database import DatabaseUnavailable
from .ui.context import Studio

AGAIN = 5.0  # seconds until a queue that could not be run is tried again
GRACE = 2  # seconds that streams of events have to end
KEEP_ALIVE = 75  # seconds that an idle connection stays open; of 5, the default, a loaded server closed some whose next request was on its way
TRIED = 20  # ports from the first one on, if the port may be chosen


def serve(
    config: StudioConfig, announce: Callable[[str], None], fixed_port: bool = False, warn: Callable[[str], None] = print
) -> None:
    """Serve until interrupted. `announce` is called with the address to open, and with a new one when that was used.

    Trainings have processes of their own and go on when the studio ends; the next studio, or weft job run, takes care of those that wait.
    """
    config.check()
    config = replace(config, runs=config.runs.absolute(), port=_free_port(config, fixed_port))
    config.runs.mkdir(parents=True, exist_ok=True)
    ACCESS.python, ACCESS.allows = config.python_models, config.allowed_paths().allows
    token = OneTimeToken()
    app, studio = create(config, token)
    for warning in config.warnings():
        warn(warning)
    ended = threading.Event()
    runner = threading.Thread(target=_run_jobs, args=(config, ended, warn), name="weft-studio-runner", daemon=True)
    runner.start()
    server = uvicorn.Server(
        uvicorn.Config(
            app, host=config.host, port=config.port, log_level="warning", root_path=config.prefix, proxy_headers=False, server_header=False,
            ssl_certfile=config.tls_cert, ssl_keyfile=config.tls_key, timeout_graceful_shutdown=GRACE,
            timeout_keep_alive=KEEP_ALIVE,
        )
    )  # fmt: skip
    announcer = threading.Thread(target=_announce, args=(studio, token, announce, server, ended), daemon=True)
    announcer.start()
    try:
        with contextlib.suppress(KeyboardInterrupt):
            server.run()
    finally:
        ended.set()
        runner.join(timeout=5)
    if not server.started:  # uvicorn has said why
        raise SystemExit(3)


def _announce(
    studio: Studio, token: OneTimeToken, announce: Callable[[str], None], server: uvicorn.Server, ended: threading.Event
) -> None:
    """Print the address once it answers, and the next one each time it was used. Where people sign in, only the first admin needs a token."""
    shown = ""
    while not ended.wait(0.1):
        if not server.started:
            continue
        address = _way_in(studio, token)
        if address != shown:
            shown = address
            announce(address)


def _way_in(studio: Studio, token: OneTimeToken) -> str:
    """The address to open."""
    address = studio.config.address
    try:
        if studio.store.has_admin():
            return address
    except DatabaseUnavailable:  # asked again soon
        return address
    return f"{address}/?token={token.value}" if studio.config.is_local else f"{address}/setup?token={token.value}"


def _run_jobs(config: StudioConfig, ended: threading.Event, warn: Callable[[str], None]) -> None:
    """Run the jobs of the queue, unless another process does; it is asked again now and then."""
    queue = JobQueue(config.runs)
    while not ended.is_set():
        try:
            Runner(queue, config.at_once).run(stay=True, ended=ended)
        except UserError:  # another process runs the queue
            ended.wait(AGAIN)
        except (RunError, OSError) as error:  # a full disk, for example: jobs are started again when that is over
            warn(f"The queue cannot be run now: {error}. It is tried again every {AGAIN:g} s.")
            ended.wait(AGAIN)


def _free_port(config: StudioConfig, fixed: bool) -> int:
    """The port, or the first one after it that is free."""
    for port in range(config.port, config.port + (1 if fixed else TRIED)):
        with socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((config.host, port))
            except PermissionError:
                raise UserError(
                    "studio", f"port {port} may not be used by this user. Use a port from 1024 on: port=8800."
                ) from None
            except OSError:
                continue
            return port
    raise UserError(
        "studio",
        f"a free port is required, got {config.port}, which another program uses. Give another: port={config.port + 100}.",
    )
