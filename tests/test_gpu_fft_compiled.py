"""Convolutions by FFT as they are compiled for an H200: three TF32 products for each are as accurate as the interpreter's float32.

Windows have at most 16 pixels along x: the loads of a longer loop are pipelined, by instructions that ptx_machine.py does not know.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
import ptx_gpu
import weft
from gpu_algorithm_tools import defined, near
from ptx_gpu import PtxGpu
from weft.compiler.gpu.fft import problem
from weft.compiler.ir.fft_tiling import FftWindow, fft_tiling
from weft.testing import generator

COMPILED = ("# spectra of", "products of spectra", "tiles of")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PtxGpu]:
    with ptx_gpu.compiling(monkeypatch, lambda wanted: any(words in wanted.text for words in COMPILED)) as made:
        yield made


def forward(x: Any, w: Any, algorithm: str) -> Any:
    return weft.relu(weft.conv(x, w, padding=2, algorithm=algorithm))


def filter_gradient(x: Any, g: Any, algorithm: str) -> Any:
    like = weft.zeros((g.shape[1], x.shape[1], *(n - m + 1 for n, m in zip(x.shape[2:], g.shape[2:], strict=True))))
    return weft.vjp(lambda w: weft.conv(x, w.astype(x.dtype), algorithm=algorithm), like.astype(x.dtype))[1](g)[0]


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize(
    ("function", "window", "shapes"),
    [
        (forward, (8, 10), ((1, 4, 6, 6), (4, 4, 5, 5))),
        (forward, (40, 8), ((1, 4, 33, 4), (4, 4, 5, 5))),
        (filter_gradient, (24, 12), ((2, 4, 18, 11), (2, 4, 14, 7))),
        (filter_gradient, (1, 16), ((2, 4, 1, 16), (2, 4, 1, 10))),
    ],
)
def test_compiled_kernels_are_the_definition(
    gpu: PtxGpu, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], window: tuple[int, int], shapes: Any
) -> None:
    monkeypatch.setattr(problem, "fft_applies", lambda shape: True)
    monkeypatch.setattr(problem, "fft_tilings", lambda name, *given: [fft_tiling(FftWindow(*window), *given)])
    a, b = (generator(str(shapes)).normal(size=shape).astype(np.float32) for shape in shapes)
    with weft.knobs.set(device="cuda", compile_after=1):
        actual = weft.jit(lambda a, b: function(a, b, "FFT_TILED"))(a, b).numpy()
    assert gpu.compiled_launches == 4
    near(actual, defined(lambda a, b: function(a, b, "LOOPS"), a, b)[0], 5e-7)
