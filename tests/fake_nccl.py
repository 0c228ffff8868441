"""NCCL between processes with fake GPUs: the names of nccl4py's bindings that weft calls, on the host's memory.

A collective is put into a stream of the fake GPU, so it runs when that stream does, and is recorded with everything else there. The processes
exchange data through sockets of their own, not through weft's mesh. Sums are made from the last process to the first, in the dtype of
the elements: not in weft's order.
"""

import ctypes
import enum
import os
import secrets
import sys
import time
from contextlib import contextmanager
from multiprocessing.connection import Client, Listener
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

import fake_gpu
import weft
from weft.mesh.world import world
from weft.runtime.cuda import device as cuda_device

ID_BYTES = 128
_TYPES = "Int8 Uint8 Int32 Uint32 Int64 Uint64 Float16 Float32 Float64 Bfloat16"  # as in nccl.h
_NUMPY = [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.float64]
_NUMPY += [ml_dtypes.bfloat16]


class TwoStreamGpu(fake_gpu.FakeGpu):
    """A fake GPU whose second stream does its work as late as it may: whoever forgot to wait for it finds old values."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.late, self.begun, self.waiting = late, 0, []
        self.order: list[str] = []  # what was done, in order

    def bus(self) -> str:
        return f"0000:{world().rank:02x}:00.0"

    def _do(self, action, beside: bool = False) -> None:
        super()._do(lambda: self._begin(action, beside))

    def _begin(self, action, beside: bool) -> None:
        if beside and self.late:
            self.waiting.append(action)
        else:
            action()
        self.begun += beside

    def mark_beside(self) -> object:
        event = _End()
        super()._do(lambda: setattr(event, "begun", self.begun))
        return event

    def after(self, event) -> None:
        if isinstance(event, _End):
            super()._do(lambda: self._finish(event.begun))

    def _finish(self, begun: int) -> None:
        while self.waiting and self.begun - len(self.waiting) < begun:
            self.waiting.pop(0)()

    def download(self, target: np.ndarray, source: int) -> None:
        assert not self.waiting, "work beside the stream was not waited for"
        super().download(target, source)

    def put(self, action, stream: int) -> None:
        """For libraries: work in a stream by its number."""
        assert stream in (self.stream, self.beside)
        self._do(action, stream == self.beside)


class _End:
    begun = 0


class NCCLError(Exception):
    """As the bindings raise it."""


class UniqueId:
    def __init__(self, content: bytes) -> None:
        assert len(content) == ID_BYTES
        self.content = content

    @classmethod
    def from_buffer(cls, content: bytes) -> "UniqueId":
        return cls(bytes(content))

    def __bytes__(self) -> bytes:
        return self.content


class Comm:
    """A communicator: the first process has a connection with each of the others."""

    def __init__(self, size: int, rank: int, content: bytes, listeners) -> None:
        address = content.rstrip(b"\0").decode()
        self.size, self.rank, self.aborted = size, rank, False
        if rank == 0:
            found = {}
            with listeners.pop(address) as listener:
                while len(found) < size - 1:
                    peer = listener.accept()
                    found[peer.recv()] = peer
            self.peers = [found[i] for i in range(1, size)]
        else:
            self.peers = [Client(address, "AF_UNIX")]
            self.peers[0].send(rank)

    def exchange(self, what):
        """What all processes give, by rank. None if it was aborted."""
        try:
            if self.rank:
                self.peers[0].send(what)
                return self._received(self.peers[0])
            given = [what, *map(self._received, self.peers)]
            for peer in self.peers:
                peer.send(given)
            return given
        except (EOFError, OSError):  # a peer is gone: NCCL's kernels would go on waiting
            while not self.aborted:
                time.sleep(0.01)
            return None

    def _received(self, peer):
        while not peer.poll(0.01):
            if self.aborted:
                raise EOFError
        return peer.recv()


class FakeNccl(ModuleType):
    """The module nccl.bindings.nccl."""

    NCCLError, UniqueId, Comm = NCCLError, UniqueId, Comm
    DataType = enum.IntEnum("DataType", _TYPES, start=0)
    RedOp = enum.IntEnum("RedOp", "Sum Prod Max Min Avg", start=0)

    def __init__(self, gpu: TwoStreamGpu) -> None:
        super().__init__("nccl.bindings.nccl")
        self.gpu, self.listeners, self.calls = gpu, {}, []
        self._group: list | None = None

    def get_version(self) -> int:
        return 22809

    def get_unique_id(self) -> UniqueId:
        address = f"\0weft-fake-nccl-{os.getpid()}-{secrets.token_hex(8)}"  # of no file
        self.listeners[address.strip("\0")] = Listener(address.strip("\0"), "AF_UNIX")
        return UniqueId(address.strip("\0").encode().ljust(ID_BYTES, b"\0"))

    def comm_init_rank(self, size: int, number: UniqueId, rank: int) -> Comm:
        return Comm(size, rank, bytes(number), self.listeners)

    def comm_abort(self, comm: Comm) -> None:
        comm.aborted = True

    # --- groups ---------------------------------------------------------------------------------------------------------------

    def group_start(self) -> None:
        assert self._group is None
        self._group = []

    def group_end(self) -> None:
        group, self._group = self._group, None
        self._put(group)

    def _put(self, calls) -> None:
        if not calls:
            return
        [comm], [stream] = {call[1] for call in calls}, {call[2] for call in calls}
        self.gpu.put(lambda: self._run(comm, calls), stream)

    def _call(self, name: str, comm: Comm, stream: int, *facts) -> None:
        assert isinstance(comm, Comm)
        assert all(isinstance(fact, int) for fact in facts)
        call = (name, comm, stream, facts)
        self._put([call]) if self._group is None else self._group.append(call)

    def _run(self, comm: Comm, calls) -> None:
        """A group: messages between pairs of processes are one exchange, everything else one after the other."""
        self.calls.append("+".join(name for name, *_ in calls))
        self.gpu.order.append(calls[0][0])
        if {name for name, *_ in calls} <= {"send", "recv"}:
            return self._messages(comm, [(name, facts) for name, _, _, facts in calls])
        for name, _, _, facts in calls:
            getattr(self, f"_do_{name}")(comm, *facts)
        return None

    # --- collectives: addresses, counts and kinds as NCCL takes them ------------------------------------------------------------

    def all_reduce(self, x, y, count, dtype, op, comm, stream):
        self._call("all_reduce", comm, stream, x, y, count, dtype, op)

    def reduce_scatter(self, x, y, count, dtype, op, comm, stream):
        self._call("reduce_scatter", comm, stream, x, y, count, dtype, op)

    def all_gather(self, x, y, count, dtype, comm, stream):
        self._call("all_gather", comm, stream, x, y, count, dtype)

    def broadcast(self, x, y, count, dtype, root, comm, stream):
        self._call("broadcast", comm, stream, x, y, count, dtype, root)

    def send(self, x, count, dtype, peer, comm, stream):
        self._call("send", comm, stream, x, count, dtype, peer)

    def recv(self, y, count, dtype, peer, comm, stream):
        self._call("recv", comm, stream, y, count, dtype, peer)

    def _exchanged(self, comm: Comm, facts, content: bytes):
        """What all processes give; they must do the same."""
        given = comm.exchange((facts, content))
        if given is None:
            return None
        assert all(other == facts for other, _ in given), f"processes are in different collectives: {given}"
        return [np.frombuffer(part, np.uint8) for _, part in given]

    def _do_all_reduce(self, comm, x, y, count, dtype, op):
        self._reduce(comm, ("all_reduce", count, dtype, op), x, count, y, slice(0, count))

    def _do_reduce_scatter(self, comm, x, y, count, dtype, op):
        mine = slice(comm.rank * count, (comm.rank + 1) * count)
        self._reduce(comm, ("reduce_scatter", count, dtype, op), x, count * comm.size, y, mine)

    def _reduce(self, comm, facts, x, count, y, mine):
        kind = np.dtype(_NUMPY[facts[2]])
        found = self._exchanged(comm, facts, self._at(x, count * kind.itemsize).tobytes())
        if found is None:
            return
        combine = {"Sum": np.add, "Max": np.maximum, "Min": np.minimum}[self.RedOp(facts[3]).name]
        parts = [part.view(kind)[mine] for part in found]
        total = parts[-1]
        with np.errstate(all="ignore"):
            for part in reversed(parts[:-1]):
                total = combine(total, part).astype(kind)
        self._at(y, total.nbytes)[:] = total.view(np.uint8)

    def _do_all_gather(self, comm, x, y, count, dtype):
        size = count * np.dtype(_NUMPY[dtype]).itemsize
        found = self._exchanged(comm, ("all_gather", count, dtype), self._at(x, size).tobytes())
        if found is not None:
            self._at(y, size * comm.size)[:] = np.concatenate(found)

    def _do_broadcast(self, comm, x, y, count, dtype, root):
        size = count * np.dtype(_NUMPY[dtype]).itemsize
        found = self._exchanged(comm, ("broadcast", count, dtype, root), self._at(x, size).tobytes())
        if found is not None:
            self._at(y, size)[:] = found[root]

    def _messages(self, comm, calls):
        sent = {}
        for name, (place, count, dtype, peer) in calls:
            assert 0 <= peer < comm.size
            if name == "send":
                assert peer not in sent
                sent[peer] = self._at(place, count * np.dtype(_NUMPY[dtype]).itemsize).tobytes()
        given = comm.exchange(sent)
        for name, (place, count, dtype, peer) in calls if given is not None else ():
            if name == "recv":
                content = given[peer].pop(comm.rank)
                assert len(content) == count * np.dtype(_NUMPY[dtype]).itemsize
                self._at(place, len(content))[:] = np.frombuffer(content, np.uint8)
        assert given is None or not any(comm.rank in parts for parts in given), "a message was not received"

    def _at(self, address: int, nbytes: int) -> np.ndarray:
        self.gpu._inside(address, nbytes)
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


@contextmanager
def installed(late: bool = True, cache: str = "off"):
    """Inside, `cuda` is a fake GPU of this process, and NCCL connects it with those of the other processes."""
    gpu = TwoStreamGpu(late)
    nccl = FakeNccl(gpu)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_device, "_found", [cuda_device.CudaDevice(gpu, "cuda")])
        patch.setattr("weft.compiler.gpu.compile_pool.compile_kernels", fake_gpu.cast)
        patch.setattr("weft.compiler.gpu.compile_pool.workers_ready", fake_gpu.nullcontext)
        patch.setitem(sys.modules, "nccl.bindings.nccl", nccl)
        for name in ("nccl", "nccl.bindings"):
            patch.setitem(sys.modules, name, ModuleType(name))
        with weft.knobs.set(device="cuda", cache=cache):
            yield gpu, nccl
