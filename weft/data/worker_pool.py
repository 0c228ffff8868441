"""A pool of worker processes that converts chunks of image files and yields the results in order."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np

from ..errors import RunError
from .convert import ConversionOptions, ConvertedChunk, convert
from .worker import READY, encode_job, read_result

_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])


class WorkerPool:
    """`workers` processes, each served by a thread of this process; with 0 workers this process converts the files."""

    def __init__(self, workers: int, options: ConversionOptions) -> None:
        self.options = options
        self._workers = [_WorkerProcess() for _ in range(workers)]
        self._idle: queue.SimpleQueue[_WorkerProcess] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(max(workers, 1))
        self._closed = False

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        for worker in self._workers:
            worker.stop()  # also unblocks the thread that waits for its result
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.stop()

    def convert(self, chunks: Sequence[list[str]]) -> Iterator[ConvertedChunk]:
        """Yield the results in the order of the chunks, with a few chunks in flight."""
        if not self._workers:
            yield from (convert(chunk, self.options) for chunk in chunks)
            return
        ahead: deque[Future[ConvertedChunk]] = deque()
        for chunk in chunks:
            ahead.append(self._threads.submit(self._convert_on_idle_worker, chunk))
            if len(ahead) > 2 * len(self._workers):
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def _convert_on_idle_worker(self, paths: list[str]) -> ConvertedChunk:
        worker = self._idle.get()
        try:
            return self._convert_chunk(worker, paths)
        finally:
            self._idle.put(worker)

    def _convert_chunk(self, worker: _WorkerProcess, paths: list[str]) -> ConvertedChunk:
        """Convert a chunk. If it crashes the worker, retry file by file to isolate the one that does."""
        if self._closed:
            raise RunError("create", "the conversion was stopped.")
        try:
            return worker.convert(paths, self.options)
        except (EOFError, OSError):
            ended = worker.stop()
        if len(paths) > 1:
            return _concatenate([self._convert_chunk(worker, [path]) for path in paths])
        return ConvertedChunk([], [f"crashed the decoder ({ended})"], np.zeros((self.options.shape[0], 256), np.int64))


class ImageWorker:
    """One process that decodes images for a server, a request at a time: a file that crashes the decoder ends only that process."""

    def __init__(self) -> None:
        self._process = _WorkerProcess()
        self._lock = threading.Lock()

    def convert(self, paths: Sequence[str], options: ConversionOptions) -> ConvertedChunk:
        """Read, resize and encode files, as `create` does."""
        with self._lock:
            parts = [self._one(path, options) for path in paths]
        return _concatenate(parts)

    def close(self) -> None:
        with self._lock:
            self._process.stop()

    def _one(self, path: str, options: ConversionOptions) -> ConvertedChunk:
        try:
            return self._process.convert([path], options)
        except (EOFError, OSError):
            ended = self._process.stop()
            return ConvertedChunk([], [f"crashed the decoder ({ended})"], np.zeros((options.shape[0], 256), np.int64))


class _WorkerProcess:
    """One process, started on first use and restarted after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def convert(self, paths: list[str], options: ConversionOptions) -> ConvertedChunk:
        if self._process is None:
            self._process = _start_process()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(encode_job(paths, options))
        process.stdin.flush()
        return read_result(process.stdout)

    def stop(self) -> str:
        """End the process and return a description of how it ended."""
        process, self._process = self._process, None
        if process is None:
            return "it was stopped"
        crashed = process.poll() is not None
        process.kill()
        code = process.wait()
        # The process no longer reads its pipes, so a failed flush on close does not matter.
        for pipe in (process.stdin, process.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:
                pass
        return f"it ended with {code}" if crashed else "it gave no answer"


def _start_process() -> subprocess.Popen[bytes]:
    # In its own process session a worker does not receive the user's Ctrl-C; it exits when its stdin is closed.
    path = os.pathsep.join(filter(None, [_PACKAGE_PARENT, os.environ.get("PYTHONPATH", "")]))
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
        raise RunError(
            "create",
            "a worker process could not start; its error is printed above. Use workers=0 to convert in this process.",
        )
    return process


def _concatenate(parts: list[ConvertedChunk]) -> ConvertedChunk:
    images = [image for part in parts for image in part.images]
    reasons = [reason for part in parts for reason in part.reasons]
    return ConvertedChunk(images, reasons, np.sum([part.counts for part in parts], axis=0))
