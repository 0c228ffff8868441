"""The libraries weft is measured against, each loaded when it is first asked for. One that is missing is left out.

All contestants share the same cores: the process is tied to them before anything is loaded, since most libraries look
once, at their start, how many there are.
"""

from __future__ import annotations

import importlib
import os
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

NAMES = ("torch", "jax", "onnxruntime", "onnx")
missing: dict[str, str] = {}  # name -> why


def settle(threads: int) -> int:
    """Tie this process to so many cores (0: all it may use), and tell all libraries; how many there are."""
    cores = _cores(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    count = len(cores)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "WEFT_THREADS"):
        os.environ[name] = str(count)
    os.environ["JAX_PLATFORMS"] = "cpu"
    if count == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    return count


def _cores(threads: int) -> list[int]:
    """The cores to run on. Fewer than all are taken one from each pair that shares an execution unit, while they last."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    if not 0 < threads < len(usable):
        return usable
    first: list[int] = []
    second: list[int] = []
    seen = set()
    for core in usable:
        siblings = _siblings(core)
        (second if siblings in seen else first).append(core)
        seen.add(siblings)
    return (first + second)[:threads]


def _siblings(core: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(core)


@cache
def find(name: str) -> Any:
    """A library, or None if it cannot be loaded."""
    try:
        module: Any = importlib.import_module(name)
    except Exception as error:  # a broken library must not stop the others
        missing[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        return None
    if name == "torch":
        module.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return module


def need(name: str) -> Any:
    """A library that is known to be there."""
    module = find(name)
    if module is None:
        raise RuntimeError(f"{name} is not there: {missing[name]}")
    return module


def versions() -> dict[str, str]:
    """The versions of all that take part."""
    found = {}
    for name in ("weft", "numpy", "llvmlite", "jaxlib", *NAMES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
