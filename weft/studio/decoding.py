"""Decodes images that strangers send, in processes of their own. One that takes too long is ended, one that needs too much memory fails:
the studio goes on. Two processes are kept ready, so that a usual image costs milliseconds.

>>> guarded_pixels(b"no image", (3, 8, 8), "crop")
Traceback (most recent call last):
weft.data.images.Unreadable: is not an image in a supported format (...)
"""

from __future__ import annotations

import atexit
import json
import math
import os
import queue
import select
import subprocess
import sys
import time
from functools import cache
from typing import Any

import numpy as np

from ..data.images import Colour, Unreadable
from ..data.resize import Resize
from ..errors import RunError

WORKERS = 2
SECONDS = 10.0  # for one image
STARTING = 60.0  # seconds until a new process is ready
MEMORY = 2 << 30  # bytes of addresses, most of which are never touched
LARGEST_HEAD = 1 << 12
CHUNK = 1 << 20


class GuardedDecoder:
    """A small pool of processes that decode images."""

    def __init__(self, workers: int = WORKERS, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self.seconds, self.memory = seconds, memory
        self._slots: queue.LifoQueue[_DecodeWorker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._slots.put(None)

    def pixels(self, content: bytes, shape: tuple[int, ...], resize: Resize) -> np.ndarray:
        """The pixels of an image file, resized to a shape: channels, height, width. `Unreadable` says why there are none."""
        channels, height, width = shape
        request = {"colour": _colour(channels), "size": [height, width], "resize": resize}
        found = self._ask(content, request, math.prod(shape))
        if found.shape != shape:
            raise RunError("studio", f"pixels of shape {shape} are required, got {found.shape} from the decoder.")
        return found

    def scaled(self, content: bytes, longest: int, channels: int = 3) -> np.ndarray:
        """The pixels of an image file, scaled down until no side is longer than `longest`."""
        return self._ask(content, {"colour": _colour(channels), "longest": longest}, channels * longest * longest)

    def start(self) -> None:
        """Start a process now rather than with the first image; it becomes ready meanwhile."""
        try:
            slot = self._slots.get_nowait()
        except queue.Empty:  # all are at work
            return
        self._slots.put(_DecodeWorker(self.memory) if slot is None else slot)

    def close(self) -> None:
        """End all processes that are not at work."""
        while True:
            try:
                slot = self._slots.get_nowait()
            except queue.Empty:
                return
            if slot is not None:
                slot.kill()

    def _ask(self, content: bytes, request: dict[str, Any], most: int) -> np.ndarray:
        try:
            worker = self._slots.get(timeout=4 * self.seconds)
        except queue.Empty:
            raise RunError("studio", "too many images are decoded at the same time. Try again.") from None
        try:
            if worker is not None and not worker.lives():
                worker.kill()
                worker = None
            worker = worker or _DecodeWorker(self.memory)
            worker.wait_until_ready()
            return worker.ask(content, request, most, self.seconds)
        except (TimeoutError, EOFError, OSError, ValueError) as error:
            if worker is not None:
                worker.kill()
                worker = None
            took = f"takes longer than {self.seconds:g} seconds to decode"
            raise Unreadable(took if isinstance(error, TimeoutError) else "makes the decoder fail") from None
        finally:
            self._slots.put(worker)


class _DecodeWorker:
    """One process and its pipes. Reading and writing end at a time limit."""

    def __init__(self, memory: int) -> None:
        command = [sys.executable, "-m", "weft.studio.decode_worker", str(memory)]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **threads}
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        self._rest, self._ready = b"", False

    def lives(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> None:
        if not self._ready:
            self._line(time.monotonic() + STARTING)
            self._ready = True

    def ask(self, content: bytes, request: dict[str, Any], most: int, seconds: float) -> np.ndarray:
        """Send an image file and read the pixels, no more than `most` bytes."""
        until = time.monotonic() + seconds
        self._write(json.dumps({**request, "bytes": len(content)}).encode() + b"\n" + content, until)
        answer = json.loads(self._line(until))
        if "reason" in answer:
            raise Unreadable(str(answer["reason"])[:300])
        shape = tuple(int(length) for length in answer["shape"])
        if len(shape) != 3 or min(shape) < 1 or math.prod(shape) > most:
            raise ValueError(shape)
        return np.frombuffer(self._read(math.prod(shape), until), np.uint8).reshape(shape)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()  # also closes the pipes

    def _write(self, data: bytes, until: float) -> None:
        left = memoryview(data)
        while left:
            self._wait(until, writing=True)
            left = left[os.write(self._in, left[:CHUNK]) :]

    def _line(self, until: float) -> bytes:
        while b"\n" not in self._rest:
            if len(self._rest) > LARGEST_HEAD:
                raise ValueError("the answer has no head")
            self._rest += self._some(until)
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _read(self, count: int, until: float) -> bytes:
        parts = [self._rest]
        missing = count - len(self._rest)
        while missing > 0:
            parts.append(self._some(until))
            missing -= len(parts[-1])
        whole = b"".join(parts)
        self._rest = whole[count:]
        return whole[:count]

    def _some(self, until: float) -> bytes:
        self._wait(until, writing=False)
        found = os.read(self._out, CHUNK)
        if not found:
            raise EOFError
        return found

    def _wait(self, until: float, writing: bool) -> None:
        reads, writes = ([], [self._in]) if writing else ([self._out], [])
        left = until - time.monotonic()
        if left <= 0 or not any(select.select(reads, writes, [], left)):
            raise TimeoutError


def _colour(channels: int) -> Colour:
    return "gray" if channels == 1 else "rgb"


@cache
def shared_decoder() -> GuardedDecoder:
    """The decoder of this process; its processes are started when they are needed."""
    made = GuardedDecoder()
    atexit.register(made.close)
    return made


def guarded_pixels(content: bytes, shape: tuple[int, ...], resize: Resize) -> np.ndarray:
    """The pixels of an image file that a stranger has sent, by the shared decoder."""
    return shared_decoder().pixels(content, shape, resize)
