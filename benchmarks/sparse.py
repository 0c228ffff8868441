"""Sparse against dense products on this CPU: the linear layers of AlexNet and VGG-16 at the densities of Deep Compression (Han et al. 2016).

    python -m benchmarks.sparse [threads=1] [batch=1] [seconds=1]

Weights are pruned at random to the paper's densities and shared by 31 values (5 bits), so that all forms compute the same product: dense,
sparse with float32 values (6 bytes a kept weight), sparse with codes (3 bytes), and `scipy.sparse` where that is installed. Contestants take turns;
a time is the least of all turns, CPU time on one thread and wall time on several. "of the roof" is the least time in which this machine reads the bytes of the
weight, over the time: below 100 % something other than memory bounds it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import weft
from weft.compiler.cpu.roofline import roof
from weft.compress.sparse_format import SparseArrays, sparse_codes, sparse_values

LAYERS = [  # name, inputs, outputs, density
    ("AlexNet fc6", 9216, 4096, 0.09), ("AlexNet fc7", 4096, 4096, 0.09), ("AlexNet fc8", 4096, 1000, 0.25),
    ("VGG-16 fc6", 25088, 4096, 0.04), ("VGG-16 fc7", 4096, 4096, 0.04), ("VGG-16 fc8", 4096, 1000, 0.23),
]  # fmt: skip
BITS = 5
FORMS = ("dense", "values", "codes", "scipy")


def contestants(inputs: int, outputs: int, density: float, batch: int) -> dict[str, tuple[Callable[[], Any], int]]:
    """The same product in every form, with the bytes of its weight."""
    rng = np.random.default_rng(inputs)
    book = rng.normal(size=(1 << BITS) - 1).astype(np.float32)
    kept = rng.random((outputs, inputs), dtype=np.float32) < density
    codes = np.where(kept, rng.integers(1, 1 << BITS, kept.shape, np.uint8), np.uint8(0))
    weight = np.concatenate([np.zeros(1, np.float32), book])[codes]
    x = rng.normal(size=(batch, inputs)).astype(np.float32)
    given, held = weft.asarray(x), weft.asarray(weight)
    dense = weft.jit(lambda x: weft.matmul(x, weft.transpose(held)))
    found: dict[str, tuple[Callable[[], Any], int]] = {"dense": (lambda: dense(given).numpy(), weight.nbytes)}
    for name, arrays in (("values", sparse_values(weight)), ("codes", sparse_codes(book, codes))):
        found[name] = (product(arrays, given), arrays.nbytes)
    if importlib.util.find_spec("scipy") is not None:
        matrix = importlib.import_module("scipy.sparse").csr_matrix(weight)
        size = matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
        found["scipy"] = (lambda: (matrix @ x.T).T, size)
    expected = x.astype(np.float64) @ weight.T.astype(np.float64)
    for name, (call, _) in found.items():
        error = float(np.abs(call() - expected).max() / np.abs(expected).max())
        assert error < 1e-5, f"{name} differs by {error}"
    return found


def product(arrays: SparseArrays, x: Any) -> Callable[[], Any]:
    held = [weft.asarray(array) for array in arrays.tensors]
    compiled = weft.jit(lambda x: weft.sparse_matmul(x, *held, block=arrays.block))
    return lambda: compiled(x).numpy()


def least(calls: dict[str, Callable[[], Any]], clock: Callable[[], float], seconds: float) -> dict[str, float]:
    """The least time of each, in turns, each turn several calls: weights stay in the caches that hold them."""
    found = dict.fromkeys(calls, float("inf"))
    end, turns = clock() + seconds * len(calls), 0
    while clock() < end or turns < 3:
        turns += 1
        for name, call in calls.items():
            call()
            for _ in range(3):
                begin = clock()
                call()
                found[name] = min(found[name], clock() - begin)
    return found


def main(arguments: list[str]) -> None:
    settings = {"threads": 1, "batch": 1, "seconds": 1} | {k: int(v) for k, v in (a.split("=") for a in arguments)}
    threads, batch = settings["threads"], settings["batch"]
    clock = time.process_time if threads == 1 else time.perf_counter
    limit = roof(threads)
    print(f"{threads} thread{'s' * (threads > 1)}, batch {batch}; {limit}")
    print(f"{'':14}{'':>8}" + "".join(f"{name:>10}{'MB':>8}{'roof':>6}{'ratio':>7}" for name in FORMS))
    ratios: dict[str, list[float]] = {name: [] for name in FORMS}
    with weft.knobs.set(threads=threads):
        for name, inputs, outputs, density in LAYERS:
            found = contestants(inputs, outputs, density, batch)
            times = least({form: call for form, (call, _) in found.items()}, clock, settings["seconds"])
            line = f"{name:14}{100 * density:6.0f} %"
            for form, seconds in times.items():
                ratios[form].append(times["dense"] / seconds)
                share = found[form][1] / limit.bandwidth / seconds
                line += f"{1e3 * seconds:7.3f} ms{found[form][1] / 1e6:8.1f}{100 * share:5.0f}%{ratios[form][-1]:6.2f}x"
            print(line, flush=True)
    means = {form: float(np.exp(np.mean(np.log(of)))) for form, of in ratios.items() if of}
    print(f"{'geometric mean':22}" + "".join(f"{mean:30.2f}x" for mean in means.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
