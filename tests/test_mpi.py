"""Collectives through MPI: the native functions on an MPI of a few lines that lives in this process, and all of it under mpiexec where mpi4py is."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import test_collectives as collectives
import weft
from weft.compiler.cpu.collective.layout import LINE, Context, MpiContext
from weft.compiler.cpu.collective.phases import phase
from weft.errors import UserError
from weft.graph.node import OPS, Type, placeholder
from weft.mesh.channels import Channel, waiting_words
from weft.mesh.host_calls import run_phase
from weft.mesh.mpi import load_mpi
from weft.mesh.world import World
from weft.parallel import all_reduce  # noqa: F401  # registers the ops

PART_BYTES = 1 << 14  # small, so that tensors have several pieces
_I, _P = ctypes.c_int64, ctypes.c_void_p


class SharedWords:
    """Memory that the threads of a machine share."""

    def __init__(self, nbytes):
        self._memory = np.zeros(nbytes + LINE, np.uint8)
        self.address = self._memory.ctypes.data + -self._memory.ctypes.data % LINE
        start = self.address - self._memory.ctypes.data
        self.words = self._memory[start : start + nbytes // 8 * 8].view(np.int64)


class FakeMpi:
    """Messages between threads. The communicator of a process is its number; requests are numbers, too."""

    def __init__(self):
        self.lock = threading.Lock()
        self.messages = {}  # (from, to, tag) -> contents in their order
        self.waiting = {}  # request -> (from, to, tag), address, bytes
        self.requests = 0
        self.sent = {}  # bytes, by the number of the process
        transfer = ctypes.CFUNCTYPE(ctypes.c_int, _P, _I, _I, _I, _I, _I, _P)
        test = ctypes.CFUNCTYPE(ctypes.c_int, _I, _P, ctypes.POINTER(ctypes.c_int), _P)
        self.functions = {
            MpiContext.SEND: transfer(self.send), MpiContext.RECEIVE: transfer(self.receive), MpiContext.TEST: test(self.test),
        }  # fmt: skip

    def _new_request(self, place):
        self.requests += 1
        _I.from_address(place).value = self.requests
        return self.requests

    def send(self, place, nbytes, byte, peer, tag, rank, request):
        with self.lock:
            self.messages.setdefault((rank, peer, tag), []).append(ctypes.string_at(place, nbytes))
            self.sent[rank] = self.sent.get(rank, 0) + nbytes
            self._new_request(request)
        return 0

    def receive(self, place, nbytes, byte, peer, tag, rank, request):
        with self.lock:
            self.waiting[self._new_request(request)] = (peer, rank, tag), place, nbytes
        return 0

    def test(self, count, requests, flag, statuses):
        with self.lock:
            for request in (_I * count).from_address(requests):
                if request in self.waiting:
                    key, place, nbytes = self.waiting[request]
                    if not self.messages.get(key):
                        flag[0] = 0
                        return 0
                    content = self.messages[key].pop(0)
                    assert len(content) == nbytes
                    ctypes.memmove(place, content, nbytes)
                    del self.waiting[request]
            flag[0] = 1
        return 0

    def context(self, rank, size, stop, near=1):
        """The words of a process, and the memory that they refer to; so many consecutive ones share memory."""
        requests, staging = np.zeros(2 * size, np.int64), np.zeros(size * PART_BYTES, np.uint8)
        words = waiting_words(SimpleNamespace(size=size, stop_address=stop.ctypes.data), 1, MpiContext.ALL)
        words[Context.INDEX] = words[MpiContext.COMMUNICATOR] = rank
        words[Context.STAGING], words[Context.SLOT_BYTES] = staging.ctypes.data, PART_BYTES
        words[MpiContext.REQUESTS], words[MpiContext.REQUEST_BYTES] = requests.ctypes.data, 8
        for word, function in self.functions.items():
            words[word] = ctypes.cast(function, _P).value
        words[MpiContext.NEIGHBOUR_COUNT] = near
        control = SimpleNamespace(size=size, stop_address=stop.ctypes.data, waits=[])
        ranks = range(rank - rank % near, rank - rank % near + near)
        channel = Channel(self.memory[rank // near], 0, rank % near, list(ranks), 1, control) if near > 1 else None
        words[MpiContext.NEIGHBOURS] = channel.address if channel else 0
        return words, requests, staging, channel


def run_ranks(size, op, xs, *params, missing=(), near=1):
    """A collective in a thread for each process; what each of them has, or None where it was given up."""
    mpi, stop, results = FakeMpi(), np.zeros(1, np.int64), [None] * size
    mpi.memory = [SharedWords(Channel.nbytes(near, 1)) for _ in range(size // near)]
    given = dict(zip(OPS[op].params, ("data", (("data", size),), *params), strict=True))
    dtype = xs[0].dtype
    result = OPS[op].infer(placeholder(0, Type(xs[0].shape, weft.asarray(xs[0]).dtype)), *given.values())

    def run(rank):
        words, *memory = mpi.context(rank, size, stop, near)
        table, y = np.array([words.ctypes.data], np.int64), np.empty(result.shape, dtype)
        call = phase(OPS[op], tuple(given.values()), result)
        failed = run_phase(call, np.ascontiguousarray(xs[rank]), y, "mpi", table.ctypes.data)
        results[rank] = y if failed is None else None
        assert words[MpiContext.POSITION] >> 16 == 1
        assert len(memory) == 3
        sent[rank] = mpi.sent.get(rank, 0)

    sent = {}
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size) if rank not in missing]
    for thread in threads:
        thread.start()
    if missing:
        threads[0].join(0.2)
        assert threads[0].is_alive(), "it waits for the others"
        stop[0] = 1
    for thread in threads:
        thread.join(20)
    run_ranks.sent = sent
    return results


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("shape", "dtype"), [((5,), "float32"), ((9, 4001), "float32"), ((7,), "int64")])
def test_mpi_gives_the_bits_of_the_tree(size, shape, dtype):
    xs = [collectives.values(r, shape, dtype) for r in range(size)]
    parts = [collectives.values(r, (size, *shape), dtype) for r in range(size)]
    wanted = list(collectives.expected(size, shape, dtype))
    calls = [
        ("all_reduce", xs, "sum", "summed"), ("all_reduce", xs, "max", "summed"), ("all_gather", xs, "summed"), ("reduce_scatter", parts, "sum"),
        ("all_to_all", parts), ("broadcast", xs, size - 1), ("shift", xs, 1), ("shift", xs, -1),
    ]  # fmt: skip
    for number, (op, given, *params) in enumerate(calls):
        for rank, found in enumerate(run_ranks(size, op, given, *params)):
            assert np.array_equal(found.astype(np.float64), wanted[rank][number]), (op, rank)


@pytest.mark.parametrize(("size", "near"), [(4, 2), (6, 2), (3, 3), pytest.param(8, 4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("shape", "dtype"), [((5,), "float32"), ((3, 50001), "float32"), ((7000,), "float64")])
def test_machines_sum_in_their_memory_first_and_give_the_bits_of_the_tree(size, near, shape, dtype):
    xs = [collectives.values(r, shape, dtype) for r in range(size)]
    flat = run_ranks(size, "all_reduce", xs, "sum", "summed")
    by_messages = run_ranks.sent
    for found, wanted in zip(run_ranks(size, "all_reduce", xs, "sum", "summed", near=near), flat, strict=True):
        assert np.array_equal(found, wanted)
    between = max(run_ranks.sent.values())
    machines, nbytes = size // near, xs[0].nbytes
    if nbytes > 1 << 14:  # each of the parts is sent to, and comes from, every other machine
        assert between <= 2 * nbytes * (machines - 1) / machines / near + 64 * machines
        assert min(by_messages.values()) > 1.4 * between
    assert bool(between) == (machines > 1)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_to_all", "broadcast", "shift", "all_reduce"])
def test_processes_of_one_machine_send_no_messages(op):
    size, shape = 3, (9, 4001)
    xs = [
        collectives.values(r, (size, *shape) if op in ("reduce_scatter", "all_to_all") else shape, "float32")
        for r in range(size)
    ]
    params = {
        "all_gather": ("summed",),
        "reduce_scatter": ("sum",),
        "broadcast": (1,),
        "shift": (1,),
        "all_reduce": ("max", "summed"),
    }.get(op, ())
    flat = run_ranks(size, op, xs, *params)
    for found, wanted in zip(run_ranks(size, op, xs, *params, near=size), flat, strict=True):
        assert np.array_equal(found, wanted)
    assert not any(run_ranks.sent.values())


def test_a_wait_is_given_up():
    xs = [np.ones(5, np.float32)] * 2
    assert run_ranks(2, "all_reduce", xs, "sum", "summed", missing=(1,)) == [None, None]
    assert run_ranks(4, "all_reduce", xs * 2, "sum", "summed", missing=(3,), near=2) == [None] * 4


def test_users_without_mpi_are_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(UserError, match=r"started by SLURM require MPI.*pip install '\.\[mpi\]'.*weft launch -n 8"):
        load_mpi(World(0, 8, "SLURM"))


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
@pytest.mark.parametrize(
    ("engine", "size", "near"), [("mpi", 2, 0), ("auto", 2, 0), pytest.param("mpi", 4, 2, marks=pytest.mark.slow)]
)
def test_collectives_run_under_mpiexec(engine, size, near):
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    tests = Path(__file__).parent
    variables = {
        **os.environ, "WEFT_ENGINE": engine, "WEFT_MACHINE_RANKS": str(near), "WEFT_THREADS": "1", "PYTHONPATH": f"{tests.parent}{os.pathsep}{tests}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }  # fmt: skip
    found = subprocess.run(
        [mpiexec, "-n", str(size), sys.executable, tests / "mpi_program.py"], env=variables, capture_output=True, text=True, timeout=120
    )  # fmt: skip
    kind = "local" if engine == "auto" else "mpi"
    assert len(re.findall(rf"of {size} {kind} compared \d\d", found.stdout)) == size, found.stderr
