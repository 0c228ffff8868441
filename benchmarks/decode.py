"""How fast packed weights are decoded: the linear layers of AlexNet at the densities of Deep Compression, shared by 31 values, on one core.

    python -m benchmarks.decode [runs=5]

Prints for both codes the bytes of the file, and megabytes of float32 weights a second: the least CPU time of some runs, the reading of the file included.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import weft
from benchmarks.sparse import BITS, LAYERS
from weft import compress


def main(arguments: list[str]) -> None:
    runs = int(dict(a.split("=") for a in arguments).get("runs", 5))
    rng = np.random.default_rng(0)
    book = rng.normal(size=(1 << BITS) - 1).astype(np.float32)
    weights = {}
    for name, inputs, outputs, density in LAYERS[:3]:
        kept = rng.random((outputs, inputs), dtype=np.float32) < density
        weights[name] = np.where(kept, book[rng.integers(0, len(book), kept.shape)], np.float32(0))
    size = sum(weight.nbytes for weight in weights.values())
    with weft.knobs.set(threads=1), tempfile.TemporaryDirectory() as folder:
        for coder in ("rans", "huffman"):
            path = Path(folder) / "weights.packed"
            compress.save_packed(path, weights, coder=coder)
            best = float("inf")
            for _ in range(runs):
                begin = time.process_time()
                found = compress.load_packed(path)
                best = min(best, time.process_time() - begin)
            assert all(np.array_equal(found[name], weight) for name, weight in weights.items())
            packed = path.stat().st_size
            print(f"{coder:8} {packed:9,} bytes, {size / packed:.1f}x smaller, {size / best / 1e6:5.0f} MB/s")


if __name__ == "__main__":
    main(sys.argv[1:])
