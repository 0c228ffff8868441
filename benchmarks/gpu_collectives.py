"""NCCL in the recorded graph of a training step, with one rank: is every collective right, does no host wait, and what does it cost?

    python benchmarks/gpu_collectives.py                        everything; about three minutes on an H200
    python benchmarks/gpu_collectives.py --only lenet           the networks whose name holds this word
    python benchmarks/gpu_collectives.py --json FILE            writes the results there, too
    python benchmarks/gpu_collectives.py --dry                  small shapes on the fake GPU of the tests: tries the script

Each network is trained in three ways, in turns: `plain`, without collectives; `split`, the same program as with collectives, but without NCCL
and in one stream (gradients go through memory, so updates are not fused with them); and `nccl`. The overhead of NCCL is nccl against split, that
of data parallel nccl against plain. A turn is many steps back to back and one wait; reported are medians of the ratios of neighbouring turns.

It ends with status 1 if a part fails, or NCCL costs 2 % or more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft import nn, optim, parallel, zoo
from weft.nn.statistics_of_ranks import statistics_of_ranks

LIMIT = 2.0  # percent
TURN_SECONDS, ROUNDS, WARM = 0.25, 15, 6
WAITS = ("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize", "cuMemcpyDtoH", "cuEventQuery")
PACKAGES = ("nccl4py", "cuda-bindings", "cuda-pathfinder", "triton", "nvidia-cudnn-frontend", "nvmath-python", "numpy")


@dataclass
class Network:
    """A network, and one batch of its data."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of a batch; of whole numbers below `classes` if there are two
    classes: int
    precision: str | None = None

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        if len(self.shape) == 2:
            tokens = rng.integers(0, self.classes, (self.shape[0], self.shape[1] + 1))
            return tokens[:, :-1], tokens[:, 1:]
        return rng.normal(size=self.shape).astype(np.float32), rng.integers(0, self.classes, self.shape[0])


NETWORKS = [
    Network("LeNet-5, batch 128, float32", lambda: zoo.lenet5_classic(activation="relu", pooling="max"), (128, 1, 28, 28), 10),
    Network("ResNet-18 for 32x32, batch 512, bfloat16", zoo.resnet18_cifar, (512, 3, 32, 32), 10, "bfloat16"),
    Network("GPT, 6 layers of 384, batch 64 x 256, bfloat16", lambda: zoo.gpt(65), (64, 256), 65, "bfloat16"),
]  # fmt: skip
SMALL = [
    Network(
        "a convolution and a batch norm",
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)),
        (2, 1, 4, 4), 3,
    ),
    Network("GPT, 1 layer of 8", lambda: zoo.gpt(11, context=4, features=8, heads=2, layers=1), (2, 4), 11),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", default="", help="the networks whose name holds this word")
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument("--dry", action="store_true", help="small shapes on the fake GPU of the tests")
    options = parser.parse_args()
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    with ExitStack() as held:
        if options.dry:
            held.enter_context(fake_gpu())
        else:
            weft.knobs.device = "cuda"
        sys.exit(run(options))


def run(options: argparse.Namespace) -> int:
    """All parts; the exit status."""
    found: dict[str, Any] = {}
    chosen = [n for n in (SMALL if options.dry else NETWORKS) if options.only.lower() in n.name.lower()]
    parts: list[tuple[str, Callable[[], Any]]] = [
        ("what there is", environment),
        ("every collective with one rank", collectives),
        ("communication beside computation", lambda: overlap(options.dry)),
        *((network.name, partial(training, network, options.dry)) for network in chosen),
    ]
    failed = []
    for name, part in parts:
        say(f"\n== {name}")
        start = time.perf_counter()
        try:
            found[name] = part()
        except Exception:  # one part that fails is a result, and stops no other
            traceback.print_exc(file=sys.stdout)
            found[name] = {"failed": traceback.format_exc().splitlines()[-1]}
        if isinstance(found[name], dict) and found[name].get("failed"):
            failed.append(f"{name}: {found[name]['failed']}")
        say(f"   ({time.perf_counter() - start:.1f} s)")
    say("\n" + json.dumps(found, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))
    say("\nFAILED: " + "; ".join(failed) if failed else "\nall parts passed")
    return 1 if failed else 0


def say(text: str) -> None:
    print(text, flush=True)


# --- what there is -----------------------------------------------------------------------------------------------------------------


def environment() -> dict[str, Any]:
    """Versions of everything that takes part."""
    found: dict[str, Any] = {"python": sys.version.split()[0], "weft": weft.__version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "missing"
    device = weft.device("cuda")
    found["device"] = device.about()
    from weft.runtime.cuda import nccl

    bindings = nccl.bindings()
    found["NCCL"] = bindings.get_version()
    found["NCCL's library"] = str(bindings.get_library_path()) if hasattr(bindings, "get_library_path") else ""
    found["NCCL's settings"] = {k: v for k, v in os.environ.items() if k.startswith("NCCL_")}
    for name, value in found.items():
        say(f"   {name}: {value}")
    return found


# --- collectives -------------------------------------------------------------------------------------------------------------------


def collectives() -> dict[str, Any]:
    """Each collective of a mesh of one process: what it gives must be what was given. Run, recorded, replayed."""
    single_mesh()
    failures = []
    for dtype in ("float32", "bfloat16", "float64", "int32"):
        rng = np.random.default_rng(1)
        x = weft.asarray((rng.normal(size=(1, 1000)) * 9).astype(np.float32)).astype(dtype).realize()
        for name, (f, wanted) in cases(x).items():
            compiled = weft.jit(f)
            try:
                runs = [compiled(x).astype("float64").numpy() for _ in range(5)]
            except Exception:
                traceback.print_exc(file=sys.stdout)
                failures.append(f"{name} {dtype}")
                continue
            right = all(np.array_equal(run, wanted) for run in runs)
            asked = [c.spec.name for c in executable(compiled).commands.flat if type(c).__name__ == "Collective"]
            say(f"   {name}, {dtype}: {'right' if right else 'WRONG'} ({', '.join(asked)})")
            if not right:
                failures.append(f"{name} {dtype}")
    return {"failed": ", ".join(failures)} if failures else {"right": True}


def cases(x: weft.Tensor) -> dict[str, tuple[Callable[[Any], Any], np.ndarray]]:
    """Functions of a tensor of shape (1, n), and what they give."""
    same = x.astype("float64").numpy()
    return {
        "all_reduce": (lambda x: parallel.all_reduce(x, "data"), same),
        "all_reduce, max": (lambda x: parallel.all_reduce(x, "data", "max"), same),
        "all_reduce of a product": (lambda x: parallel.all_reduce(x + x, "data") - x, same),
        "all_gather": (lambda x: parallel.all_gather(x, "data"), same[None]),
        "reduce_scatter": (lambda x: parallel.reduce_scatter(x, "data"), same[0]),
        "all_to_all": (lambda x: parallel.all_to_all(x, "data"), same),
        "broadcast": (lambda x: parallel.broadcast(x, "data"), same),
        "shift by 0": (lambda x: parallel.shift(x, "data", 0), same),
        "shift by 1": (lambda x: parallel.shift(x, "data", 1), np.zeros_like(same)),
        "axis_index": (lambda x: x + parallel.axis_index("data").astype(x.dtype), same),
    }


def single_mesh() -> parallel.Mesh:
    """A mesh of this process, whose collectives stay in programs."""
    mesh = parallel.Mesh(data=1)
    mesh.keeps_single = True
    return mesh


def executable(compiled: Any) -> Any:
    """What a compiled function runs."""
    return next(reversed(compiled.programs.latest.values())).executable


# --- overlap -----------------------------------------------------------------------------------------------------------------------


def overlap(dry: bool) -> dict[str, float]:
    """A large all_gather, of one rank a copy, beside products that do not need it: all together, and each alone."""
    single_mesh()
    side, products, size = (16, 2, 1 << 10) if dry else (4096, 8, 1 << 28)
    w = (
        weft.asarray(np.random.default_rng(0).normal(size=(side, side)).astype(np.float32) / side)
        .astype("bfloat16")
        .realize()
    )
    x = weft.zeros((size,), dtype="float32").realize()

    def multiplied(w: Any) -> Any:
        y = w
        for _ in range(products):
            y = y @ w
        return y

    def gathered(x: Any) -> Any:
        return parallel.all_gather(x + 1.0, "data")[0, :16]

    both = weft.jit(lambda w, x: (multiplied(w), gathered(x)))
    alone = weft.jit(multiplied), weft.jit(gathered)
    calls: dict[str, Callable[[], Any]] = {
        "both": lambda: both(w, x),
        "products": lambda: alone[0](w),
        "all_gather": lambda: alone[1](x),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(WARM):
            call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(timed(call, 1 if dry else 20))
    found = {name: 1e3 * statistics.median(t) for name, t in times.items()}
    say("   commands: " + " ".join(type(c).__name__ for c in executable(both).commands))
    say("   milliseconds: " + ", ".join(f"{name} {t:.3f}" for name, t in found.items()))
    hidden = (found["products"] + found["all_gather"] - found["both"]) / min(found["products"], found["all_gather"])
    say(f"   {100 * hidden:.0f} % of the shorter one is hidden behind the longer one")
    return {**found, "hidden": hidden}


# --- training ----------------------------------------------------------------------------------------------------------------------


class Trained:
    """A network and its compiled training step."""

    def __init__(self, network: Network, axis: str | None) -> None:
        weft.seed(0)
        self.model = network.build()
        x, y = network.batch()
        self.model(weft.asarray(x[:1]))
        self.optimizer = optim.sgd(self.model, rate=1e-3, momentum=0.9, axis=axis)
        self.x, self.y = weft.asarray(x).realize(), weft.asarray(y).realize()
        self.step = weft.jit(self._step, precision=network.precision)

    def _step(self, x: Any, y: Any) -> Any:
        with self.optimizer.in_micro_batch(), statistics_of_ranks(self.optimizer.statistics_axis):
            loss = weft.cross_entropy(self.model(x), y)
        self.optimizer.minimize(loss)
        return loss

    def call(self) -> Any:
        return self.step(self.x, self.y)


def training(network: Network, dry: bool) -> dict[str, Any]:
    """Times of a step in the three ways, and what the host does meanwhile."""
    single_mesh()
    ways = {"plain": Trained(network, None), "split": Trained(network, "data"), "nccl": Trained(network, "data")}
    losses = {}
    for name, one in ways.items():
        say(f"   compiling {name}")
        first = one.call().item()
        if name == "split":
            without_nccl(executable(one.step))
        for _ in range(WARM - 1):
            one.call()
        losses[name] = (first, one.call().item())
        kinds = Counter(type(c).__name__ for c in executable(one.step).commands.flat)
        say(f"   {name}: losses {first:.6f} ... {losses[name][1]:.6f}; {dict(kinds)}")
    steps = 5 if dry else 50
    calls = host_calls(ways["nccl"], steps)
    say(f"   calls of the driver in {steps} steps: {calls}")
    times = rounds(ways, dry)
    found = {name: 1e3 * statistics.median(t) for name, t in times.items()}
    ratios = {
        other: statistics.median(a / b for a, b in zip(times["nccl"], times[other], strict=True))
        for other in ("split", "plain")
    }
    percent = {other: 100 * (ratio - 1) for other, ratio in ratios.items()}
    say(
        "   milliseconds a step: "
        + ", ".join(f"{name} {t:.4f} (least {1e3 * min(times[name]):.4f})" for name, t in found.items())
    )
    say(
        f"   NCCL costs {percent['split']:+.2f} % (limit {LIMIT} %); data parallel {percent['plain']:+.2f} % against the plain step"
    )
    result: dict[str, Any] = {"milliseconds": found, "percent": percent, "host calls": calls, "losses": losses}
    problems = []
    if percent["split"] >= LIMIT and not dry:
        problems.append(f"NCCL costs {percent['split']:.2f} %")
    if any(count for name, count in calls.items() if name.startswith(WAITS)):
        problems.append(f"the host waits in the step: {calls}")
    if calls.get("cuGraphLaunch") != steps:
        problems.append(f"a step is not one launch of a recorded graph: {calls}")
    if losses["nccl"] != losses["split"]:
        problems.append(f"losses differ: {losses}")
    return {**result, "failed": "; ".join(problems)} if problems else result


def rounds(ways: dict[str, Trained], dry: bool) -> dict[str, list[float]]:
    """The time of a step in each way: all in turns, every other round in the opposite order."""
    once = timed(ways["plain"].call, 3)
    steps = 1 if dry else max(10, int(TURN_SECONDS / max(once, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(2 if dry else ROUNDS):
        for name in list(ways) if number % 2 else reversed(list(ways)):
            times[name].append(timed(ways[name].call, steps))
    return times


def timed(call: Callable[[], Any], steps: int) -> float:
    """Seconds of a call, of so many back to back."""
    device = weft.device("cuda")
    call()
    device.wait()
    start = time.perf_counter()
    for _ in range(steps):
        call()
    device.wait()
    return (time.perf_counter() - start) / steps


class _NoNccl:
    """Instead of NCCL: what one process gets is what it gives."""

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu

    def run(self, spec: Any, places: list[int], beside: bool) -> None:
        if spec.name == "axis_index":
            self.gpu.clear(places[0], 8)
            return
        sizes = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "uint8": 1}
        half = len(places) // 2
        for x, y, count in zip(places[:half], places[half:], spec.counts, strict=True):
            if x != y and count:
                self.gpu.copy(y, x, count * sizes[spec.dtype])


def without_nccl(made: Any) -> None:
    """Let a program run without NCCL, in one stream; nothing of it has been recorded yet."""
    made.runner.communicators = _NoNccl(made.gpu)
    run = made.runner.run
    made.runner.run = lambda commands, frame, wanted=None: run(commands, frame, wanted, in_order=True)


# --- what the host does ----------------------------------------------------------------------------------------------------------


def host_calls(one: Trained, steps: int) -> dict[str, int]:
    """The calls of the driver, by name, in some steps after which nobody waits."""
    device: Any = weft.device("cuda")
    gpu = device.gpu
    for _ in range(4):  # results have two sets of buffers, and each has a graph
        one.call()
    weft.device("cuda").wait()
    if not hasattr(gpu, "_api"):  # the fake one of the tests
        before = gpu.replayed, gpu.downloads
        for _ in range(steps):
            one.call()
        return {"cuGraphLaunch": gpu.replayed - before[0], "cuMemcpyDtoH": gpu.downloads - before[1]}
    counting = _Counting(gpu._api)
    gpu._api = counting
    try:
        for _ in range(steps):
            one.call()
    finally:
        gpu._api = counting.api
    weft.device("cuda").wait()
    return dict(counting.calls)


class _Counting:
    """The driver's bindings, which note what is called."""

    def __init__(self, api: Any) -> None:
        self.api, self.calls = api, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.api, name)
        if not name.startswith("cu") or not callable(found) or isinstance(found, type):
            return found

        def counted(*args: Any) -> Any:
            self.calls[name] += 1
            return found(*args)

        return counted


# --- dry runs ----------------------------------------------------------------------------------------------------------------------


@contextmanager
def fake_gpu() -> Iterator[None]:
    """The GPU of the tests, made of the host's memory, and their NCCL."""
    os.environ["TRITON_INTERPRET"] = "1"
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    with import_module("fake_nccl").installed():
        yield


if __name__ == "__main__":
    main()
