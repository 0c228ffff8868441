"""A mesh: processes arranged along named axes. Collectives run along one of them.

mesh = weft.parallel.Mesh(data=4, model=2)      # of 8 processes; rank 5 has index 2 along "data" and index 1 along "model"
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..compiler.cpu.collective.phases import phase
from ..compiler.host import usable_cores
from ..dtypes import as_dtype
from ..errors import RunError, UserError
from ..graph.node import OPS, Type, placeholder
from ..knobs import knobs
from .channels import Channel, SharedMemory
from .connection import Connection, connection, control_page
from .host_calls import run_phase
from .mpi import MpiChannel, MpiLibrary
from .world import World, world

Axes = tuple[tuple[str, int], ...]


class Mesh:
    """All processes of the world, arranged along axes; the last one varies fastest from rank to rank.

    Outside `weft launch` every axis has one process, and collectives do nothing; with `keeps_single`, they stay in programs for GPUs, to
    measure their overhead.
    """

    keeps_single = False

    def __init__(self, **axes: int) -> None:
        self.axes: Axes = tuple(axes.items())
        self.world = world()
        _check(self.axes, self.world)
        self.sizes = dict(self.axes)
        position = np.unravel_index(self.world.rank, [n for _, n in self.axes])
        self.coordinates = {name: int(i) for (name, _), i in zip(self.axes, position, strict=True)}
        self.table_address, self.engine = 0, "local"
        if self.world.size > 1:
            self._connect()
        _current.append(self)

    def _connect(self) -> None:
        found = connection()
        self.engine = found.engine
        self._channels = self._shared_channels(found) if found.mpi is None else self._mpi_channels(found, found.mpi)
        self._table = np.array([c.address for c in self._channels], np.int64)  # passed to programs
        self.table_address = int(self._table.ctypes.data)

    def _shared_channels(self, found: Connection) -> Sequence[Channel]:
        lanes = knobs.threads or usable_cores()
        groups = [self.world.size // n for _, n in self.axes]
        sizes = [Channel.nbytes(n, lanes) for _, n in self.axes]
        total = sum(count * size for count, size in zip(groups, sizes, strict=True))
        memory = SharedMemory(next_number(), total, found.control, repr(self))
        found.control.check_threads(lanes)
        channels, offset = [], 0
        for (name, _), count, size in zip(self.axes, groups, sizes, strict=True):
            place = offset + self.group(name) * size
            ranks = self.ranks_along(name)
            channels.append(Channel(memory, place, self.coordinates[name], ranks, lanes, found.control))
            offset += count * size
        return channels

    def _mpi_channels(self, found: Connection, mpi: MpiLibrary) -> Sequence[MpiChannel]:
        assert found.network is not None
        others = mpi.communicator.allgather(repr(self))
        if len(set(others)) > 1:
            raise UserError("mesh", f"all ranks must create the same mesh, got {', '.join(others)}.")
        made = [MpiChannel(mpi, self.ranks_along(name), self.index(name), found.control) for name, _ in self.axes]
        found.network.channels += [*made, *(channel.on_device for channel in made)]
        return made

    def channel(self, axis: str) -> Channel | MpiChannel:
        """The connection of this process to its group along an axis."""
        return self._channels[list(self.sizes).index(self._known(axis))]

    def ranks_along(self, axis: str) -> list[int]:
        """The ranks of this process's group along an axis."""
        sizes = [n for _, n in self.axes]
        places = [{**self.coordinates, axis: i} for i in range(self.sizes[axis])]
        return [int(np.ravel_multi_index([p[n] for n, _ in self.axes], sizes)) for p in places]

    def group(self, axis: str) -> int:
        """The index of this process's group among those along an axis."""
        others = [(self.coordinates[n], size) for n, size in self.axes if n != axis]
        number = 0
        for coordinate, size in others:
            number = number * size + coordinate
        return number

    def groups(self, axis: str) -> int:
        """The number of groups of processes along an axis."""
        return self.world.size // self.size(axis)

    def size(self, axis: str) -> int:
        """The number of processes along an axis."""
        return self.sizes[self._known(axis)]

    def is_single(self, axis: str) -> bool:
        """Whether collectives along an axis are omitted, because it has one process."""
        return self.size(axis) == 1 and not self.keeps_single

    def index(self, axis: str) -> int:
        """The index of this process along an axis."""
        return self.coordinates[self._known(axis)]

    def _known(self, axis: str) -> str:
        if axis not in self.sizes:
            raise UserError("mesh", f"an axis of the mesh ({', '.join(self.sizes)}) is required, got {axis!r}.")
        return axis

    def failure(self, peer: int) -> RunError:
        """Why a collective was aborted: a peer is in a different one, or (-1) one failed."""
        page = control_page()
        if peer >= 0:
            page.give_up(self.world.rank, "runs another program than the other ranks, or runs it in another order.")
        deadline = time.monotonic() + 2.0
        while page.failure is None and time.monotonic() < deadline:  # MPI noticed before the control network
            time.sleep(0.01)
        return page.error()

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{n}={s}' for n, s in self.axes)})"


def _check(axes: Axes, all_: World) -> None:
    for name, size in axes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UserError("mesh", f"the axis {name!r} needs at least 1 rank, got {size!r}.")
    if not axes:
        raise UserError("mesh", "at least one axis is required, got none. For example: Mesh(data=2).")
    wanted = prod(n for _, n in axes)
    if wanted != all_.size:
        shown = ", ".join(f"{n}={s}" for n, s in axes)
        raise UserError(
            "mesh", f"Mesh({shown}) needs {wanted} ranks, got {all_.size}. "
            f"Start them with: weft launch -n {wanted} SCRIPT.",
        )  # fmt: skip


_current: list[Mesh] = []
_made = 0


def next_number() -> int:
    """A number for a shared object, equal in all processes because they create such objects in the same order."""
    global _made
    _made += 1
    return _made


def current() -> Mesh:
    """The mesh created last."""
    if not _current:
        raise UserError("mesh", "a mesh is required, got none. Create one first: weft.parallel.Mesh(data=4).")
    return _current[-1]


def with_axes(axes: Axes) -> Mesh:
    """The mesh with these axes that was created last."""
    for mesh in reversed(_current):
        if mesh.axes == axes:
            return mesh
    shown = ", ".join(f"{n}={s}" for n, s in axes)
    raise UserError("mesh", f"this program requires Mesh({shown}), which this process has not created.")


def run_collective(name: str, *given: Any) -> np.ndarray:
    """Run the named collective on an array, the first of its arguments; parameters follow."""
    op, x, params = OPS[name], np.asarray(given[0], order="C"), given[1:]
    result = op.infer(placeholder(0, Type(x.shape, as_dtype(x.dtype))), *params)
    known = dict(zip(op.params, params, strict=True))
    mesh = with_axes(known["mesh"])
    if mesh.size(known["axis"]) == 1:
        return (
            np.zeros(result.shape, x.dtype) if name == "shift" and known["detail"] else x.reshape(result.shape).copy()
        )
    y = np.empty(result.shape, x.dtype)
    peer = run_phase(phase(op, params, result), x, y, mesh.engine, mesh.table_address)
    if peer is not None:
        raise mesh.failure(peer)
    return y
