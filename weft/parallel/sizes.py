"""The setting `parallel`: how many processes share a training, and what they share: "data:4", "pipeline:2", "data:2,model:2"."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..errors import UserError
from ..hints import nearest
from ..mesh.mesh import Mesh, current

AUTO = "auto"
FORMS = "data:4, model:2, pipeline:2, several of them with commas, or auto"
DATA, PIPELINE, MODEL = "data", "pipeline", "model"
AXES = (DATA, PIPELINE, MODEL)  # of the mesh. Neighbours share layers, because that sends most


@dataclass(frozen=True)
class ParallelSizes:
    """Processes that have examples of their own, that are stages of a pipeline, and that share each layer.

    >>> sizes = ParallelSizes(data=2, model=2)
    >>> sizes.processes, str(sizes)
    (4, 'data:2,model:2')
    """

    data: int = 1
    pipeline: int = 1
    model: int = 1

    @property
    def processes(self) -> int:
        return self.data * self.pipeline * self.model

    @property
    def axes(self) -> dict[str, int]:
        """The axes of the mesh: those with several processes."""
        return {name: getattr(self, name) for name in AXES if getattr(self, name) > 1}

    def mesh(self) -> Mesh:
        """The mesh of these processes: the one that there is, or a new one."""
        made = current_axes()
        return current() if made == self.axes else Mesh(**self.axes or {DATA: 1})

    def __str__(self) -> str:
        return ",".join(f"{name}:{n}" for name, n in self.axes.items()) or f"{DATA}:1"


def current_axes() -> dict[str, int] | None:
    """The axes with several processes of the mesh that was made last; None without one."""
    try:
        return {name: n for name, n in current().axes if n > 1}
    except UserError:
        return None


def read_sizes(text: str | None, processes: int) -> ParallelSizes:
    """The sizes of a setting. An axis without a number has the processes that the others leave.

    >>> read_sizes("data:2,model:2", 4), read_sizes("data,pipeline:2", 8).data, read_sizes(None, 1).processes
    (ParallelSizes(data=2, pipeline=1, model=2), 4, 1)
    """
    given = read_form(str(text)) if text is not None else {}
    open_ = [name for name, size in given.items() if size is None]
    known = prod(size for size in given.values() if size is not None)
    if len(open_) > 1 or (open_ and processes % known):
        raise _wrong(text, f"{', '.join(open_)} without a number must have the rest of {processes} processes.")
    return ParallelSizes(**{name: processes // known if size is None else size for name, size in given.items()})


def processes_of(text: str | None) -> int:
    """How many processes a setting names: those without a number are not counted, nor those that auto would choose.

    >>> processes_of("data:2,model:2"), processes_of("data"), processes_of("auto"), processes_of(None)
    (4, 1, 1, 1)
    """
    return 1 if text is None or text == AUTO else prod(size or 1 for size in read_form(text).values())


def read_form(text: str) -> dict[str, int | None]:
    """The axes of a setting with their numbers, None where there is none.

    >>> read_form("data,model:2")
    {'data': None, 'model': 2}
    """
    found: dict[str, int | None] = {}
    for part in text.split(","):
        name, _, count = part.strip().partition(":")
        if name not in AXES or name in found:
            raise _wrong(text, f"{name!r} is given twice." if name in found else nearest(name, AXES))
        if count and (not count.isdecimal() or int(count) < 1):
            raise _wrong(text, f"{name} needs 1 process or more.")
        found[name] = int(count) if count else None
    return found


def _wrong(text: str | None, why: str) -> UserError:
    return UserError("parallel", f"parallel is {FORMS}, got {text!r}. {why}")
