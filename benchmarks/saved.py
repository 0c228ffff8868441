"""Saved programs: the time to load one, beside reading its file, and the time from the start of a process to the first prediction.

    python benchmarks/saved.py                 LeNet and ResNet-50
    python benchmarks/saved.py --only lenet5   one network
    python benchmarks/saved.py --runs 30       the least of so many runs; on a machine that others use too, many

Loading is measured in a process that has imported weft, with the file in the system's cache. The first prediction (batch 1) is a
process of its own, from its start to the result: Python, all imports, loading, the prediction. It is measured with `weft.jit` and
without, with an empty compile cache, with a warm one, and with an empty one for a file with compiled code inside. Shown are the least
wall time and the least CPU time of all threads.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import weft
from weft import knobs, zoo
from weft.nn.module import Module

NETWORKS = {"lenet5": (1, 28, 28), "resnet50": (3, 224, 224)}
_PREDICT = """
import sys, time, numpy, weft
program = weft.load(sys.argv[1]).eval()
call = weft.jit(program) if sys.argv[3] == "jit" else program
call(numpy.zeros((1, *map(int, sys.argv[2].split(","))), numpy.float32)).numpy()
print(time.time(), time.process_time())
"""
Times = tuple[float, float]  # wall and CPU, seconds


def least(measure: Callable[[], Times], runs: int) -> Times:
    found = [measure() for _ in range(runs)]
    return min(wall for wall, _ in found), min(cpu for _, cpu in found)


def call_time(function: Callable[[], object]) -> Times:
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - cpu


def process_time(command: list[str], cache: Path) -> Times:
    """The time from the start of a process to the moment whose times it prints."""
    start = time.time()
    done = subprocess.run(command, check=True, capture_output=True, env={**os.environ, "WEFT_CACHE": str(cache)})
    end, cpu = map(float, done.stdout.split())
    return end - start, cpu


def row(name: str, what: str, times: Times, note: str = "") -> None:
    print(f"| {name} | {what} | {1e3 * times[0]:.1f} | {1e3 * times[1]:.1f} | {note} |", flush=True)


def loading(name: str, file: Path, runs: int) -> None:
    read = least(lambda: call_time(file.read_bytes), runs)
    loaded = least(lambda: call_time(lambda: weft.load(file)), runs)
    row(name, "read the file", read, f"{file.stat().st_size / 1e6:.1f} MB")
    row(name, "weft.load", loaded, f"{loaded[0] / read[0]:.2f} times reading it")


def first_predictions(name: str, plain: Path, compiled: Path, folder: Path, runs: int) -> None:
    """Each with the file and the cache that it begins with: one with the key only, that is nothing compiled, or a warm one."""
    key, warm = folder / "cache" / "signing.key", folder / "warm"

    def measure(file: Path, way: str, cache: Path | None) -> Times:
        used = cache or Path(tempfile.mkdtemp(dir=folder))
        if cache is None:
            shutil.copy(key, used)
        shape = ",".join(map(str, NETWORKS[name]))
        return process_time([sys.executable, "-c", _PREDICT, str(file), shape, way], used)

    for way in ("jit", "plain"):
        call = "weft.jit(program)(x)" if way == "jit" else "program(x)"
        row(name, f"{call}, cold cache", least(partial(measure, plain, way, None), min(runs, 3)))
        measure(plain, way, warm)
        row(name, f"{call}, warm cache", least(partial(measure, plain, way, warm), runs))
        row(name, f"{call}, compiled inside", least(partial(measure, compiled, way, None), runs))


def prepared(name: str, folder: Path) -> tuple[Path, Path]:
    """The network saved without and with compiled code."""
    network: Module = getattr(zoo, name)()
    example = np.zeros((1, *NETWORKS[name]), np.float32)
    plain, compiled = folder / f"{name}.weft", folder / f"{name}-compiled.weft"
    with knobs.set(cache=str(folder / "cache")):
        weft.save(plain, network.eval(), example, train=False)
        weft.save(compiled, network.eval(), example, train=False, compiled="host")
    return plain, compiled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--runs", type=int, default=15)
    given = parser.parse_args()
    print("| network | what | wall, ms | CPU, ms | |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "warm").mkdir()
        for code in ("", "import numpy", "import weft"):
            command = [sys.executable, "-c", f"import time\n{code}\nprint(time.time(), time.process_time())"]
            row("", code or "start Python", least(partial(process_time, command, folder / "warm"), given.runs))
        for name in given.only:
            plain, compiled = prepared(name, folder)
            loading(name, plain, given.runs)
            first_predictions(name, plain, compiled, folder, given.runs)


if __name__ == "__main__":
    main()
