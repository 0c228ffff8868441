"""Processes that the tests of all files share: starting one takes longer than what most tests do in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft import parallel
from weft.knobs import knobs
from weft.mesh import mesh
from weft.parallel import Mesh, RankPool


class SharedPool:
    """So many processes with a thread each. Those that a failure has ended are replaced when they are needed again."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool: RankPool | None = None

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What each process returned; programs are optimized as this test's are."""
        if self._pool is None or self._pool.control.failure is not None:
            self._pool = parallel.RankPool(self.size, threads=1)
        return self._pool.run(call, knobs.optimize, function, *args)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


def call(optimize: int, function: Callable[..., Any], *args: Any) -> Any:
    """Runs in each process."""
    with knobs.set(optimize=optimize):
        return function(*args)


_meshes: dict[tuple[tuple[str, int], ...], Mesh] = {}


def mesh_of(**axes: int) -> Mesh:
    """The mesh of this form, which is made once a process: collectives run along its axes from now on."""
    key = tuple(axes.items())
    if key not in _meshes:
        _meshes[key] = parallel.Mesh(**axes)
    mesh._current.remove(_meshes[key])
    mesh._current.append(_meshes[key])
    return _meshes[key]
