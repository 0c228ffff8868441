"""Collectives between GPUs by NCCL, through the low-level bindings of the package nccl4py.

Each axis of a mesh has a communicator for the processes along it. They agree on its identifier through the connection that processes have
anyway. A collective is enqueued on a stream, and recorded with the other work on it: no host waits for it. If a process fails, the others
learn of it through the control page and abort their communicators: kernels that wait for the failed process end, and hosts that wait for
those GPUs raise an error with the reason.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...compiler.gpu.special.collectives import CollectiveSpec
from ...errors import RunError, UserError
from ...hints import install
from ...mesh.connection import control_page
from ...mesh.control import ControlPage
from ...mesh.mesh import Axes, Mesh, run_collective
from ...records import dataclass
from .driver import Gpu
from .memory import DeviceMemory

INSTALL = f"Install it with the rest of what weft needs for NVIDIA GPUs. {install('cuda')}"
ID_BYTES = 128
NOTICED = 2.0  # seconds to wait for the control page to report another process as the reason of a failure of NCCL
TYPES = {
    "float64": "Float64", "float32": "Float32", "float16": "Float16", "bfloat16": "Bfloat16", "int8": "Int8", "uint8": "Uint8",
    "int32": "Int32", "uint32": "Uint32", "int64": "Int64", "uint64": "Uint64",
}  # fmt: skip
COMBINATIONS = {"": "Sum", "sum": "Sum", "max": "Max", "min": "Min"}


def bindings() -> Any:
    """The bindings of NCCL, or one sentence about what is missing.

    Registering the memory of recorded collectives with NCCL is switched off, unless the user asked for it: it refuses memory of the
    driver's pool, and all processes would have to record at the same call.
    """
    os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
    try:
        nccl = importlib.import_module("nccl.bindings.nccl")
        nccl.get_version()  # loads the library
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            "cuda", f"collectives between GPUs need NCCL and the package nccl4py ({reason}). {INSTALL}"
        ) from None
    return nccl


@dataclass(frozen=True)
class _Communicator:
    """One axis of a mesh, seen from this process."""

    handle: Any
    index: int  # the number of this process along the axis
    place: DeviceMemory  # that number on the GPU


class Communicators:
    """The communicators of one GPU. All processes make them in the same order: when they first run a program that needs one."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._made: dict[tuple[Axes, str], _Communicator] = {}
        self._nccl: Any = None
        self._page: ControlPage | None = None
        self._enqueueing = threading.Lock()
        self._aborted = False

    def prepare(self, mesh: Mesh, axes: Sequence[str]) -> None:
        """Create the communicators of a program's collectives. All processes of the mesh call this together."""
        missing = [axis for axis in axes if (mesh.axes, axis) not in self._made]
        if not missing:
            return
        if self._nccl is None:
            self._nccl = bindings()
            self._gpu.open_beside()
        if mesh.world.size > 1 and self._page is None:
            self._page = control_page()
            self._page.stops.append(self.abort)
        for axis in missing:
            _check_gpus(self._gpu, mesh, axis)
            self._made[mesh.axes, axis] = self._joined(mesh, axis)

    def _joined(self, mesh: Mesh, axis: str) -> _Communicator:
        nccl, index, size = self._nccl, mesh.index(axis), mesh.size(axis)
        with self._explained(f"the communicator of the axis {axis!r}"):
            mine = bytes(nccl.get_unique_id()) if index == 0 else bytes(ID_BYTES)
            given = run_collective("broadcast", np.frombuffer(mine, np.uint8), axis, mesh.axes, 0).tobytes()
            handle = nccl.comm_init_rank(size, nccl.UniqueId.from_buffer(given), index)
        place = DeviceMemory(self._gpu, 8)
        self._gpu.upload(place.address, np.array([index], np.int64))
        return _Communicator(handle, index, place)

    # --- running ----------------------------------------------------------------------------------------------------------------

    @contextmanager
    def enqueueing(self) -> Iterator[None]:
        """Around enqueuing a program: its communicators are not aborted inside, and not used after an abort."""
        with self._enqueueing:
            self.check()
            yield

    def run(self, spec: CollectiveSpec, places: Sequence[int], beside: bool) -> None:
        """Enqueue a collective on the main or the concurrent stream; `places` are the sources, then the targets."""
        if not any(spec.counts):
            return
        with self._explained(spec.name):
            getattr(self, f"_{spec.name}")(spec, self._made[spec.mesh, spec.axis], places, beside)

    def _stream(self, beside: bool) -> int:
        return self._gpu.beside if beside else self._gpu.stream

    def _kind(self, spec: CollectiveSpec) -> tuple[int, int]:
        """The type of its elements and how they are combined, as NCCL numbers them."""
        return int(self._nccl.DataType[TYPES[spec.dtype]]), int(self._nccl.RedOp[COMBINATIONS[spec.combine]])

    @contextmanager
    def _group(self) -> Iterator[None]:
        """Calls that NCCL does as one."""
        self._nccl.group_start()
        try:
            yield
        finally:
            self._nccl.group_end()

    def _all_reduce(self, spec: CollectiveSpec, on: _Communicator, places: Sequence[int], beside: bool) -> None:
        dtype, op = self._kind(spec)
        count, stream = len(spec.counts), self._stream(beside)
        with self._group():
            for x, y, length in zip(places[:count], places[count:], spec.counts, strict=True):
                if length:
                    self._nccl.all_reduce(x, y, length, dtype, op, on.handle, stream)

    def _reduce_scatter(self, spec: CollectiveSpec, on: _Communicator, places: Sequence[int], beside: bool) -> None:
        dtype, op = self._kind(spec)
        self._nccl.reduce_scatter(*places, spec.counts[0], dtype, op, on.handle, self._stream(beside))

    def _all_gather(self, spec: CollectiveSpec, on: _Communicator, places: Sequence[int], beside: bool) -> None:
        self._nccl.all_gather(*places, spec.counts[0], self._kind(spec)[0], on.handle, self._stream(beside))

    def _broadcast(self, spec: CollectiveSpec, on: _Communicator, places: Sequence[int], beside: bool) -> None:
        dtype, _ = self._kind(spec)
        self._nccl.broadcast(*places, spec.counts[0], dtype, spec.detail, on.handle, self._stream(beside))

    def _all_to_all(self, spec: CollectiveSpec, on: _Communicator, places: Sequence[int], beside: bool) -> None:
        (x, y), [length], dtype = places, spec.counts, self._kind(spec)[0]
        with self._group():
            for peer in range(spec.size):
                self._nccl.send(x + peer * length, length, dtype, peer, on.handle, self._stream(beside))
                self._nccl.recv(y + peer * length, length, dtype, peer, on.handle, self._stream(beside))

    def _shift(self, spec: CollectiveSpec, on: _Communicator, places: Sequence[int], beside: bool) -> None:
        (x, y), [length], dtype = places, spec.counts, self._kind(spec)[0]
        source, target = on.index - spec.detail, on.index + spec.detail
        if not 0 <= source < spec.size:
            self._gpu.clear(y, length, beside)
        with self._group():
            if 0 <= target < spec.size:
                self._nccl.send(x, length, dtype, target, on.handle, self._stream(beside))
            if 0 <= source < spec.size:
                self._nccl.recv(y, length, dtype, source, on.handle, self._stream(beside))

    def _axis_index(self, spec: CollectiveSpec, on: _Communicator, places: Sequence[int], beside: bool) -> None:
        self._gpu.copy(places[0], on.place.address, on.place.nbytes)

    # --- failures ----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise an error if a process has failed: the values on the GPU are then invalid."""
        if self._page is not None:
            self._page.check()

    def abort(self) -> None:
        """End all kernels that wait for other processes, from a separate thread. NCCL first ends its kernels, and then waits until recorded
        graphs are destroyed, for which no thread of weft waits.
        """
        held = self._enqueueing.acquire(timeout=1.0)  # a full queue of the driver would block for ever
        try:
            if self._aborted:
                return
            self._aborted = True
        finally:
            if held:
                self._enqueueing.release()
        for made in self._made.values():
            threading.Thread(target=self._abort_one, args=(made.handle,), name="weft nccl abort", daemon=True).start()

    def _abort_one(self, handle: Any) -> None:
        self._gpu.enter()
        self._nccl.comm_abort(handle)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Errors of NCCL as errors of weft: the failure of a process, if one has failed."""
        try:
            yield
        except self._nccl.NCCLError as error:
            _wait(lambda: self._page is None or self._page.failure is not None)
            self.check()
            raise RunError(
                "nccl", f"{what}: {error}. With NCCL_DEBUG=INFO in the environment NCCL prints details."
            ) from None


def _wait(noticed: Callable[[], bool]) -> None:
    deadline = time.monotonic() + NOTICED
    while not noticed() and time.monotonic() < deadline:
        time.sleep(0.01)


def _check_gpus(gpu: Gpu, mesh: Mesh, axis: str) -> None:
    """Raise an error if two processes along an axis have the same GPU, which NCCL does not support."""
    name = f"{socket.gethostname()} {gpu.bus()}"
    number = np.asarray(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest()))
    numbers = run_collective("all_gather", number, axis, mesh.axes, "summed").tolist()
    same = [rank for rank, other in zip(mesh.ranks_along(axis), numbers, strict=True) if other == int(number)]
    if len(same) > 1:
        raise UserError(
            "cuda",
            f"NCCL needs a GPU for each process, and the ranks {', '.join(map(str, same))} share one ({name}). "
            "Start as many processes as there are GPUs.",
        )
