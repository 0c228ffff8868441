"""Compiles the teaching kernels, and those of convolutions by FFT, for GPUs (see triton_build.py), on a machine that needs none: `python teaching_build.py`."""

import numpy as np

import weft
from triton_build import generations
from weft.compiler.gpu import algorithms as choice
from weft.compiler.gpu.compile import build
from weft.compiler.gpu.program import gpu_program
from weft.options import CompileOptions

A = np.zeros((100, 90), weft.bfloat16.numpy)
IMAGES, FILTER = np.zeros((2, 6, 12, 10), np.float32), np.zeros((8, 6, 3, 3), np.float32)
LARGE, LINES, LINE = (np.zeros(s, np.float32) for s in ((8, 6, 5, 5), (2, 6, 1, 30), (8, 6, 1, 25)))


def filter_gradient(x, w):
    y, back = weft.vjp(lambda w: weft.conv(x, w, algorithm="FFT"), w)
    return back(y)[0]


def sources(f, *arrays, matmul_algorithm="fastest"):
    """The kernels of a function's products and convolutions."""
    options = CompileOptions("cuda", matmul_algorithm=matmul_algorithm)
    program = gpu_program(weft.make_graph(f, *arrays), {}, options)
    return [source for kernel, plan in program.plans.items() for source in choice.sources(kernel, plan)]


def main() -> None:
    found = []
    for name in ("NAIVE", "TILED"):
        found += sources(lambda a: weft.relu(a @ a.mT), A, matmul_algorithm=name)
    found += sources(lambda x, w: weft.relu(weft.conv(x, w, padding=1, algorithm="GEMM")), IMAGES, FILTER)
    found += sources(lambda x, w: weft.conv(x, w, stride=2, algorithm="DIRECT"), IMAGES, FILTER)
    found += sources(lambda x, w: weft.relu(weft.conv(x, w, algorithm="FFT_TILED")), IMAGES, LARGE)
    found += sources(lambda x, w: weft.conv(x, w, algorithm="FFT"), LINES, LINE)
    found += sources(filter_gradient, LINES, LINE)
    for source in found:
        for capability in generations():
            assert build(source, capability).code
            print("built", source.body.splitlines()[2].strip())


if __name__ == "__main__":
    main()
