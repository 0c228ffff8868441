"""Updates of a slice in place against a copy of the whole tensor, and top_k against a sort: CPU time and bytes moved per call.

    python benchmarks/slice_update.py

The copy is what the same update costs if the old value is still needed: a `where` over the whole tensor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import weft
from weft.compiler.planning.cost_model import work


def main() -> None:
    print(f"{'':44}{'slice, top k':>14}{'whole, sort':>14}{'ratio':>8}")
    for shape in [(64, 1024), (64, 1024, 64)]:
        cache, row = weft.zeros(shape), weft.ones((shape[0], *shape[2:]))

        def in_place(row: Any, i: Any, cache: Any = cache) -> None:
            cache[:, i] = row

        def whole(row: Any, i: Any, cache: Any = cache) -> None:
            here = (weft.arange(cache.shape[1]) == i).reshape(1, -1, *[1] * (cache.ndim - 2))
            cache.assign(weft.where(here, row[:, None], cache))

        compare(f"one row of a cache of {'x'.join(map(str, shape))}", in_place, whole, row, 5)
    decoder()
    for rows, n, k in [(32, 50257, 50), (256, 1000, 5)]:
        x = weft.asarray(np.random.default_rng(0).normal(size=(rows, n)).astype("float32"))
        compare(f"top {k} of {rows} rows of {n}", lambda x, k=k: weft.top_k(x, k), lambda x, k=k: by_sort(x, k), x)


def by_sort(x: Any, k: int) -> Any:
    order = weft.argsort(x, descending=True)[:, :k]
    return weft.take_along_axis(x, order), order


def decoder() -> None:
    """One token of a decoder: keys and values enter their caches, and attention reads the first of them."""
    heads, length, width = 16, 4096, 64
    keys, values = weft.zeros((heads, length, width)), weft.zeros((heads, length, width))
    one, seen = weft.ones((heads, width)), 64

    def attend(k: Any) -> Any:
        scores = weft.softmax((keys[:, :seen] * k[:, None]).sum(axis=-1), axis=-1)
        return (scores[..., None] * values[:, :seen]).sum(axis=1)

    def in_place(k: Any, i: Any) -> Any:
        keys[:, i], values[:, i] = k, k
        return attend(k)

    def whole(k: Any, i: Any) -> Any:
        here = (weft.arange(length) == i).reshape(1, -1, 1)
        for cache in (keys, values):
            cache.assign(weft.where(here, k[:, None], cache))
        return attend(k)

    compare(f"a token of a decoder, caches of {heads}x{length}x{width}", in_place, whole, one, 7)


def compare(name: str, new: Callable[..., Any], old: Callable[..., Any], *args: Any) -> None:
    times, moved = zip(*(measured(weft.jit(f), *args) for f in (new, old)), strict=True)
    print(f"{name:44}{1e6 * times[0]:>11.0f} us{1e6 * times[1]:>11.0f} us{times[1] / times[0]:>8.1f}")
    print(f"{'':44}{moved[0] / 1e3:>11.0f} kB{moved[1] / 1e3:>11.0f} kB{moved[1] / moved[0]:>8.1f}")


def measured(f: Any, *args: Any) -> tuple[float, int]:
    """CPU seconds and bytes of a call."""
    for _ in range(3):
        f(*args)
    program = f._for(args, {}).executable.program
    begin, count = time.process_time(), 0
    while time.process_time() - begin < 0.5:
        f(*args)
        count += 1
    return (time.process_time() - begin) / count, sum(work(program, call).nbytes for call in program.calls)


if __name__ == "__main__":
    main()
