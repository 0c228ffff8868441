"""Processes of torch and of MPI, which benchmarks/parallel.py calls in turn with those of weft. While they are not called, they sleep."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds that a process has to start


class PeerRanks:
    """So many processes that call functions of a script together."""

    def __init__(self, starters: Sequence[Sequence[str]], ranks: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._pipes: dict[int, Connection] = {}
        address = f"{self._folder.name}/s"
        with Listener(address, backlog=ranks) as listener:
            self._started = [subprocess.Popen([*words, address]) for words in starters]
            try:
                for _ in range(ranks):
                    pipe = self._accepted(listener)
                    self._pipes[pipe.recv()] = pipe
            except (OSError, EOFError, RuntimeError):
                self._end()
                raise
        self._folder.cleanup()

    def _accepted(self, listener: Listener) -> Connection:
        """The connection of the next process that has started."""
        deadline = time.monotonic() + PATIENCE
        waiting = listener._listener._socket  # type: ignore[attr-defined]
        waiting.settimeout(0.2)
        while time.monotonic() < deadline and all(process.poll() is None for process in self._started):
            with suppress(TimeoutError):
                return listener.accept()
        raise RuntimeError("its processes did not start")

    def run(self, function: str, *args: Any) -> list[Any]:
        """Call a function in all processes; what each returned, by rank."""
        for pipe in self._pipes.values():
            pipe.send((function, args))
        found = [self._pipes[rank].recv() for rank in range(len(self._pipes))]
        failed = next((one for one in found if isinstance(one, Exception)), None)
        if failed is not None:
            raise failed
        return found

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes.values():
            pipe.close()
        self._end()

    def _end(self) -> None:
        for process in self._started:
            if not self._pipes:
                process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def serve(address: str, rank: int, functions: Mapping[str, Callable[..., Any]]) -> None:
    """The main loop of such a process: it ends when its pipe does."""
    pipe = Client(address)
    pipe.send(rank)
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(functions[name](*args))
        except Exception as error:  # whatever it is, the caller is told
            pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
            return


def script(name: str, *words: object) -> list[str]:
    """The command of a script beside this file."""
    return [sys.executable, str(Path(__file__).with_name(name)), *map(str, words)]


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])
