"""The setting `parallel` as text: "data:4", "pipeline:2", "data:2,model:2" or "auto". And where a pipeline is cut."""

from __future__ import annotations

from math import prod

from ..errors import UserError
from ..hints import nearest

AUTO = "auto"
UNBOUNDED = "unbounded"  # staleness of a parameter server
SERVER = "server"  # a parameter server and its workers, in place of the axes of a mesh
FORMS = "data:4, model:2, pipeline:2, several of them with commas, server:4, or auto"
MEASURED, COUNTED = "measured", "counted"  # costs that the stages of a pipeline are balanced by
CUTS = f"{MEASURED}, {COUNTED}, or the last layer of each stage but the last"
DATA, PIPELINE, MODEL = "data", "pipeline", "model"
AXES = (DATA, PIPELINE, MODEL)  # of the mesh. Neighbouring ranks share layers: model parallelism communicates most


def processes_of(text: str | None) -> int:
    """The number of processes that a setting names. Axes without a number count as 1, and so does "auto".

    >>> processes_of("data:2,model:2"), processes_of("data"), processes_of("auto"), processes_of(None)
    (4, 1, 1, 1)
    """
    return 1 if text is None or text == AUTO else prod(size or 1 for size in read_form(text).values())


def read_form(text: str) -> dict[str, int | None]:
    """The axes of a setting with their sizes; None for an axis without a number.

    >>> read_form("data,model:2")
    {'data': None, 'model': 2}
    """
    found: dict[str, int | None] = {}
    for part in text.split(","):
        name, _, count = part.strip().partition(":")
        if name not in (*AXES, SERVER) or name in found:
            raise wrong_form(text, f"{name!r} is given twice." if name in found else nearest(name, (*AXES, SERVER)))
        if count and (not count.isdecimal() or int(count) < 1):
            raise wrong_form(text, f"{name} needs at least 1 rank.")
        found[name] = int(count) if count else None
    if SERVER in found and (len(found) > 1 or found[SERVER] == 1):
        raise wrong_form(text, "A parameter server has 1 worker or more, and is combined with nothing else.")
    return found


def wrong_form(text: str | None, why: str) -> UserError:
    return UserError("parallel", f"parallel is {FORMS}, got {text!r}. {why}")
