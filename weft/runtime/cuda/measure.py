"""Timing on a GPU, and the choice between weft's kernels and a library's by measurement. The alternatives are measured as they would run:
our kernel with its epilogue, and the library call followed by an epilogue kernel, on initialized
memory of their own. Recorded work is timed, since launching small kernels takes the host longer than running them. Results are kept on
disk. Kernels must be compiled to be measured, and compiling many takes as long as one, so a program first collects all open
questions and then measures them together.
"""

from __future__ import annotations

import json
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np

from ...compiler.gpu import algorithms as choice
from ...compiler.gpu import compile_pool
from ...compiler.gpu.compile import compile_request
from ...compiler.gpu.source import KernelSource
from ...compiler.gpu.vendor.claims import Claim, operations
from ...compiler.gpu.vendor.specs import HALVES, AttentionSpec, ConvSpec, ProductSpec, Spec, Unsupported, to_json
from ...compiler.ir.kernel import Kernel, View
from ...compiler.ir.storage import nbytes
from ...compiler.store import cache
from ...errors import RunError
from ...graph.node import Node
from ...records import dataclass
from .driver import Gpu, OutOfMemory
from .memory import DeviceMemory

RUNS = 5  # runs of recorded work, of which the median is taken
SHORT, MOST = 2e-4, 10  # seconds: shorter work is recorded several times in a row, up to a limit
LONG = 0.1  # seconds: measured once
TINY = 1_000_000  # operations: our kernels always win
HUGE = 200_000_000_000  # operations on 16 bits: libraries always win
GAIN = 0.97  # a library's time must be below this fraction of ours: it cannot share a launch with other kernels
WORTH = {
    "product": 2_000_000_000,
    "convolution": 500_000_000,
    "attention": 500_000_000,
}  # operations above which libraries are usually faster
BLOCK = 1 << 20  # bytes of random numbers, repeated in larger memory
WARP, STATUS = 32, 16  # threads; bytes in which a kernel reports errors


def seconds(gpu: Gpu, enqueue: Callable[[], None]) -> float:
    """The time of work on the GPU when it is replayed. No other thread enqueues work meanwhile."""
    with gpu.lock:
        return _seconds(gpu, enqueue)


def _seconds(gpu: Gpu, enqueue: Callable[[], None]) -> float:
    enqueue()  # loads code
    begin = gpu.mark()
    enqueue()
    end = gpu.mark()
    gpu.wait()
    once = gpu.seconds(begin, end)
    if once > LONG:
        return once
    times = max(1, min(MOST, int(SHORT / max(once, 1e-9))))

    def several() -> None:
        for _ in range(times):
            enqueue()

    recorded = gpu.record(several)
    try:
        gpu.replay(recorded)
        marks = [gpu.mark()]
        for _ in range(RUNS):
            gpu.replay(recorded)
            marks.append(gpu.mark())
        gpu.wait()
        return statistics.median(gpu.seconds(*pair) for pair in pairwise(marks)) / times
    finally:
        gpu.forget(recorded)


def filled(gpu: Gpu, size: int, semi_sparse: bool = False) -> DeviceMemory:
    """Memory filled with numbers that are small in every type, because zeros are multiplied faster.

    `semi_sparse`: of four numbers of 16 bits the last two are 0.
    """
    room = DeviceMemory(gpu, size)
    numbers = np.random.default_rng(0).integers(0x3000, 0x3C00, min(size, BLOCK) // 2 + 1, np.uint16)
    if semi_sparse:
        numbers[2::4] = numbers[3::4] = 0
    bits = numbers.view(np.uint8)
    there = min(size, BLOCK)
    gpu.upload(room.address, bits[:there])
    while there < size:
        more = min(there, size - there)
        gpu.copy(room.address + there, room.address, more)
        there += more
    return room


@dataclass(frozen=True)
class _Comparison:
    """Two alternatives to compute a kernel: weft's and the library's."""

    kernel: Kernel
    wanted: Claim

    @cached_property
    def own(self) -> list[KernelSource]:
        """Our kernels."""
        return choice.sources(self.kernel, choice.own_plan(self.kernel, self.wanted.limit, self.wanted.spec.tf32))

    @cached_property
    def after(self) -> list[KernelSource]:
        """The epilogue of the library's result, if it needs one."""
        return choice.sources(self.kernel, choice.library_plan(self.kernel, self.wanted))

    @property
    def sources(self) -> list[KernelSource]:
        return [*self.own, *self.after]

    def key(self, capability: int) -> str:
        """Everything that the times depend on, except for the GPU and the library."""
        return "\n".join([to_json(self.wanted.spec), *(compile_request(s, capability).to_json() for s in self.sources)])

    @property
    def tensors(self) -> set[Node]:
        """All memory that either alternative accesses."""
        bases = [view.base for view in self.kernel.views]
        return {
            *bases,
            *self.wanted.more,
            self.wanted.result,
            *(node for source in self.sources for node in source.arguments),
        }


class Choices:
    """Which products and convolutions the libraries compute on a GPU; `ready` prepares a library call, or raises Unsupported."""

    def __init__(self, gpu: Gpu, ready: Callable[[Spec], Any], key: str) -> None:
        self.gpu, self._ready, self._key = gpu, ready, key
        self._here: dict[str, bool] = {}  # the disk may be off
        self._collected = threading.local()  # by each thread for itself

    def faster(self, kernel: Kernel, wanted: Claim) -> bool:
        """Whether a library is faster than our kernels: measured now, if it is not known, or later if unknown ones are collected."""
        if operations(kernel) < TINY:
            return False
        if operations(kernel) > HUGE and _type(wanted.spec) in HALVES:
            return self.can(wanted.spec)
        comparison = _Comparison(kernel, wanted)
        key = comparison.key(self.gpu.capability)
        known, waiting = self._known(key), getattr(self._collected, "waiting", None)
        if known is not None:
            return known
        if waiting is not None:
            waiting[key] = comparison
            return expected(kernel, wanted)
        self._settle({key: comparison})
        return self._here[key]

    def guess(self, kernel: Kernel, wanted: Claim) -> bool:
        """The same by estimate, without measuring, for plans that are not run."""
        if wanted.by_name or operations(kernel) < TINY:
            return wanted.by_name
        known = self._known(_Comparison(kernel, wanted).key(self.gpu.capability))
        return expected(kernel, wanted) if known is None else known

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the necessary measurements, and do them at the end of the block."""
        waiting: dict[str, _Comparison] = {}
        self._collected.waiting = waiting
        try:
            yield
        finally:
            self._collected.waiting = None
        if waiting:
            self._settle(waiting)

    def _known(self, key: str) -> bool | None:
        if key not in self._here:
            content = cache().get(self._full(key))
            if content is None:
                return None
            self._here[key] = _won(json.loads(content))
        return self._here[key]

    def _full(self, key: str) -> str:
        return f"comparison {self._key} triton {version('triton')}\n{key}"

    def can(self, spec: Spec) -> bool:
        """Whether a library supports it at all."""
        try:
            self._ready(spec)
        except Unsupported:
            return False
        return True

    def _settle(self, unknown: dict[str, _Comparison]) -> None:
        """Measure all, after compiling them together. Kernels that no library supports are not measured."""
        self.gpu.enter()
        able = {key: comparison for key, comparison in unknown.items() if self.can(comparison.wanted.spec)}
        every = [source for comparison in able.values() for source in comparison.sources]
        code = dict(zip(every, compile_pool.compile_kernels(every, self.gpu.capability), strict=True))
        loaded = {
            source: (self.gpu.load(b.code, b.symbol, b.shared), WARP * b.warps, b.shared) for source, b in code.items()
        }
        with cache().making(self._full("")):  # processes that measure at the same time would disturb each other
            for key, comparison in unknown.items():
                if self._known(key) is None:
                    self._settle_one(key, comparison, loaded if key in able else None)

    def _settle_one(self, key: str, comparison: _Comparison, loaded: dict[KernelSource, Any] | None) -> None:
        times: dict[str, float | None] = {}
        try:
            if loaded is not None:
                times = self._times(comparison, loaded)
        except OutOfMemory:  # not kept: there may be enough memory another time
            self._here[key] = expected(comparison.kernel, comparison.wanted)
            return
        cache().put(self._full(key), json.dumps(times).encode())
        self._here[key] = _won(times)

    def _times(self, comparison: _Comparison, loaded: dict[KernelSource, Any]) -> dict[str, float | None]:
        asked = self._ready(comparison.wanted.spec)
        rooms = {node: filled(self.gpu, nbytes(node)) for node in comparison.tensors}
        status, workspace = DeviceMemory(self.gpu, STATUS), DeviceMemory(self.gpu, asked.workspace)
        places = {node: room.address for node, room in rooms.items()}
        arguments = [
            places[o.base] + o.offset * o.base.dtype.itemsize if isinstance(o, View) else places[o]
            for o in comparison.wanted.operands(comparison.kernel.views)
        ]
        arguments += [places[node] for node in comparison.wanted.more]

        def launch(sources: Sequence[KernelSource]) -> None:
            for source in sources:
                given = [*(places[node] for node in source.arguments), status.address]
                function, threads, shared = loaded[source]
                self.gpu.launch(function, source.programs, threads, shared, given)

        def library() -> None:
            asked.run([*arguments, places[comparison.wanted.result]], workspace.address, self.gpu.stream)
            launch(comparison.after)

        return {"own": self._timed(lambda: launch(comparison.own)), "library": self._timed(library)}

    def _timed(self, enqueue: Callable[[], None]) -> float | None:
        """None if it cannot be run."""
        try:
            return seconds(self.gpu, enqueue)
        except OutOfMemory:
            raise
        except RunError:
            return None


def expected(kernel: Kernel, wanted: Claim) -> bool:
    """Whether a library is usually faster."""
    kinds = {ConvSpec: "convolution", AttentionSpec: "attention", ProductSpec: "product"}
    return operations(kernel) >= WORTH[kinds[type(wanted.spec)]]


def _won(times: dict[str, float | None]) -> bool:
    """Whether to use the library."""
    own, library = times.get("own"), times.get("library")
    return library is not None and (own is None or library < GAIN * own)


def _type(spec: Spec) -> str:
    return spec.a_dtype if isinstance(spec, ProductSpec) else spec.dtype


__all__ = ["Choices", "filled", "seconds"]
