"""The time to the first step: everything between a loaded library with an open device and the first loss on the host.

Each measurement is a process of its own (`python gpu.py --first NAME CONTESTANT`). Cold means that no code is kept on disk, warm
that a process before has compiled the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_cases
import gpu_jax
import gpu_torch
import gpu_weft
import numpy as np
from cases import peers
from gpu_measure import Place, Row

GROUP = "first step"
NAMES = [n.name for n in gpu_cases.TRAINED if "float32" in n.name or n.precision]


def names() -> list[str]:
    return NAMES if Place.is_gpu() else NAMES[:1]


# --- in the process of its own --------------------------------------------------------------------------------------------------


def measure(name: str, contestant: str) -> dict[str, float]:
    network = next(n for n in gpu_cases.TRAINED if n.name == name)
    case = gpu_cases.training(replace(network, late=False))  # with all contestants
    library = {"weft": gpu_weft, "torch": gpu_torch, "jax": gpu_jax}[contestant.split()[0]]
    library.settle(network.tf32)
    _touch(library)
    _ = network.task().fresh  # the parameters are the same for all, and made on the host
    start = time.perf_counter()
    made = case.contestants[contestant]()
    made.call()
    made.wait()
    return {"seconds": time.perf_counter() - start}


def _touch(library: Any) -> None:
    """Open the device and do something small, so that only the work itself is measured."""
    few = library.tensor(np.ones(8, np.float32), (2, 4), "float32")
    library.function(lambda x: x + 1.0, [few], lambda y: y).values()


# --- in the process that asks ---------------------------------------------------------------------------------------------------


def row(name: str, wanted: Callable[[str], bool], seconds_left: Callable[[], float], dry: bool) -> Row:
    found = Row(GROUP, name, rounds=1)
    with tempfile.TemporaryDirectory() as folder:
        caches = {"WEFT_CACHE": f"{folder}/weft", "TRITON_CACHE_DIR": f"{folder}/triton"}
        for label in ("weft cold", "weft warm"):
            _ask(found, label, name, "weft", caches, seconds_left(), dry)
        caches = {"JAX_ENABLE_COMPILATION_CACHE": "false", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch", **caches}
        for contestant in ("torch", "jax", "torch compiled"):
            if wanted(contestant) and peers.find(contestant.split()[0]) is not None:
                _ask(found, f"{contestant} cold", name, contestant, caches, seconds_left(), dry)
    _rate(found)
    return found


def _rate(found: Row) -> None:
    """Compared with those that compile too."""
    compiled = {n: s for n, s in found.seconds.items() if n in ("jax cold", "torch compiled cold")}
    if "weft cold" in found.seconds:
        found.best_weft = "weft cold"
        found.ratios = {n: s / found.seconds["weft cold"] for n, s in compiled.items()}
        if compiled:
            found.best_peer = min(compiled, key=compiled.__getitem__)
            found.ratio = found.ratios[found.best_peer]


def _ask(found: Row, label: str, name: str, contestant: str, caches: dict[str, str], seconds: float, dry: bool) -> None:
    entry = str(Path(__file__).with_name("gpu.py"))
    command: Sequence[str] = [sys.executable, entry, "--first", name, contestant, *(["--dry"] if dry else [])]
    environment = {**os.environ, **caches}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=max(1.0, seconds)
        )
    except subprocess.TimeoutExpired:
        found.failures[label] = "not done when the time was over"
        return
    if done.returncode:
        found.failures[label] = (done.stderr.strip().splitlines() or ["it died"])[-1][:300]
    else:
        found.seconds[label] = json.loads(done.stdout.strip().splitlines()[-1])["seconds"]
