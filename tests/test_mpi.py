"""Collectives through MPI: the native functions on an MPI of a few lines that lives in this process, and all of it under mpiexec where mpi4py is."""

import ctypes
import os
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
from weft.compiler.cpu.collective.layout import Context, MpiContext
from weft.compiler.cpu.collective.phases import phase
from weft.errors import UserError
from weft.graph.node import OPS, Type, placeholder
from weft.mesh.channels import waiting_words
from weft.mesh.host_calls import run_phase
from weft.mesh.mpi import load_mpi
from weft.mesh.world import World
from weft.parallel import all_reduce  # noqa: F401  # registers the ops

PART_BYTES = 1 << 14  # small, so that tensors have several pieces
_I, _P = ctypes.c_int64, ctypes.c_void_p


class FakeMpi:
    """Messages between threads. The communicator of a process is its number; requests are numbers, too."""

    def __init__(self):
        self.lock = threading.Lock()
        self.messages = {}  # (from, to, tag) -> contents in their order
        self.waiting = {}  # request -> (from, to, tag), address, bytes
        self.requests = 0
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

    def context(self, rank, size, stop):
        """The words of a process, and the memory that they refer to."""
        requests, staging = np.zeros(2 * size, np.int64), np.zeros(size * PART_BYTES, np.uint8)
        words = waiting_words(SimpleNamespace(size=size, stop_address=stop.ctypes.data), 1, MpiContext.ALL)
        words[Context.INDEX] = words[MpiContext.COMMUNICATOR] = rank
        words[Context.STAGING], words[Context.SLOT_BYTES] = staging.ctypes.data, PART_BYTES
        words[MpiContext.REQUESTS], words[MpiContext.REQUEST_BYTES] = requests.ctypes.data, 8
        for word, function in self.functions.items():
            words[word] = ctypes.cast(function, _P).value
        return words, requests, staging


def run_ranks(size, op, xs, *params, missing=()):
    """A collective in a thread for each process; what each of them has, or None where it was given up."""
    mpi, stop, results = FakeMpi(), np.zeros(1, np.int64), [None] * size
    given = dict(zip(OPS[op].params, ("data", (("data", size),), *params), strict=True))
    dtype = xs[0].dtype
    result = OPS[op].infer(placeholder(0, Type(xs[0].shape, weft.asarray(xs[0]).dtype)), *given.values())

    def run(rank):
        words, *memory = mpi.context(rank, size, stop)
        table, y = np.array([words.ctypes.data], np.int64), np.empty(result.shape, dtype)
        call = phase(OPS[op], tuple(given.values()), result)
        failed = run_phase(call, np.ascontiguousarray(xs[rank]), y, "mpi", table.ctypes.data)
        results[rank] = y if failed is None else None
        assert words[MpiContext.POSITION] >> 16 == 1
        assert len(memory) == 2

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size) if rank not in missing]
    for thread in threads:
        thread.start()
    if missing:
        threads[0].join(0.2)
        assert threads[0].is_alive(), "it waits for the others"
        stop[0] = 1
    for thread in threads:
        thread.join(20)
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


def test_a_wait_is_given_up():
    xs = [np.ones(5, np.float32)] * 2
    assert run_ranks(2, "all_reduce", xs, "sum", "summed", missing=(1,)) == [None, None]


def test_users_without_mpi_are_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(
        UserError, match=r"started by SLURM are connected by MPI.*pip install 'weft\[mpi\]'.*weft launch -n 8"
    ):
        load_mpi(World(0, 8, "SLURM"))


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
@pytest.mark.parametrize("engine", ["mpi", "auto"])
def test_collectives_run_under_mpiexec(engine):
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    tests = Path(__file__).parent
    variables = {
        **os.environ, "WEFT_ENGINE": engine, "WEFT_THREADS": "1", "PYTHONPATH": f"{tests.parent}{os.pathsep}{tests}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }  # fmt: skip
    found = subprocess.run(
        [mpiexec, "-n", "2", sys.executable, tests / "mpi_program.py"], env=variables, capture_output=True, text=True, timeout=120
    )  # fmt: skip
    kind = "local" if engine == "auto" else "mpi"
    assert found.stdout.count(f"of 2 {kind} compared 108") == 2, found.stderr
