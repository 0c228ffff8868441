"""Processes of this machine that work together: started, watched, and ended together.

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
    """Call a function of a module in so many new processes; what each of them returned, by rank."""
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
        """Call a function in all processes; what each returned, by rank. `listener` is called with what they `tell`.

        Ctrl-C and SIGTERM are passed on to the processes, which may end their work in order, and raised here when they have.
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it decides
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
    """Something that a function tells before it returns."""

    what: Any


class _Stopped(NamedTuple):
    """The result of a function that SIGTERM has ended."""


_pipe: list[Connection] = []  # of this process, if it is one of a pool


def tell(what: Any) -> None:
    """Tell the listener of `RankPool.run` something, from one of its processes."""
    _pipe[0].send(_Told(what))


def _death(process: Any) -> str:
    process.join(GRACE)
    return "died." if process.exitcode is None else exit_reason(process.exitcode)


def end_all(processes: list[Any]) -> None:
    """Wait a little for processes to end, then make them."""
    deadline = time.monotonic() + GRACE
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.is_alive():
            process.kill()  # one that was stopped does not hear anything else
            process.join()


# --- what processes are told ------------------------------------------------------------------------------------------------------------


def check_ranks(ranks: Any) -> None:
    """Raise an error unless it is a number of processes."""
    if not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= MOST_RANKS:
        raise UserError("parallel", f"1 to {MOST_RANKS} processes are required, got {ranks!r}.")


class LaunchGroup:
    """The processes of one launch, seen from whoever starts them: the control page that they share, and what each of them is told."""

    def __init__(self, ranks: int) -> None:
        check_ranks(ranks)
        self.ranks = ranks
        self._file = ControlPage.create()
        self.path = path_of(self._file)
        self.control = ControlPage(self.path, LAUNCHER, ranks)

    def variables(self, rank: int, threads: int | None = None) -> dict[str, str]:
        """The variables of the environment that tell a process who it is. The cores are shared evenly."""
        given = os.environ.get("WEFT_THREADS")
        share = threads or (int(given) if given else max(1, usable_cores() // self.ranks))
        return {RANK: str(rank), SIZE: str(self.ranks), GROUP: self.path, "WEFT_THREADS": str(share)}

    def close(self) -> None:
        """Let go of the page; it lives on in processes that still have it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Inside, the environment has these variables."""
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
