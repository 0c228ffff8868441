"""Networks as C libraries: bytes of code, weights and workspace for each target, and the time of a run beside the same network in Python.

    python benchmarks/c_library.py                             LeNet-5, MobileNetV2 and ResNet-18 on every target that this CPU runs
    python benchmarks/c_library.py --only LeNet-5 --all                one network, and the bytes for targets that it does not run, too

Each library is built with the C compiler of the system, reads the same input and must give the results of the jitted network: the
column "difference" is the largest one, relative to the largest result. Both run on one thread, batch 1, in processes of their own; shown is the least time of `--runs` runs.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import weft
from weft import nn, zoo
from weft.compiler.cpu.target import TARGETS

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LeNet-5": (partial(zoo.lenet5_classic, activation="relu", pooling="max"), (1, 28, 28)),
    "MobileNetV2": (zoo.mobilenet_v2, (3, 224, 224)),
    "ResNet-18": (zoo.resnet18, (3, 224, 224)),
}
FLAGS = {"x86-64-v2": "sse4_2", "x86-64-v3": "avx2", "x86-64-v4": "avx512bw"}  # of /proc/cpuinfo
TIMER = """
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "net.h"

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e6 + t.tv_nsec * 1e-3; }

int main(int count, char **words) {
    static float input[NET_INPUT_SIZE], output[NET_OUTPUT_SIZE];
    void *workspace = aligned_alloc(NET_ALIGNMENT, (NET_WORKSPACE_BYTES + NET_ALIGNMENT - 1) / NET_ALIGNMENT * NET_ALIGNMENT);
    FILE *file = fopen(words[1], "rb");
    double least = 1e30;
    if (count != 4 || !file || !workspace || fread(input, sizeof *input, NET_INPUT_SIZE, file) != NET_INPUT_SIZE) return 1;
    for (int run = atoi(words[3]); run > 0; run--) {
        double start = now();
        if (net_run(input, output, workspace)) return 2;
        double taken = now() - start;
        if (taken < least) least = taken;
    }
    file = fopen(words[2], "wb");
    if (!file || fwrite(output, sizeof *output, NET_OUTPUT_SIZE, file) != NET_OUTPUT_SIZE || fclose(file)) return 3;
    printf("%f\\n", least);
    return 0;
}
"""


def runs_here(target: str) -> bool:
    """Whether this CPU runs code for a target."""
    machine, facts = platform.machine(), Path("/proc/cpuinfo")
    if target in FLAGS:
        return machine == "x86_64" and facts.exists() and FLAGS[target] in facts.read_text(encoding="utf-8")
    return target in ("host", machine)


def in_process(network: nn.Module, x: weft.Tensor, runs: int) -> tuple[np.ndarray, float]:
    """The results of the jitted network, and the least time of a run in microseconds."""
    call = weft.jit(network)
    result, least = call(x).numpy(), float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        call(x).numpy()
        least = min(least, time.perf_counter() - start)
    return result, 1e6 * least


def in_c(folder: Path, x: weft.Tensor, runs: int) -> tuple[np.ndarray, float]:
    """The results of the library in a folder, and the least time of a run in microseconds."""
    (folder / "timer.c").write_text(TIMER, encoding="utf-8")
    subprocess.run(["cc", "-O2", "timer.c", "libnet.a", "-lm", "-pthread", "-o", "timer"], cwd=folder, check=True)
    x.numpy().tofile(folder / "x.raw")
    done = subprocess.run(["./timer", "x.raw", "y.raw", str(runs)], cwd=folder, check=True, capture_output=True)
    return np.fromfile(folder / "y.raw", np.float32), float(done.stdout)


def measure(name: str, targets: list[str], runs: int | None) -> None:
    weft.seed(0)
    make, shape = NETWORKS[name]
    network, x = make().eval(), weft.random.normal((1, *shape))
    count = runs or (2000 if name == "LeNet-5" else 30)
    expected, least = in_process(network, x, count)
    print(f"| {name} | in Python | | | | {least:,.0f} | |", flush=True)
    for target in targets:
        with tempfile.TemporaryDirectory() as folder:
            library = weft.export_c(Path(folder) / "c", network, x, target=target)
            sizes = f"{library.summary.code:,} | {len(library.weights):,} | {library.workspace:,}"
            timed = ""
            if runs_here(target):
                found, took = in_c(Path(folder) / "c", x, count)
                difference = np.abs(found - expected.ravel()).max() / np.abs(expected).max()
                timed = f"{took:,.0f} | {difference:.1e}" if difference else f"{took:,.0f} | same bits"
        print(f"| {name} | {target} | {sizes} | {timed or ' | '} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NETWORKS)
    parser.add_argument("--all", action="store_true", help="targets that this CPU does not run as well")
    parser.add_argument("--runs", type=int, help="2000 for LeNet-5, else 30")
    given = parser.parse_args()
    targets = [target for target in ("host", *TARGETS) if given.all or runs_here(target)]
    print("| network | target | code, bytes | weights, bytes | workspace, bytes | one run, us | difference |")
    print("|---|---|---:|---:|---:|---:|---|")
    with weft.knobs.set(threads=1):
        for name in [given.only] if given.only else NETWORKS:
            measure(name, targets, given.runs)


if __name__ == "__main__":
    main()
