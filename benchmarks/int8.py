"""int8 against float32 on this CPU: products, and the convolutions of ResNet-50 and MobileNetV2, each with its requantization.

    python -m benchmarks.int8 [threads=1] [batch=1]

A float32 layer is the product with bias and ReLU; an int8 layer the same with its requantization to int8. Times are CPU time of this
process, the best of several runs; a column compares with ONNX Runtime's int8 (MatMulInteger, ConvInteger with the same
requantization) where that is installed.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import weft

RNG = np.random.default_rng(0)
PRODUCTS = [(256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (1, 4096, 4096), (16, 4096, 4096)]
# channels, size, filters, kernel, stride, groups
RESNET50 = [
    (3, 224, 64, 7, 2, 1), (64, 56, 64, 1, 1, 1), (64, 56, 64, 3, 1, 1), (64, 56, 256, 1, 1, 1), (128, 28, 128, 3, 1, 1),
    (256, 56, 512, 1, 2, 1), (512, 28, 128, 1, 1, 1), (256, 14, 256, 3, 1, 1), (1024, 14, 256, 1, 1, 1), (512, 7, 512, 3, 1, 1),
    (512, 7, 2048, 1, 1, 1),
]  # fmt: skip
MOBILENETV2 = [
    (3, 224, 32, 3, 2, 1), (32, 112, 32, 3, 1, 32), (32, 112, 16, 1, 1, 1), (16, 112, 96, 1, 1, 1), (96, 112, 96, 3, 2, 96),
    (144, 56, 144, 3, 1, 144), (144, 28, 32, 1, 1, 1), (384, 14, 384, 3, 1, 384), (384, 14, 64, 1, 1, 1), (96, 14, 576, 1, 1, 1),
    (960, 7, 960, 3, 1, 960), (960, 7, 320, 1, 1, 1), (320, 7, 1280, 1, 1, 1),
]  # fmt: skip


def best(function: Callable[[], Any], least: float = 0.3) -> float:
    """Milliseconds of CPU time: the best run of at least `least` seconds of runs."""
    function(), function()
    times: list[float] = []
    end = time.process_time() + least
    while time.process_time() < end or len(times) < 3:
        begin = time.process_time()
        function()
        times.append(time.process_time() - begin)
    return 1e3 * min(times)


def layer_of_int8(multiply: Callable[[Any, Any], Any], w: np.ndarray, axis: int) -> Callable[[Any], Any]:
    channels = w.shape[1] if axis == -1 else w.shape[0]
    weights, shape = weft.asarray(w), (channels,) if axis == -1 else (channels, 1, 1)
    scale = weft.asarray(np.asarray(RNG.uniform(1e-4, 1e-3, channels), np.float32))
    bias = weft.asarray(RNG.integers(-1000, 1000, shape).astype(np.int32))
    return lambda x: weft.requantize(weft.maximum(multiply(x, weights) + bias, 0), scale, axis=axis)


def layer_of_floats(multiply: Callable[[Any, Any], Any], w: np.ndarray, axis: int) -> Callable[[Any], Any]:
    channels = w.shape[1] if axis == -1 else w.shape[0]
    weights = weft.asarray(w.astype(np.float32))
    bias = weft.asarray(RNG.normal(size=(channels,) if axis == -1 else (channels, 1, 1)).astype(np.float32))
    return lambda x: weft.relu(multiply(x, weights) + bias)


def integers(*shape: int) -> np.ndarray:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def compare(name: str, macs: int, x: np.ndarray, w: np.ndarray, axis: int, **how: Any) -> tuple[float, ...]:
    """One line of the table; the milliseconds of int8, float32 and ONNX Runtime."""

    def product(dtype: str) -> Callable[[Any, Any], Any]:
        if axis == -1:
            return lambda x, w: weft.matmul(x, w, dtype=dtype)
        return lambda x, w: weft.conv(weft.moveaxis(x, -1, 1), w, dtype=dtype, **how)

    quantized = layer_of_int8(product("int32"), w, axis)
    eight, floats = (channels_last(f, axis) for f in (quantized, layer_of_floats(product("float32"), w, axis)))
    held, wide = weft.asarray(x), weft.asarray(x.astype(np.float32))
    times = [best(lambda: eight(held).numpy()), best(lambda: floats(wide).numpy())]
    other = onnx_runtime(quantized, x)  # moves its channels, too, so its time counts where channels are few
    if other is not None:
        times.append(best(other))
    columns = f"{times[0]:9.3f} {2e-6 * macs / times[0]:8.1f} {times[1]:9.3f} {times[1] / times[0]:6.2f}"
    print(f"{name:34}{columns}" + (f" {times[2]:9.3f} {times[2] / times[0]:6.2f}" if other else ""), flush=True)
    return tuple(times)


def channels_last(function: Callable[[Any], Any], axis: int) -> Callable[[Any], Any]:
    """Compiled, with images in the order that layers inside of a network hand to each other."""
    return weft.jit(function if axis == -1 else lambda x: weft.moveaxis(function(x), 1, -1))


def onnx_runtime(function: Callable[[Any], Any], x: np.ndarray) -> Callable[[], Any] | None:
    """The same layer in ONNX Runtime, if that is installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = weft.knobs.threads
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.onnx"
        weft.onnx.save(path, function, weft.asarray(x))
        session = onnxruntime.InferenceSession(str(path), options)
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: x})


def convolution(batch: int, channels: int, size: int, filters: int, kernel: int, stride: int, groups: int) -> Any:
    x, w = integers(batch, size, size, channels), integers(filters, channels // groups, kernel, kernel)
    out = -(-size // stride)
    name = f"{channels}x{size}x{size} -> {filters}, {kernel}x{kernel} / {stride}" + " depthwise" * (groups > 1)
    how = {"stride": stride, "padding": kernel // 2, "groups": groups}
    return compare(name, batch * out * out * w.size, x, w, 1, **how)


def main(arguments: list[str]) -> None:
    settings = {"threads": 1, "batch": 1} | {k: int(v) for k, v in (a.split("=") for a in arguments)}
    with weft.knobs.set(threads=settings["threads"]):
        print(f"{'':34}{'int8 ms':>9} {'GOP/s':>8} {'float ms':>9} {'ratio':>6}   ONNX Runtime ms, ratio if installed")
        for m, n, k in PRODUCTS:
            compare(f"{m} x {n} x {k}", m * n * k, integers(m, k), integers(k, n), -1)
        for title, shapes in (("ResNet-50", RESNET50), ("MobileNetV2", MOBILENETV2)):
            print(title)
            ratios = [(t[1] / t[0]) for t in (convolution(settings["batch"], *shape) for shape in shapes)]
            print(f"{'geometric mean':34}{np.exp(np.mean(np.log(ratios))):35.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
