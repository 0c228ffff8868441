"""Converts chunks of files in many processes and gives the results in the order of the chunks."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np

from ..errors import RunError
from .convert import Converted, Recipe, convert
from .worker import READY, job_line, read_answer

_PACKAGES = str(Path(__file__).resolve().parents[2])


class Team:
    """So many processes, each with a thread here that talks to it; none: all is done in this process."""

    def __init__(self, workers: int, recipe: Recipe) -> None:
        self.recipe = recipe
        self._helpers = [_Helper() for _ in range(workers)]
        self._idle: queue.SimpleQueue[_Helper] = queue.SimpleQueue()
        for helper in self._helpers:
            self._idle.put(helper)
        self._threads = ThreadPoolExecutor(max(workers, 1))
        self._closed = False

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        for helper in self._helpers:
            helper.stop()  # also ends the wait of a thread for its answer
        self._threads.shutdown(cancel_futures=True)
        for helper in self._helpers:
            helper.stop()

    def convert(self, chunks: Sequence[list[str]]) -> Iterator[Converted]:
        """The results, chunk after chunk; a few are worked on ahead."""
        if not self._helpers:
            yield from (convert(chunk, self.recipe) for chunk in chunks)
            return
        ahead: deque[Future[Converted]] = deque()
        for chunk in chunks:
            ahead.append(self._threads.submit(self._ask, chunk))
            if len(ahead) > 2 * len(self._helpers):
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def _ask(self, paths: list[str]) -> Converted:
        helper = self._idle.get()
        try:
            return self._answer(helper, paths)
        finally:
            self._idle.put(helper)

    def _answer(self, helper: _Helper, paths: list[str]) -> Converted:
        """A chunk that kills its worker is tried again file by file, to find the one that does."""
        if self._closed:
            raise RunError("create", "the work was stopped.")
        try:
            return helper.ask(paths, self.recipe)
        except (EOFError, OSError):
            ended = helper.stop()
        if len(paths) > 1:
            return _joined([self._answer(helper, [path]) for path in paths])
        return Converted([], [f"crashed the decoder ({ended})"], np.zeros((self.recipe.shape[0], 256), np.int64))


class _Helper:
    """One process, started when it is first needed and again after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, paths: list[str], recipe: Recipe) -> Converted:
        if self._process is None:
            self._process = _start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(job_line(paths, recipe))
        process.stdin.flush()
        return read_answer(process.stdout)

    def stop(self) -> str:
        """End the process and say how it ended."""
        process, self._process = self._process, None
        if process is None:
            return "it was stopped"
        crashed = process.poll() is not None
        process.kill()
        code = process.wait()
        # Pipes are closed without a last flush: nobody reads them any more.
        for pipe in (process.stdin, process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:
                pass
        return f"it ended with {code}" if crashed else "it gave no answer"


def _start() -> subprocess.Popen[bytes]:
    # In a session of its own a worker does not get the Ctrl-C that is meant for us; it ends when its input does.
    path = os.pathsep.join(filter(None, [_PACKAGES, os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", "from weft.data.worker import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != READY:
        process.kill()
        process.wait()
        raise RunError("create", "a worker process could not start. Its error stands above; workers=0 does without.")
    return process


def _joined(parts: list[Converted]) -> Converted:
    images = [image for part in parts for image in part.images]
    reasons = [reason for part in parts for reason in part.reasons]
    return Converted(images, reasons, np.sum([part.counts for part in parts], axis=0))
