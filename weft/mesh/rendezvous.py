"""Rendezvous: ranks of one machine that neither `weft launch` nor MPI has started find the page that they share.

Rank 0 listens on a local socket whose name follows from the launcher's environment variables, and tells the others where the page is. The
kernel forgets the name when the process ends, so a job that was killed leaves nothing behind that a later one could find.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import UserError
from .control import ControlPage, path_of
from .world import World

RETRY = 0.02  # seconds
NUMBER = struct.Struct("i")  # a rank; 0 for a process that has mapped the page
PATH_BYTES = 256


def shared_page(me: World, seconds: float) -> ControlPage:
    """The page that rank 0 creates, mapped by all ranks, which have so many seconds to come."""
    deadline = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as ours:
        if me.rank == 0:
            return _created(me, ours, deadline, seconds)
        return _joined(me, ours, deadline, seconds)


def _created(me: World, server: socket.socket, deadline: float, seconds: float) -> ControlPage:
    try:
        server.bind(_address(me))
    except OSError:
        raise UserError(
            "parallel", f"{me.launcher} started two processes with rank 0, or another job has its address and port."
        ) from None
    server.listen(me.size)
    file, came = ControlPage.create(), dict[int, socket.socket]()
    page = ControlPage(path_of(file), 0, me.size)
    try:
        while len(came) < me.size - 1:
            with _until(deadline, server, me, set(range(1, me.size)) - set(came), seconds):
                connection, _ = server.accept()
                if not _is_ours(connection):
                    connection.close()
                    continue
                connection.settimeout(_left(deadline))
                [rank] = NUMBER.unpack(connection.recv(NUMBER.size, socket.MSG_WAITALL))
                connection.sendall(str(page.path).encode().ljust(PATH_BYTES))
                came[rank] = connection
        for rank, connection in came.items():
            with _until(deadline, connection, me, {rank}, seconds):
                connection.recv(NUMBER.size, socket.MSG_WAITALL)
    finally:
        for connection in came.values():
            connection.close()
        os.close(file)
    return page


def _joined(me: World, client: socket.socket, deadline: float, seconds: float) -> ControlPage:
    while True:
        try:
            client.connect(_address(me))
            break
        except ConnectionRefusedError:  # rank 0 is not there yet
            if time.monotonic() > deadline:
                raise UserError("parallel", f"rank 0 did not start within {seconds:g} seconds.") from None
            time.sleep(RETRY)
    if not _is_ours(client):
        raise UserError("parallel", "the address and port of the job belong to another user.")
    with _until(deadline, client, me, {0}, seconds):
        client.sendall(NUMBER.pack(me.rank))
        path = client.recv(PATH_BYTES, socket.MSG_WAITALL).decode().strip()
        if not path:
            raise UserError("parallel", "rank 0 ended before all ranks had started.")
        page = ControlPage(path, me.rank, me.size)
        client.sendall(NUMBER.pack(0))
    return page


def _address(me: World) -> str:
    """In the kernel's own name space, without a file."""
    return f"\0weft-{os.getuid()}-{hashlib.sha256(me.rendezvous.encode()).hexdigest()[:32]}"


def _is_ours(connection: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


@contextmanager
def _until(deadline: float, waiting: socket.socket, me: World, missing: set[int], seconds: float) -> Iterator[None]:
    """Wait for other ranks no longer than that."""
    waiting.settimeout(_left(deadline))
    try:
        yield
    except (OSError, struct.error) as error:  # a timeout is an OSError
        ranks = ", ".join(map(str, sorted(missing)))
        raise UserError(
            "parallel",
            f"{me.launcher} started {me.size} processes, but rank {ranks} did not come within {seconds:g} seconds.",
        ) from error
