"""Compiles many kernels in parallel: those in the cache are read, the others are compiled by worker processes.

Compiling a kernel keeps the Python interpreter busy, so threads would not help. A worker is a process that runs `serve`: it reads one
request per line and answers with one line, both JSON. The answer is GPU code; nothing in it is executed here.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...errors import InternalError
from ..host import usable_cores
from ..store import cache, compiler_version
from .compile import Binary, CompileRequest, build_request, compile_request

FEW = 2  # the number of kernels that are compiled in this process, since workers take a second to start
MOST_WORKERS = 32


def compile_kernels(sources: Sequence[Any], capability: int) -> list[Binary]:
    """The code of each kernel for GPUs of a compute capability, in their order. Equal kernels are compiled once."""
    orders = [compile_request(source, capability) for source in sources]
    done: dict[CompileRequest, Binary] = {}
    for wanted in dict.fromkeys(orders):
        found = cache().get(_key(wanted))
        if found is not None:
            done[wanted] = _from_bytes(found)
    missing = [wanted for wanted in dict.fromkeys(orders) if wanted not in done]
    for wanted, binary in zip(missing, _compiled(missing), strict=True):
        done[wanted] = binary
        cache().put(_key(wanted), _to_bytes(binary))
    return [done[wanted] for wanted in orders]


def _key(wanted: CompileRequest) -> str:
    return f"triton {version('triton')} {compiler_version()}\n{wanted.to_json()}"


def _to_bytes(binary: Binary) -> bytes:
    head = {"symbol": binary.symbol, "warps": binary.warps, "shared": binary.shared}
    return json.dumps(head).encode() + b"\n" + binary.code


def _from_bytes(content: bytes) -> Binary:
    head, _, code = content.partition(b"\n")
    return Binary(code, **json.loads(head))


def _compiled(missing: Sequence[CompileRequest]) -> list[Binary]:
    if len(missing) <= FEW or usable_cores() < 2:
        return [build_request(wanted) for wanted in missing]
    shared = _shared.get()
    if shared is not None:
        return shared.build(missing)
    with _Workers() as workers:
        return workers.build(missing)


@contextmanager
def workers_ready() -> Iterator[None]:
    """Inside the block, `cast` uses one set of worker processes, which start at once: they import Triton while kernels are planned."""
    if usable_cores() < 2:
        yield
        return
    with _Workers() as workers:
        workers.start(min(usable_cores(), MOST_WORKERS))
        token = _shared.set(workers)
        try:
            yield
        finally:
            _shared.reset(token)


class _Workers:
    """Worker processes that live as long as a `with` block."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    def start(self, count: int) -> None:
        self._workers += [_Worker() for _ in range(count - len(self._workers))]

    def build(self, missing: Sequence[CompileRequest]) -> list[Binary]:
        count = min(usable_cores(), MOST_WORKERS, len(missing))
        self.start(count)
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in sorted(range(len(missing)), key=lambda n: -len(missing[n].text)):  # the longest first
            waiting.put(number)
        results: dict[int, Binary | BaseException] = {}
        threads = [
            threading.Thread(target=_work, args=(worker, missing, waiting, results)) for worker in self._workers[:count]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results.values():
            if isinstance(result, BaseException):
                raise result
        return [result for _, result in sorted(results.items()) if isinstance(result, Binary)]


_shared: ContextVar[_Workers | None] = ContextVar("workers", default=None)


def _work(
    worker: _Worker,
    missing: Sequence[CompileRequest],
    waiting: queue.SimpleQueue[int],
    results: dict[int, Binary | BaseException],
) -> None:
    """Send requests to one worker until none are left."""
    while True:
        try:
            number = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            results[number] = worker.build(missing[number])
        except BaseException as error:
            results[number] = error
            return


class _Worker:
    """A process that compiles."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[3])
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        environment.pop("TRITON_INTERPRET", None)
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from weft.compiler.gpu.compile_pool import serve; serve()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=environment, text=True, start_new_session=True,
        )  # fmt: skip

    def build(self, wanted: CompileRequest) -> Binary:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(wanted.to_json() + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            raise InternalError("cuda", f"the process that compiles kernels ended with {process.poll()}.")
        known = json.loads(answer)
        if "error" in known:
            raise InternalError("cuda", f"a kernel does not compile: {known['error']}\n{wanted.text}")
        code = base64.b64decode(known.pop("code"))
        return Binary(code, **known)

    def end(self) -> None:
        """Kill the process: it has answered every request, and Triton takes a second to exit normally."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                pass
        self._process.wait()


def serve() -> None:
    """A worker: requests on standard input, answers on standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the compiler must not be mistaken for an answer
    for line in sys.stdin:
        try:
            made = build_request(CompileRequest.from_json(line))
            known: dict[str, Any] = {"symbol": made.symbol, "warps": made.warps, "shared": made.shared}
            known["code"] = base64.b64encode(made.code).decode()
        except Exception as error:  # Triton's errors have no common base, and the parent waits for an answer
            known = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(known) + "\n")
        answers.flush()
