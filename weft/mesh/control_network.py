"""Synchronizes the control pages of processes on several machines: every process talks to rank 0 over TCP, one line of JSON per message.

The processes report several times a second that they are alive, and their position: how many collectives they have begun, and which is the last.
So rank 0 notices a process that is gone, silent, or in a different collective than its peers, and notifies all others.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import selectors
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any

from ..compiler.cpu.collective.layout import TAG_BITS
from ..errors import RunError
from .control import BEAT_SECONDS, BEATS, ENDED, ControlPage
from .mpi import DevicePosition, MpiChannel

CONNECT_SECONDS = 60.0
NAME_SECONDS = 10.0  # timeout for each name and address of rank 0's machine
_INTERFACE_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
Position = tuple[
    int, int, int
]  # a group of processes (the index of its channel, its first rank), and the position of this process


class ControlNetwork:
    """The connections of one process: from rank 0 to all others, or to rank 0."""

    def __init__(self, page: ControlPage, communicator: Any) -> None:
        self.page = page
        self.channels: list[
            MpiChannel | DevicePosition
        ] = []  # of the meshes of this process, created in the same order in all
        self._seen: dict[int, list[Position]] = {}
        self._sending = threading.Lock()
        self._told = False
        self._peers = _accept(page, communicator) if page.rank == 0 else {0: _connect(communicator)}
        self._unread = dict.fromkeys(self._peers, b"")
        self._selector = selectors.DefaultSelector()
        for rank, peer in self._peers.items():
            self._selector.register(peer, selectors.EVENT_READ, rank)
            page.words[BEATS + rank] = time.monotonic_ns()

    def begin(self) -> None:
        """Send and receive from now on."""
        self.page.gave_up, self.page.ended = self._tell_failure, self._tell_end
        threading.Thread(target=self._serve, name="weft control network", daemon=True).start()

    def _positions(self) -> list[Position]:
        return [(k, channel.ranks[0], channel.position) for k, channel in enumerate(self.channels)]

    # --- sending --------------------------------------------------------------------------------------------------------------

    def _send(self, **message: Any) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._sending:
            for rank, peer in list(self._peers.items()):
                try:
                    peer.sendall(line)
                except OSError:  # the reading side finds out whether it has ended or died
                    self._peers.pop(rank, None)

    def _tell_failure(self) -> None:
        if not self._told and self.page.failure is not None:
            self._told = True
            self._send(failure=self.page.failure)

    def _tell_end(self) -> None:
        self._send(beat=ENDED, positions=self._positions())

    # --- receiving ------------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        next_beat = 0.0
        while True:  # until the process ends
            for key, _ in self._selector.select(BEAT_SECONDS):
                self._receive(key.data, key.fileobj)  # type: ignore[arg-type]
            if time.monotonic() >= next_beat:
                self._send(beat=1, positions=self._positions())
                self._compare()
                next_beat = time.monotonic() + BEAT_SECONDS

    def _receive(self, rank: int, peer: socket.socket) -> None:
        try:
            found = peer.recv(1 << 16)
        except OSError:
            found = b""
        if not found:
            self._selector.unregister(peer)
            self._peers.pop(rank, None)
            if self.page.words[BEATS + rank] != ENDED:
                self.page.give_up(rank, "died, or the network to its machine is down.")
            return
        *lines, self._unread[rank] = (self._unread[rank] + found).split(b"\n")
        for line in lines:
            self._understand(rank, json.loads(line))

    def _understand(self, rank: int, message: dict[str, Any]) -> None:
        if "failure" in message:
            self.page.give_up(*message["failure"])
            return
        self.page.words[BEATS + rank] = ENDED if message["beat"] == ENDED else time.monotonic_ns()
        self._seen[rank] = [(k, first, where) for k, first, where in message["positions"]]

    def _compare(self) -> None:
        """Give up if one process has ended before the others, or is in a different collective, as far as this process knows."""
        at: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for rank, positions in [(self.page.rank, self._positions()), *self._seen.items()]:
            for channel, first, where in positions:
                at.setdefault((channel, first), []).append((where, rank))
        for group in at.values():
            furthest, ahead = max(group)
            for where, rank in group:
                same = where >> TAG_BITS == furthest >> TAG_BITS
                if same and where != furthest:
                    self.page.give_up(rank, f"is in another collective than rank {ahead}: it runs another program, or runs it in another order.")  # fmt: skip
                elif not same and self.page.words[BEATS + rank] == ENDED:
                    self.page.give_up(rank, "has ended, and others wait for it.")


def _accept(page: ControlPage, communicator: Any) -> dict[int, socket.socket]:
    """Accept the connections of all other processes to rank 0. Connections without the secret are rejected."""
    secret = secrets.token_hex(16)
    found: dict[int, socket.socket] = {}
    with socket.create_server(("", 0), backlog=page.size) as server:
        server.settimeout(CONNECT_SECONDS)
        names = dict.fromkeys([socket.gethostname(), socket.getfqdn(), *_addresses(), "127.0.0.1"])
        communicator.bcast((list(names), server.getsockname()[1], secret), 0)
        while len(found) < page.size - 1:
            try:
                peer, _ = server.accept()
                peer.settimeout(CONNECT_SECONDS)
                given, rank = peer.recv(64).decode().split()
            except (OSError, ValueError) as error:
                raise RunError(
                    "parallel", f"rank 0 waited for the connections of all ranks, and has {len(found)}: {error}."
                ) from None
            if secrets.compare_digest(given, secret):
                found[int(rank)] = peer
    return found


def _addresses() -> list[str]:
    """The addresses of this machine: the others may not be able to resolve its name."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(asking.fileno(), _INTERFACE_ADDRESS, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if not address.startswith("127.")]


def _connect(communicator: Any) -> socket.socket:
    names, port, secret = communicator.bcast(None, 0)
    here = socket.gethostname() == names[0]
    errors = []
    for name in reversed(names) if here else names[:-1]:
        try:
            peer = socket.create_connection((name, port), NAME_SECONDS)
            peer.settimeout(CONNECT_SECONDS)
            peer.sendall(f"{secret} {communicator.rank}".encode())
            return peer
        except OSError as error:
            errors.append(f"{name}:{port}: {error}")
    raise RunError("parallel", f"rank {communicator.rank} cannot reach rank 0: {'; '.join(errors)}.")
