"""Training in several processes of this machine: a job starts them, shows the events of rank 0, and ends when all have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ..locks import one_writer
from ..mesh.world import world
from ..parallel.ranks import RankPool, tell
from ..parallel.sizes import read_sizes
from .events import Listener, nobody


def with_ranks(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a training that processes of `weft launch` or mpiexec do together, whatever they were told."""
    size = world().size
    return {**settings, "parallel": f"data:{size}"} if size > 1 and settings["parallel"] is None else dict(settings)


def needs_processes(settings: Mapping[str, Any]) -> bool:
    """Whether a training needs processes that are not there yet."""
    return world().size == 1 and _processes(settings) > 1


def _processes(settings: Mapping[str, Any]) -> int:
    return read_sizes(settings["parallel"], world().size).processes


def in_processes(
    settings: Mapping[str, Any], function: Callable[..., Path | None], *args: Any, listener: Listener
) -> Path | None:
    """Call a function of the arguments and a listener in as many new processes as the settings say; what that of rank 0 returned."""
    with RankPool(_processes(settings)) as pool:
        found: list[Path | None] = pool.run(_call, function, args, listener=listener)
    return found[0]


def _call(function: Callable[..., Path | None], args: tuple[Any, ...]) -> Path | None:
    return function(*args, tell if leads() else nobody)


def leads() -> bool:
    """Whether this process writes files and sends events; the others only compute."""
    return world().rank == 0


def writing(folder: Path) -> AbstractContextManager[object]:
    """The lock of a run, which the leading process holds for all."""
    return one_writer(folder) if leads() else nullcontext()
