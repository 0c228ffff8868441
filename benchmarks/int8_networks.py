"""Whole networks in int8 against float32 on this CPU, and against ONNX Runtime's int8.

    python -m benchmarks.int8_networks [networks=resnet50,mobilenet_v2,alexnet] [batches=1,16] [threads=1,2] [seconds=3]

The weights are random, which changes no time. ONNX Runtime (where it is installed) runs the same quantized network, exported in the QDQ form; there the results of all
layers are quantized, because it adds and pools integers in ops of their own. The runs of all programs are interleaved, and the best of each counts: CPU time for one
thread, wall-clock time for more.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft import compress, nn, zoo
from weft.compress.qdq import QuantizeDequantize
from weft.compress.taps import tap

DEFAULTS = {"networks": "resnet50,mobilenet_v2,alexnet", "batches": "1,16", "threads": "1,2", "seconds": "3"}
Run = Callable[[], Any]


def quantized(name: str, images: np.ndarray) -> tuple[nn.Module, nn.Module]:
    """A network of the zoo, and the same after `int8`."""
    weft.seed(0)
    model = getattr(zoo, name)().eval()
    model(images[:1]).realize()
    eight = copy.deepcopy(model)
    compress.int8(eight, images[:1], method="minmax", weight_method="minmax")
    return model, eight


def programs(model: nn.Module, eight: nn.Module, x: np.ndarray, threads: int) -> dict[str, Run]:
    """The programs to compare, by name."""
    held, integers = weft.asarray(x), compress.to_int8(eight)
    floats, ints = weft.jit(lambda x: model(x)), weft.jit(lambda x: integers(x))
    found: dict[str, Run] = {"float32": lambda: floats(held).numpy(), "int8": lambda: ints(held).numpy()}
    session = onnx_runtime(eight, x, threads)
    return found | ({} if session is None else {"onnxruntime": session})


def onnx_runtime(eight: nn.Module, x: np.ndarray, threads: int) -> Run | None:
    """The same network in ONNX Runtime, if that is installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    explicit = compress.qdq(eight)
    quantize_everything(explicit)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        weft.onnx.save(path, explicit, weft.asarray(x))
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: x})


def quantize_everything(model: nn.Module) -> None:
    """Quantize the terms of residual additions, what is pooled, and the result as well; any grid will do."""
    pair = QuantizeDequantize(compress.Grid(8, False, np.asarray(0.05, np.float32), np.asarray(128, np.int32)))
    for block in [part for part in model.modules() if isinstance(part, nn.Residual)]:
        tap(block.body, after=pair)
        if block.shortcut is not None:
            tap(block.shortcut, after=pair)
    for pool in [part for part in model.modules() if isinstance(part, nn.GlobalAvgPool | nn.AdaptiveAvgPool2d)]:
        tap(pool, before=pair, after=pair)
    tap(model, after=pair)


def best_times(runs: dict[str, Run], clock: Callable[[], float], seconds: float) -> dict[str, float]:
    """Milliseconds of the best run of each, in turns."""
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end:
        for name, run in runs.items():
            begin = clock()
            run()
            best[name] = min(best[name], 1e3 * (clock() - begin))
    return best


def main(arguments: list[str]) -> None:
    settings = DEFAULTS | dict(a.split("=") for a in arguments)
    batches, threads = ([int(n) for n in settings[key].split(",")] for key in ("batches", "threads"))
    print(f"{'':30}{'float32':>10}{'int8':>10}{'ratio':>8}{'ONNX Runtime':>16}{'ratio':>8}")
    for name in settings["networks"].split(","):
        images = np.random.default_rng(0).normal(size=(max(batches), 3, 224, 224)).astype(np.float32)
        model, eight = quantized(name, images)
        for count in threads:
            for batch in batches:
                with weft.knobs.set(threads=count):
                    runs = programs(model, eight, images[:batch], count)
                    clock = time.process_time if count == 1 else time.perf_counter
                    ms = best_times(runs, clock, float(settings["seconds"]))
                line = f"{name + f', batch {batch}, threads {count}':30}{ms['float32']:10.1f}{ms['int8']:10.1f}{ms['float32'] / ms['int8']:8.2f}"
                other = ms.get("onnxruntime")
                print(line + (f"{other:16.1f}{other / ms['int8']:8.2f}" if other else ""), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
