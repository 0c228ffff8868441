"""Verbs that measure a network on this machine: explain profiles its kernels, bench measures its speed."""

from __future__ import annotations

import inspect
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

from .. import zoo
from ..compiler.cpu.target import host
from ..errors import UserError
from ..explain import Explanation
from ..hints import nearest
from ..jobs.device import on
from ..jobs.find import AMBIGUOUS, find_run, run_folders
from ..jobs.job import Job as Training
from ..jobs.networks import dataset_text, full_name, side
from ..jobs.profiles.subject import find_subject
from ..jobs.schema import Setting, flag, number, one_of, sizes, whole
from ..jobs.settings import DEVICE, SETTINGS
from ..knobs import knobs
from ..nn.summary import macs
from ..records import dataclass
from ..report.text_format import counted
from ..runtime import Device
from ..runtime import device as find_device
from ..runtime.native import thread_count
from ..tensor import Tensor
from ..tracing.jit import Jit
from ..zoo.catalogue import ALIASES
from .arguments import Words, read
from .table import as_json, table

SIDE = 28  # of synthetic images, if the network has no size of its own
FEWEST = 3  # runs that are timed
WARM = 4  # warm-up calls
ROUND = 0.02  # seconds of consecutive calls, on a GPU
PRECISIONS = ("float32", "float16", "bfloat16")


def _counts(text: str) -> tuple[int, ...]:
    """1,16,64"""
    found = tuple(int(part) for part in text.split(","))
    if min(found) < 1:
        raise ValueError("it must be 1 or more, or several such as 1,16,64")
    return found


def _whats(text: str) -> tuple[str, ...]:
    """train,infer"""
    return tuple(map(one_of("train", "infer"), text.split(",")))


def _count(text: str) -> int:
    if whole(text) < 1:
        raise ValueError("it must be 1 or more")
    return whole(text)


_SHAPE = {
    "size": Setting(sizes, None, "image size, 28 or 28x32; default: the network's own, the run's, or 28"),
    "channels": Setting(_count, None, "image channels; default: the run's, or 1"),
    "classes": Setting(_count, None, "number of classes; default: the run's, or 10"),
    "precision": Setting(str, None, "float16 or bfloat16 for mixed precision", choices=PRECISIONS),
    "device": DEVICE,
    "threads": Setting(_count, None, "number of threads; default: all cores"),
    "json": Setting(flag, False, "print JSON, for programs"),
}


def explain(words: Sequence[str]) -> None:
    """Profile a network kernel by kernel: weft explain lenet batch=64 what=train.

    A training step is forward, backward and SGD with momentum. A run stands for its network and its data.
    """
    known = {
        "batch": Setting(_count, 64, "examples a step"),
        "what": Setting(str, "train", "train or infer", choices=("train", "infer")),
        "rows": Setting(_count, 20, "number of kernels to show, the slowest ones"),
        "sort": Setting(str, "order", "order: as they run; time: the slowest first", choices=("order", "time")),
        **_SHAPE,
    }
    given = read("explain", words, known, 1)
    job = _job("explain", given)
    with on(given["device"]), knobs.set(threads=given["threads"] or knobs.threads):
        step, args = _step(job, given["batch"], given["what"])
        found: Explanation = step.explain(*args)
    if given["json"]:
        kernels = json.loads(found.to_json())
        print(
            as_json({**asdict(job), "batch": given["batch"], "what": given["what"], **kernels, "bound": bound(found)})
        )
        return
    print(f"{job}, {given['what']}, batch {given['batch']}\n")
    print(found.text(given["rows"], by_time=given["sort"] == "time", sources=False))
    print(f"\n{bound(found)}")


def bench(words: Sequence[str]) -> None:
    """Benchmark a network on this machine: weft bench lenet batch=1,16,64 what=train,infer.

    A training step is forward, backward and SGD with momentum. A run stands for its network and its data.
    """
    known = {
        "batch": Setting(_counts, (1, 16, 64), "examples a step, one number or several"),
        "what": Setting(_whats, ("train", "infer"), "train, infer or both"),
        "seconds": Setting(number, 2.0, "seconds to measure each of them"),
        **_SHAPE,
    }
    given = read("bench", words, known, 1)
    job = _job("bench", given)
    with on(given["device"]) as device, knobs.set(threads=given["threads"] or knobs.threads):
        machine, named = _machine(device)
        found = [_timed(job, batch, what, given["seconds"]) for what in given["what"] for batch in given["batch"]]
    if given["json"]:
        print(as_json({**asdict(job), **machine, "rows": [asdict(one) for one in found]}))
        return
    titles = ["what", "batch", "ms", "images/s", "GFLOP/s", "memory", "runs"]
    print(f"{job}, {named}\n")
    print(table(titles, [one.cells() for one in found], left=("what",)))


# --- what is measured -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BenchCase:
    """A network and the images it is given."""

    network: str
    shape: tuple[int, int, int]
    classes: int
    precision: str

    def __str__(self) -> str:
        return f"{self.network} for {'x'.join(map(str, self.shape))} images, {counted(self.classes, 'class', 'classes')}, {self.precision}"


def _machine(device: Device) -> tuple[dict[str, Any], str]:
    """The device that is measured on, as facts and as text."""
    if _is_gpu(device):
        return {"device": device.name, "gpu": device.about()}, device.about()
    cpu, threads = host().cpu, thread_count()
    return {"device": device.name, "cpu": cpu, "threads": threads}, f"{cpu}, {counted(threads, 'thread')}"


def _is_gpu(device: Device) -> bool:
    return device.free_memory() is not None


def _job(verb: str, given: Words) -> BenchCase:
    if not given.plain:
        raise UserError(
            f"weft {verb}", f"a network or a run is required, got none: weft {verb} lenet, or weft {verb} RUN."
        )
    name, channels, size, classes = given.plain[0], 1, None, 10
    if name not in (*zoo.names(), *ALIASES):
        name, channels, size, classes = _of_run(verb, _run(verb, name), given)
    name = full_name(name)
    if "channels" not in inspect.signature(zoo.find(name)).parameters:
        raise UserError(
            f"weft {verb}", f"{name} takes no images, and {verb} measures networks for images. Use weft {verb} lenet."
        )
    own = side(name) or SIDE
    height, width = given["size"] or size or (own, own)
    shape = given["channels"] or channels, height, width
    return BenchCase(name, shape, given["classes"] or classes, given["precision"] or "float32")


def _run(verb: str, text: str) -> Path:
    """The run of this name; an unknown name is an error with the nearest run or network."""
    try:
        return find_run(text)
    except UserError as error:
        if AMBIGUOUS in error.message or Path(text).exists():
            raise
    known = [*zoo.names(), *ALIASES, *(folder.name for folder in run_folders("runs"))]
    raise UserError(f"weft {verb}", f"{text!r} is neither a network nor a run. {nearest(text, known)}")


def _of_run(verb: str, folder: Path, given: Words) -> tuple[str, int, Any, int]:
    """The network of a run, the channels and the size of its images, and the number of its classes."""
    told = read(verb, [f"cfg={folder / 'args.yaml'}"], SETTINGS, 0)
    if told["model"] and given["size"] and given["channels"] and given["classes"]:  # the data is not opened
        return told["model"], given["channels"], given["size"], given["classes"]
    if told["data"] is None:
        raise UserError(f"weft {verb}", f"{folder / 'args.yaml'} names no data. Use weft {verb} NETWORK.")
    job = Training(told.settings)
    if not job.is_image_source:
        raise UserError(
            f"weft {verb}", f"the data of {folder} are no images but {dataset_text(job.train)}. Use weft {verb} lenet."
        )
    outputs = len(job.train.classes) or prod(job.train.labels.shape[1:])
    return job.name, job.train.shape[0], job.size(), outputs


def _step(job: BenchCase, batch: int, what: str) -> tuple[Jit[Any], tuple[Tensor, ...]]:
    """A compiled function and its arguments: synthetic images and labels."""
    channels, *size = job.shape
    subject = find_subject(
        job.network, size=(size[0], size[1]), channels=channels, classes=job.classes, precision=job.precision
    )
    return subject.step(batch, what)


# --- what is found --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timed:
    """One row of a benchmark: the median time of its runs, and derived figures."""

    what: str
    batch: int
    seconds: float
    images_per_second: float
    gflops: float  # of matrix products and convolutions alone
    nbytes: int  # of memory, as planned
    runs: int

    def cells(self) -> list[str]:
        ms, size = f"{1e3 * self.seconds:.3f}", f"{self.nbytes / 2**20:,.1f} MiB"
        speed = f"{self.images_per_second:,.{0 if self.images_per_second >= 100 else 1}f}"
        return [self.what, str(self.batch), ms, speed, f"{self.gflops:.1f}", size, str(self.runs)]


def _timed(job: BenchCase, batch: int, what: str, seconds: float) -> Timed:
    step, args = _step(job, batch, what)
    _seconds(step, args, WARM)  # compiles, touches memory, starts threads, captures GPU graphs
    calls = max(1, round(ROUND / _seconds(step, args, 1))) if _is_gpu(find_device()) else 1
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < FEWEST or time.perf_counter() < end:
        times.append(_seconds(step, args, calls))
    median = statistics.median(times)
    flops = 2 * macs(step.lower(*args).nodes)
    return Timed(
        what, batch, median, batch / median, flops / median / 1e9, step.memory(*args).total, calls * len(times)
    )


def _seconds(step: Jit[Any], args: Sequence[Tensor], calls: int) -> float:
    """The time of a call, averaged over consecutive calls, which a GPU queues."""
    start = time.perf_counter()
    for _ in range(calls):
        step(*args)
    find_device().wait()
    return (time.perf_counter() - start) / calls


def bound(found: Explanation) -> str:
    """The slowest kernel, in a sentence, and how much faster it could be."""
    if not found.rows:
        return "there is nothing to compute."
    row = max(found.rows, key=lambda one: one.seconds)
    traffic = row.nbytes / found.roof.bandwidth
    arithmetic = row.roof * row.seconds > 1.001 * traffic  # compute bound
    limit, part = ("Arithmetic", "arithmetic") if arithmetic else ("Traffic to memory", "memory")
    spared = " (it gets by with fewer operations than are counted)" if row.roof > 1 else ""
    return (
        f"Kernel {row.kernel}, {row.name}, is the slowest: {row.share:.0%} of the time. {limit} bounds it; "
        f"it reaches {row.roof:.0%} of what this machine's {part} allows{spared}."
    )
