"""Processes on this machine that work together: started, monitored, and ended together.

def step(n):
    mesh = weft.parallel.Mesh(data=2)
    return weft.parallel.all_reduce(weft.ones(n), "data").tolist()

weft.parallel.run(step, 2, 3)        # [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]: what each process returned
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from ..compiler.host import usable_cores
from ..errors import UserError
from ..mesh.connection import control_page
from ..mesh.control import GRACE, LAUNCHER, MOST_RANKS, ControlPage, path_of
from ..mesh.failures import exit_reason, reason
from ..mesh.world import GROUP, RANK, SIZE
from ..signals import Terminated, handling, terminable, terminate


def run(function: Callable[..., Any], ranks: int, *args: Any, threads: int | None = None) -> list[Any]:
    """Call a module-level function in `ranks` new processes; returns their results by rank."""
    with RankPool(ranks, threads=threads) as pool:
        return pool.run(function, *args)


class RankPool:
    """Processes that call functions together, one after another. If one of them fails, all end."""

    def __init__(self, ranks: int, *, threads: int | None = None) -> None:
        self._group = LaunchGroup(ranks)
        self.control = self._group.control
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        context = multiprocessing.get_context("spawn")
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), name=f"weft rank {rank}", daemon=True)
            with environment(self._group.variables(rank, threads)):
                process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(
        self, function: Callable[..., Any], *args: Any, listener: Callable[[Any], None] = lambda told: None
    ) -> list[Any]:
        """Call a function in all processes; returns their results by rank. `listener` receives what they send by `tell`.

        Ctrl-C and SIGTERM are passed on to the processes, which may finish in order, and are raised here when they have.
        """
        with self._passing_on_signals():
            results = self._collected(function, args, listener)
        stopped = next((r for r in results.values() if isinstance(r, _Stopped)), None)
        if stopped is not None:
            raise KeyboardInterrupt if self._interrupted else Terminated
        return [results[rank] for rank in range(len(self._pipes))]

    def _collected(self, function: Callable[..., Any], args: Any, listener: Callable[[Any], None]) -> dict[int, Any]:
        for pipe in self._pipes:
            with suppress(BrokenPipeError):
                pipe.send((function, args))
        results: dict[int, Any] = {}
        while len(results) < len(self._pipes) and self.control.failure is None:
            waiting = {pipe.fileno(): rank for rank, pipe in enumerate(self._pipes) if rank not in results}
            for ready in wait(list(waiting), 0.2):
                rank = waiting[int(ready)]  # type: ignore[arg-type]
                try:
                    found = self._pipes[rank].recv()
                    if isinstance(found, _Told):
                        listener(found.what)
                    else:
                        results[rank] = found
                except (EOFError, ConnectionResetError):
                    self.control.give_up(rank, _death(self._processes[rank]))
        if self.control.failure is not None:
            self.close()
            raise self.control.error()
        return results

    @contextmanager
    def _passing_on_signals(self) -> Iterator[None]:
        self._interrupted = False

        def pass_on(number: int, frame: object) -> None:
            self._interrupted = number == signal.SIGINT
            for process in self._processes:
                process.terminate()

        with (
            handling(signal.SIGINT, pass_on, (signal.default_int_handler,)),
            handling(signal.SIGTERM, pass_on, (signal.SIG_DFL, terminate)),
        ):
            yield

    def close(self) -> None:
        """End all processes."""
        for pipe in self._pipes:
            with suppress(BrokenPipeError, OSError):
                pipe.send(None)
        end_all(self._processes)
        self._group.close()

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _serve(pipe: Connection) -> None:
    """The main loop of a process of a pool."""
    page = control_page()
    _pipe.append(pipe)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles it
    while (job := pipe.recv()) is not None:
        function, args = job
        try:
            with terminable():
                result = function(*args)
        except Terminated:
            result = _Stopped()
        except BaseException as error:
            page.give_up(page.rank, reason(error))
            return
        pipe.send(result)
    page.end()


class _Told(NamedTuple):
    """A message that a function sends before it returns."""

    what: Any


class _Stopped(NamedTuple):
    """The result of a function ended by SIGTERM."""


_pipe: list[Connection] = []  # of this process, if it is one of a pool


def tell(what: Any) -> None:
    """Send a message to the listener of `RankPool.run`, from one of its processes."""
    _pipe[0].send(_Told(what))


def _death(process: Any) -> str:
    process.join(GRACE)
    return "died." if process.exitcode is None else exit_reason(process.exitcode)


def end_all(processes: list[Any]) -> None:
    """Wait briefly for processes to end, then kill them."""
    deadline = time.monotonic() + GRACE
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.is_alive():
            process.kill()  # a stopped process handles no other signal
            process.join()


# --- the environment of processes --------------------------------------------------------------------------------------------------------


def check_ranks(ranks: Any) -> None:
    """Raise an error unless `ranks` is a valid number of processes."""
    if not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= MOST_RANKS:
        raise UserError("parallel", f"1 to {MOST_RANKS} ranks are required, got {ranks!r}.")


class LaunchGroup:
    """The processes of one launch, as their parent sees them: their shared control page, and their environment variables."""

    def __init__(self, ranks: int) -> None:
        check_ranks(ranks)
        self.ranks = ranks
        self._file = ControlPage.create()
        self.path = path_of(self._file)
        self.control = ControlPage(self.path, LAUNCHER, ranks)

    def variables(self, rank: int, threads: int | None = None) -> dict[str, str]:
        """The environment variables that identify a process. The cores are shared evenly."""
        given = os.environ.get("WEFT_THREADS")
        share = threads or (int(given) if given else max(1, usable_cores() // self.ranks))
        return {RANK: str(rank), SIZE: str(self.ranks), GROUP: self.path, "WEFT_THREADS": str(share)}

    def close(self) -> None:
        """Release the page; it stays alive in processes that still map it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """While active, the environment has these variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
