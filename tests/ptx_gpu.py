"""A GPU made of the host's memory that runs some kernels as Triton compiled them for an H200; it interprets the others. See ptx_machine.py."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fake_gpu
import weft
from ptx_machine import Kernel
from ptx_threads import Memory
from weft.compiler.gpu.compile import Binary, CompileRequest, compile_request

BUILD = Path(__file__).parent / "ptx_build.py"


class PtxGpu(fake_gpu.FakeGpu):
    def __init__(self, total: int = 1 << 28) -> None:
        super().__init__(total)
        self.compiled_launches = 0

    def load(self, code: bytes, symbol: str, shared: int) -> Any:
        known = json.loads(code)
        if "ptx" not in known:
            return super().load(code, symbol, shared)
        return Kernel(known["ptx"]), known["shared"]

    def launch(self, function: Any, programs: int, threads: int, shared: int, arguments: Sequence[Any], beside: bool = False) -> None:  # fmt: skip
        kernel, needed = function
        if not isinstance(kernel, Kernel):
            super().launch(function, programs, threads, shared, arguments, beside)
            return
        assert (kernel.threads, needed) == (threads, shared)
        addresses = [int(address or 0) for address in arguments]

        def run() -> None:
            self.compiled_launches += 1
            kernel.run(programs, addresses, Memory((a, room.nbytes) for a, room in self.rooms.items()), shared)

        self._do(run, beside)


@contextmanager
def compiling(monkeypatch: pytest.MonkeyPatch, chosen: Callable[[CompileRequest], bool]) -> Iterator[PtxGpu]:
    """Make `cuda` name a device whose GPU runs the chosen kernels as they were compiled."""
    monkeypatch.setattr(fake_gpu, "FakeGpu", PtxGpu)
    gpu = fake_gpu.install(monkeypatch)
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(BUILD)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None

        def build(sources: Sequence[Any], capability: int) -> list[Binary]:
            return [_built(worker, source, capability, chosen) for source in sources]

        monkeypatch.setattr("weft.compiler.gpu.compile_pool.compile_kernels", build)
        with weft.knobs.set(cache="off"):  # which holds kernels for the interpreter
            yield gpu
        worker.stdin.close()


def _built(worker: Any, source: Any, capability: int, chosen: Callable[[CompileRequest], bool]) -> Binary:
    wanted = compile_request(source, capability)
    if not chosen(wanted):
        return fake_gpu.cast([source], capability)[0]
    worker.stdin.write(wanted.to_json() + "\n")
    worker.stdin.flush()
    known = json.loads(worker.stdout.readline())
    return Binary(json.dumps(known).encode(), wanted.name, known["warps"], known["shared"])
