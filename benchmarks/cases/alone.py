"""What can only be measured in a process of its own: the first step of a program, and the memory a step takes.

`python cpu.py --alone WHAT CASE CONTESTANT` measures one and prints it; `rows` starts those processes.

Compile time is all that comes before the first step can run: tracing, compiling, loading. Cold means that no code is kept
on disk, warm that a process before has compiled the same.

Memory is counted in two ways. `planned`: for weft the arena of the program with parameters, state and inputs; for torch
the same inputs and state, and the most that its allocator had given out at any moment of a step. `resident`: how
much the process grew at its peak from before the parameters were made until three steps were done, which also holds what
compilers and allocators keep. (weft finds its code on disk then: a process before has compiled it.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import training
from .measure import Row
from .peers import need

COMPILE, MEMORY = "compile", "memory"
COMPILED = {"LeNet-5, batch 64": "1.5 s cold, 0.2 s warm", "ResNet-18 for 32x32, batch 32": "6 s cold, 0.2 s warm"}

SLOW = ("CIFAR CNN, batch 64", "ResNet-18 for 32x32, batch 32")  # whose memory is not part of a quick run


# --- in the process of its own ------------------------------------------------------------------------------------------------


def measure(what: str, case: str, contestant: str) -> dict[str, float]:
    make = training.trained(case)[contestant]
    _load(contestant)
    return {"seconds": make().compile()} if what == COMPILE else _memory(make, contestant)


def _load(contestant: str) -> None:
    """Load the library and have it do something small, so that only the work itself is measured."""
    name = contestant.split()[0]
    if name == "torch":
        torch = need("torch")
        torch.nn.functional.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3))
    elif name == "jax":
        jax = need("jax")
        jax.block_until_ready(jax.jit(lambda x: x + 1)(jax.numpy.ones(3)))


def _memory(make: Any, contestant: str) -> dict[str, float]:
    before = _status("VmRSS")
    _forget_peak()
    made = make()
    for _ in range(3):
        made.call()
    found = {"resident": _status("VmHWM") - before}
    if contestant == "weft":
        found["planned"] = made.planned_bytes()
    elif contestant in ("torch", "torch last"):
        found["planned"] = _allocated(made)
    return found


def _status(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return float(line.split()[1]) * 1024
    raise KeyError(name)


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _allocated(made: Any) -> float:
    """What a torch step holds, and the most it allocates on top of that."""
    torch = need("torch")
    made.optimizer.zero_grad(set_to_none=True)
    momenta = [t for s in made.optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    held = [*made.net.parameters(), *made.net.buffers(), *momenta, made.x, made.y]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        made.call()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    now = most = 0
    for event in events:
        now += event.nbytes()
        most = max(most, now)
    return float(sum(t.nbytes for t in held) + most)


# --- in the process that asks --------------------------------------------------------------------------------------------------


def rows(quick: bool, wanted: Any) -> Iterator[Row]:
    for case, goal in COMPILED.items():
        if wanted(COMPILE, case):
            yield _compile_row(case, goal, quick)
    for case in training.TASKS:
        if wanted(MEMORY, case) and not (quick and case in SLOW):
            yield _memory_row(case)


def _compile_row(case: str, goal: str, quick: bool) -> Row:
    row = Row(COMPILE, case, rounds=1, note=f"goal: {goal}")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("weft cold", "weft warm"):
            _ask(row, name, COMPILE, case, "weft", {"WEFT_CACHE": f"{folder}/weft"}, "seconds")
        _ask(row, "jax cold", COMPILE, case, "jax", {"JAX_ENABLE_COMPILATION_CACHE": "false"}, "seconds")
        if not quick:
            caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch", "TORCHINDUCTOR_FX_GRAPH_CACHE": "0"}
            _ask(row, "torch compiled cold", COMPILE, case, "torch compiled", caches, "seconds")
    return _rated(row, "weft cold")


def _memory_row(case: str) -> Row:
    row = Row(MEMORY, case, unit="B", rounds=1, goal=1.0)
    for contestant in training.trained(case, quick=True):
        if contestant.startswith("torch compiled"):
            continue
        if contestant == "weft":  # so that the code is on disk
            _ask(Row(MEMORY, case), "first", MEMORY, case, contestant, {}, "resident")
        _ask(row, contestant, MEMORY, case, contestant, {}, "planned", "resident")
    return _rated(row, "weft planned")


def _ask(row: Row, name: str, what: str, case: str, contestant: str, settings: dict[str, str], *keys: str) -> None:
    entry = Path(__file__).resolve().parents[1] / "cpu.py"
    command = [sys.executable, str(entry), "--alone", what, case, contestant]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    if done.returncode:
        row.failures[name] = (done.stderr.strip().splitlines() or ["it died"])[-1][:300]
        return
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    for key in keys:
        if key in found:
            row.seconds[name if len(keys) == 1 else f"{name} {key}"] = found[key]


def _rated(row: Row, ours: str) -> Row:
    """Compared with the best peer in the same kind of figure."""
    kind = ours.split()[-1]
    peers = {n: v for n, v in row.seconds.items() if not n.startswith("weft") and n.split()[-1] == kind}
    if ours in row.seconds:
        row.best_weft = ours
        row.ratios = {n: v / row.seconds[ours] for n, v in peers.items()}
        if peers:
            row.best_peer = min(peers, key=peers.__getitem__)
            row.ratio = row.ratios[row.best_peer]
    return row
