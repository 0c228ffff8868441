"""How this process communicates with the others: shared memory on one machine, MPI between machines (the setting `engine`)."""

from __future__ import annotations

import atexit
import os
import sys
from functools import cache

from ..errors import UserError
from ..knobs import knobs
from ..records import dataclass
from .control import ControlPage, path_of
from .control_network import ControlNetwork
from .failures import FailureHook, is_of_another, reason
from .mpi import MpiLibrary, load_mpi
from .rendezvous import shared_page
from .world import World, world


@dataclass(frozen=True)
class Connection:
    """The connection between the processes of the world."""

    engine: str  # local or mpi
    control: ControlPage
    hook: FailureHook
    mpi: MpiLibrary | None = None  # of the engine mpi
    network: ControlNetwork | None = None


@cache
def connection() -> Connection:
    """The connection of this process to the others, created once; all processes must call this."""
    me = world()
    if me.group:
        found = _within_launch(me)
    elif me.rendezvous and knobs.engine != "mpi":
        page = shared_page(me, knobs.stall_seconds)
        found = Connection("local", page, FailureHook(page, launched=False))
    else:
        found = _through_mpi(me)
    sys.excepthook = found.hook
    atexit.register(_end, found)
    found.control.begin(knobs.stall_seconds, found.hook.say)
    return found


def control_page() -> ControlPage:
    """The page that shows whether all processes are alive."""
    return connection().control


def report_failure(error: BaseException) -> bool:
    """Report to the other processes that this one fails; returns whether it is the first. Before it is connected, they see its exit status."""
    if not connection.cache_info().currsize:
        return True
    page = control_page()
    page.give_up(page.rank, reason(error))
    return not is_of_another(page)


def _end(found: Connection) -> None:
    if found.control.failure is not None and not found.hook.launched:
        found.hook.leave()
    found.control.end()


def _within_launch(me: World) -> Connection:
    if knobs.engine == "mpi":
        raise UserError(
            "parallel", f"weft launch requires engine=local or auto, got mpi. To use MPI: mpiexec -n {me.size} ..."
        )
    page = ControlPage(me.group, me.rank, me.size)
    return Connection("local", page, FailureHook(page, launched=True))


def _through_mpi(me: World) -> Connection:
    mpi = load_mpi(me)
    if mpi.one_machine and knobs.engine != "mpi":
        page = _shared_page(mpi, me)
        return Connection("local", page, FailureHook(page, launched=False))
    if knobs.engine == "local":
        raise UserError(
            "parallel",
            "engine=local requires all ranks on one machine, got several machines. Use engine=auto or engine=mpi.",
        )
    file = ControlPage.create()
    page = ControlPage(path_of(file), me.rank, me.size)
    os.close(file)
    page.apart = not mpi.one_machine
    network = ControlNetwork(page, mpi.communicator)
    network.begin()
    return Connection("mpi", page, FailureHook(page, launched=False, machines=mpi.machines), mpi, network)


def _shared_page(mpi: MpiLibrary, me: World) -> ControlPage:
    """The page that rank 0 creates, mapped by all."""
    file = ControlPage.create() if me.rank == 0 else -1
    page = ControlPage(mpi.communicator.bcast(path_of(file), 0), me.rank, me.size)
    mpi.communicator.Barrier()
    if me.rank == 0:
        os.close(file)
    return page
