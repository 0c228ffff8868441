"""The sizes of data, pipeline and model parallelism: the numbers of the setting `parallel`, and the mesh that they form."""

from __future__ import annotations

from math import prod

from ..errors import UserError
from ..mesh.mesh import Mesh, current
from ..records import dataclass
from .forms import AXES, DATA, MODEL, PIPELINE, SERVER, read_form, wrong_form


@dataclass(frozen=True)
class ParallelSizes:
    """The numbers of data-parallel replicas, of pipeline stages, and of processes that share each layer.

    >>> sizes = ParallelSizes(data=2, model=2)
    >>> sizes.processes, str(sizes)
    (4, 'data:2,model:2')
    """

    data: int = 1
    pipeline: int = 1
    model: int = 1
    server: bool = False  # the first of the data-parallel processes is a parameter server, the others are its workers

    @property
    def processes(self) -> int:
        return self.data * self.pipeline * self.model

    @property
    def axes(self) -> dict[str, int]:
        """The axes of the mesh with more than one process."""
        return {name: getattr(self, name) for name in AXES if getattr(self, name) > 1}

    def mesh(self) -> Mesh:
        """The mesh of these processes: the current one if there is one, else a new one."""
        made = current_axes()
        return current() if made == self.axes else Mesh(**self.axes or {DATA: 1})

    def __str__(self) -> str:
        if self.server:
            return f"{SERVER}:{self.data}"
        return ",".join(f"{name}:{n}" for name, n in self.axes.items()) or f"{DATA}:1"


def current_axes() -> dict[str, int] | None:
    """The axes with more than one process of the current mesh; None without a mesh."""
    try:
        return {name: n for name, n in current().axes if n > 1}
    except UserError:
        return None


def read_sizes(text: str | None, processes: int) -> ParallelSizes:
    """The sizes of a setting. An axis without a number gets the processes that the others leave.

    >>> read_sizes("data:2,model:2", 4), read_sizes("data,pipeline:2", 8).data, read_sizes(None, 1).processes
    (ParallelSizes(data=2, pipeline=1, model=2, server=False), 4, 1)
    >>> str(read_sizes("server", 4))
    'server:4'
    """
    given = read_form(str(text)) if text is not None else {}
    if SERVER in given:
        if (size := given[SERVER] or processes) < 2:
            raise wrong_form(text, "A parameter server has 1 worker or more: use server:2 or more ranks.")
        return ParallelSizes(data=size, server=True)
    open_ = [name for name, size in given.items() if size is None]
    known = prod(size for size in given.values() if size is not None)
    if len(open_) > 1 or (open_ and processes % known):
        raise wrong_form(
            text, f"An axis without a number takes the remaining ranks, and {processes} ranks do not divide so."
        )
    found = {name: processes // known if size is None else size for name, size in given.items()}
    return ParallelSizes(found.get(DATA, 1), found.get(PIPELINE, 1), found.get(MODEL, 1))
