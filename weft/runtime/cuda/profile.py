"""Profiles of programs on a GPU: the time of each launch, and the GPU's roofline.

Launches run one after the other with events between them, on copies of all memory that they write to. An event takes two or three microseconds,
and launches of a recorded graph follow each other more closely. Where that adds more than `TOLERATED` to a run, the first 1, 2, 3, ... commands are recorded as graphs of their own and
replayed: the time of a command is what its graph takes beyond the one before, and nothing is added to any run.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Protocol

import numpy as np

from ...compiler.gpu.commands import Command, CommandList
from ...compiler.gpu.program import commands as written_commands
from ...compiler.gpu.vendor.specs import ProductSpec, Unsupported
from ...compiler.ir.program import FRAME_RESERVED, KernelProgram
from ...compiler.ir.storage import nbytes
from ...compiler.store import cache
from ...graph.graph import Graph
from ..facts import CallTime, GpuRoof, Profile
from .command_runner import CommandRunner, is_not_once, is_once
from .driver import Gpu
from .libraries import Libraries
from .memory import DeviceMemory, keep_busy

FEWEST = 5  # runs, by default
ENQUEUED = 40e-6  # the maximum time of a launch and an event on the host, in seconds
TOLERATED = 0.05  # of the time of a run, that events may add
LONGEST = 3.0  # seconds of replays: programs that would take longer keep the times between events
SIDE, COPIED = 8192, 1 << 30  # of the product, and bytes of the copy, that the roof is measured with


class ProfiledProgram(Protocol):
    """What the profiler needs of an executable, to run it command by command."""

    gpu: Gpu
    graph: Graph
    updates: dict[int, int]
    commands: CommandList[int]
    runner: CommandRunner

    @property
    def program(self) -> KernelProgram:
        """How it is made up."""

    def reserved(self) -> tuple[int, int, int]:
        """The first entries of the frame."""

    def shared(self) -> int:
        """The last one."""


def profile(executable: ProfiledProgram, inputs: Sequence[int], repeats: int | None = None) -> Profile:
    """Run a program on inputs at these addresses, several times, with events between commands. The inputs are not written to."""
    gpu, program = executable.gpu, executable.program
    steps, commands = written_commands(program), executable.commands
    assert len(steps) == len(commands)
    frame, restore, _rooms = _frame(executable, inputs)
    runs: list[list[float]] = []
    for _ in range(1 + (repeats or FEWEST)):  # the first one loads code
        for target, source, size in restore:
            gpu.copy(target, source, size)
        keep_busy(gpu, ENQUEUED * len(commands))
        marks = [gpu.mark()]
        for command in commands:
            if not runs or not is_once(command):  # constants are prepared in the first run only
                executable.runner.run([command], frame, in_order=True)
            marks.append(gpu.mark())
        gpu.wait()
        runs.append([gpu.seconds(*pair) for pair in pairwise(marks)])
    plain = _replayed(executable, frame, restore, list(commands), repeats or FEWEST)
    seconds = np.median(runs[1:], axis=0) if len(commands) else np.zeros(0)
    rounds = repeats or FEWEST
    if seconds.sum() > (1 + TOLERATED) * plain > 0 and rounds * len(commands) * plain < LONGEST:
        seconds = _between_prefixes(executable, frame, restore, rounds)
    total = dict.fromkeys(program.calls, 0.0)
    for step, time in zip(steps, seconds, strict=True):
        for call in step.calls:  # several small kernels share a launch, and its time
            total[call] += float(time) / len(step.calls)
    calls = [CallTime(i, call, max(total[call], 1e-9)) for i, call in enumerate(program.calls) if not call.once]
    return Profile(program, calls, len(runs) - 1, plain, sum(call.seconds for call in calls))


def _between_prefixes(
    executable: ProfiledProgram, frame: list[int], restore: Sequence[tuple[int, int, int]], repeats: int
) -> np.ndarray:
    """The seconds of each command: the time of the graph that ends with it, minus that of the graph before."""
    every = list(executable.commands)
    ends = [
        _replayed(executable, frame, restore, every[:count], repeats, in_order=True) for count in range(len(every) + 1)
    ]
    return np.diff(np.maximum.accumulate(ends))


def _replayed(
    executable: ProfiledProgram, frame: list[int], restore: Sequence[tuple[int, int, int]], commands: Sequence[Command[int]], repeats: int,
    in_order: bool = False,
) -> float:  # fmt: skip
    """The time of commands as one recorded graph; 0 for programs with control flow that the host decides, which are not recorded."""
    gpu = executable.gpu
    if executable.commands.decides or not any(map(is_not_once, commands)):
        return 0.0
    graph = gpu.record(lambda: executable.runner.run(commands, frame, is_not_once, in_order))
    found = []
    for _ in range(1 + repeats):
        for target, source, size in restore:
            gpu.copy(target, source, size)
        keep_busy(gpu, ENQUEUED)
        begin = gpu.mark()
        gpu.replay(graph)
        end = gpu.mark()
        gpu.wait()
        found.append(gpu.seconds(begin, end))
    gpu.forget(graph)
    return statistics.median(found[1:])


def _frame(
    executable: ProfiledProgram, inputs: Sequence[int]
) -> tuple[list[int], list[tuple[int, int, int]], list[DeviceMemory]]:
    """Addresses as for a run but with copies of state, how to fill those, and the memory to hold meanwhile."""
    gpu, graph = executable.gpu, executable.graph
    states = {i: DeviceMemory(gpu, nbytes(graph.inputs[i])) for i in set(executable.updates.values())}
    restore = [(room.address, inputs[i], room.nbytes) for i, room in states.items() if room.nbytes]
    results = [DeviceMemory(gpu, nbytes(o)) for o in graph.outputs]
    given = [states[i].address if i in states else address for i, address in enumerate(inputs)]
    with gpu.lock:  # both may move
        reserved, shared = executable.reserved(), executable.shared()
    assert len(reserved) == FRAME_RESERVED
    return [*reserved, *given, *(r.address for r in results), shared], restore, [*states.values(), *results]


# --- the roof ---------------------------------------------------------------------------------------------------------------------


def gpu_roof(gpu: Gpu, libraries: Libraries | None) -> GpuRoof:
    """The roof of a GPU: measured the first time, then read from the disk."""
    key = f"gpu roof {gpu.name} {libraries.key if libraries is not None else ''}"
    known = cache().get(key)
    if known is not None:
        return GpuRoof(**json.loads(known))
    half, tf32, single = (_rate(libraries, *kind) for kind in _KINDS)
    found = GpuRoof(half, tf32, single, _bandwidth(gpu))
    cache().put(key, json.dumps(asdict(found)).encode())
    return found


_KINDS = (("bfloat16", False), ("float32", True), ("float32", False))


def _rate(libraries: Libraries | None, dtype: str, tf32: bool) -> float:
    """Operations per second of a large product; infinite if the libraries are not available."""
    if libraries is None:
        return float("inf")
    strides = (SIDE * SIDE, SIDE, 1)
    spec = ProductSpec(1, SIDE, SIDE, SIDE, strides, strides, dtype, dtype, dtype, tf32=tf32)
    try:
        return 2 * SIDE**3 / libraries.seconds(spec)
    except Unsupported:
        return float("inf")


def _bandwidth(gpu: Gpu) -> float:
    """Bytes per second, read and written, of a large copy."""
    size = min(COPIED, gpu.memory()[1] // 8)
    source, target = DeviceMemory(gpu, size), DeviceMemory(gpu, size)
    marks = [gpu.mark()]
    for _ in range(5):
        gpu.copy(target.address, source.address, size)
        marks.append(gpu.mark())
    gpu.wait()
    return 2 * size / statistics.median(gpu.seconds(*pair) for pair in pairwise(marks[1:]))
