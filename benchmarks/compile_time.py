"""How compile time grows with a graph: CPU seconds by stage for wide and deep graphs, and for the plans of whole networks.

    python benchmarks/compile_time.py                    every case, n = 250, 1000, 4000
    python benchmarks/compile_time.py chain concat       only these cases
    python benchmarks/compile_time.py --sizes 100 400    other sizes
    python benchmarks/compile_time.py --profile chain    one case under cProfile, at the first size

Each measurement runs in a process of its own, without the cache on disk, and is stopped after --limit seconds. The exponent is
that of the growth between the last two sizes: 1 is linear. Times are of all threads of the process, workers not included.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import importlib
import json
import math
import pstats
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import weft
from weft import knobs, nn, zoo
from weft.ops.creation import zeros

SIZES = (250, 1000, 4000)
# Which function is which stage; a stage inside another counts for itself only.
STAGES = {
    "trace": ("weft.tracing.traced:trace",),
    "derivative": ("weft.derivatives:pull",),
    "passes": ("weft.compiler.passes.pipeline:apply_passes", "weft.compiler.gpu.program:apply_passes"),
    "fuse": ("weft.compiler.planning.build:_fused",),
    "schedule": ("weft.compiler.planning.build:schedule",),
    "memory": ("weft.compiler.planning.build:plan",),
    "plan": ("weft.compiler.cpu.backend:build", "weft.compiler.gpu.program:build"),
    "emit": ("weft.compiler.cpu.module:write", "weft.compiler.gpu.program:commands"),
    "llvm": ("weft.compiler.cpu.engine:object_code", "weft.compiler.cpu.engine:Loaded"),
}

Case = tuple[Any, tuple[Any, ...]]  # a compiled function, and arguments


# --- wide and deep graphs -----------------------------------------------------------------------------------------------------


def concat(n: int) -> Case:
    """n small arguments side by side."""
    return weft.jit(lambda *xs: weft.concat(xs)), tuple(weft.ones(3) for _ in range(n))


def stack(n: int) -> Case:
    return weft.jit(lambda *xs: weft.stack(xs)), tuple(weft.ones(3) for _ in range(n))


def chain(n: int) -> Case:
    """n elementwise steps and their derivative."""

    def steps(x: Any) -> Any:
        for _ in range(n):
            x = weft.sin(x) * 1.01
        return x.sum()

    return weft.jit(weft.grad(steps)), (weft.ones(16),)


def sgd(loss: Callable[[], Any], parameters: Sequence[Any]) -> Any:
    """A training step's work: the loss, and every parameter a little further down."""
    value = loss()
    for p, g in zip(parameters, weft.gradients(value, list(parameters)), strict=True):
        p.assign(p - 0.01 * g)
    return value


def dense(n: int) -> Case:
    """A training step of n dense layers."""
    weights = [weft.parameter(np.full((8, 8), 0.1, "f4")) for _ in range(n)]

    def step(x: Any) -> Any:
        def loss() -> Any:
            h = x
            for w in weights:
                h = weft.relu(h @ w)
            return h.sum()

        return sgd(loss, weights)

    return weft.jit(step), (weft.ones((4, 8)),)


def rnn(n: int) -> Case:
    """A training step of a recurrent cell, written out n times."""
    w, u = (weft.parameter(np.full((8, 8), 0.1, "f4")) for _ in range(2))

    def step(x: Any) -> Any:
        def loss() -> Any:
            h = weft.zeros((4, 8))
            for i in range(n):
                h = weft.tanh(h @ w + x[i] @ u)
            return h.sum()

        return sgd(loss, [w, u])

    return weft.jit(step), (weft.ones((n, 4, 8)),)


def transformer(n: int) -> Case:
    """A training step of n small blocks with attention. n counts tenths: a block is about 300 nodes."""
    return training_step(zoo.gpt(16, context=8, features=16, heads=2, layers=max(1, n // 10)), tokens(2, 8, 16))


# --- whole networks -----------------------------------------------------------------------------------------------------------


def tokens(batch: int, length: int, vocabulary: int) -> Any:
    return weft.asarray(np.arange(batch * length).reshape(batch, length) % vocabulary)


def training_step(model: Any, x: Any) -> Case:
    model.eval()(x)  # makes what has unknown sizes
    model.train()
    parameters = list(model.parameters())

    def loss(x: Any) -> Any:
        y = model(x)
        y = y[0] if isinstance(y, tuple) else y  # without the carried state
        if len(y.shape) == 3:
            return weft.cross_entropy(y.reshape(-1, y.shape[-1]), x.reshape(-1))
        return (y * y).mean()

    return weft.jit(lambda x: sgd(lambda: loss(x), parameters)), (x,)


def resnet110() -> Case:
    return training_step(zoo.resnet110(), weft.ones((8, 3, 32, 32)))


def gpt2() -> Case:
    return training_step(zoo.gpt2(), tokens(1, 64, 1000))


GROWING = {f.__name__: f for f in (concat, stack, chain, dense, rnn, transformer)}
NETWORKS = {f.__name__: f for f in (resnet110, gpt2)}


# --- measuring ----------------------------------------------------------------------------------------------------------------


class Clock:
    """CPU seconds by stage; the inner of two nested stages has the time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running, self._since = ["rest"], time.process_time()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._switch(lambda: self._running.append(name))
        try:
            yield
        finally:
            self._switch(self._running.pop)

    def _switch(self, change: Callable[[], Any]) -> None:
        now = time.process_time()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now
        change()

    def watch(self) -> None:
        """Time the functions of all stages from now on."""
        for name, places in STAGES.items():
            for place in places:
                module, attribute = place.split(":")
                home = importlib.import_module(module)
                setattr(home, attribute, self._timed(name, getattr(home, attribute)))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name):
                return function(*args, **kwargs)

        return call


def case_of(name: str, n: int) -> Case:
    nn.init.values = lambda start, shape: zeros(shape)  # large networks are made at once
    return GROWING[name](n) if name in GROWING else NETWORKS[name]()


def compile_case(name: str, n: int, device: str) -> dict[str, float]:
    """CPU seconds of compiling a case, by stage. Programs for GPUs are planned and written, but not compiled."""
    from weft.compiler.gpu.program import gpu_program  # noqa: F401  so that its stages are found

    with knobs.set(cache="off", compile_after=1 << 30):
        function, args = case_of(name, n)
        if device == "gpu":
            plan_for_gpu()
        clock = Clock()
        clock.watch()
        if name in GROWING and device == "cpu":
            function._for(args, {})
        else:
            function.memory(*args)
        with clock.stage("rest"):
            return dict(clock.seconds)


def plan_for_gpu() -> None:
    """Whoever asks the CPU for a plan gets that of a GPU."""
    from weft.compiler.gpu import program
    from weft.runtime import device
    from weft.runtime.facts import Facts

    def planned(graph: Any, updates: Any, options: Any, constants: Any) -> Facts:
        made = program.gpu_program(graph, updates, options.narrow, constants)
        program.commands(made)
        return Facts(made.memory.arena, made.memory.kept, made.memory.recomputed)

    here: Any = device()
    here.planned = planned


def measured(name: str, n: int, device: str, limit: float) -> dict[str, float] | str:
    """The same in a process of its own; why there is none, if it failed."""
    command = [sys.executable, __file__, "--alone", name, str(n), device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return "stopped at the time limit"
    if done.returncode:
        return f"failed with code {done.returncode} {done.stderr[-200:]}"
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(title: str, seconds: dict[str, float] | str, note: str = "") -> None:
    if isinstance(seconds, str):
        print(f"{title:24} {seconds}", flush=True)
        return
    stages = [f"{seconds.get(stage, 0):8.2f}" for stage in STAGES]
    print(f"{title:24}{sum(seconds.values()):8.2f} {''.join(stages)}  {note}", flush=True)


def report(names: Sequence[str], sizes: Sequence[int], limit: float) -> None:
    print(f"{'CPU seconds':24}{'all':>8} " + "".join(f"{stage:>8.7}" for stage in STAGES) + "  growth")
    for name in names:
        if name in NETWORKS:
            for device in ("cpu", "gpu"):
                row(f"{name} plan, {device}", measured(name, 0, device, limit))
            continue
        before: tuple[int, float] | None = None
        for n in sizes:
            seconds = measured(name, n, "cpu", limit)
            if isinstance(seconds, str):
                row(f"{name} n={n}", seconds)
                break
            total = sum(seconds.values())
            exponent = "" if before is None else f"n^{math.log(total / before[1]) / math.log(n / before[0]):.2f}"
            row(f"{name} n={n}", seconds, exponent)
            before = n, total


def profiled(name: str, n: int, device: str) -> None:
    with cProfile.Profile(time.process_time) as profile:
        compile_case(name, n, device)
    pstats.Stats(profile).sort_stats("tottime").print_stats(35)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("cases", nargs="*", default=[], help=f"of {', '.join((*GROWING, *NETWORKS))}")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--limit", type=float, default=300, help="seconds for one measurement")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="for --profile")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--alone", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        name, n, device = options.alone
        print(json.dumps(compile_case(name, int(n), device)))
    elif options.profile:
        profiled(options.cases[0], options.sizes[0], options.device)
    else:
        report(options.cases or [*GROWING, *NETWORKS], options.sizes, options.limit)


if __name__ == "__main__":
    main()
