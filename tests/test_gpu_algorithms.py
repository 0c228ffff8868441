"""Algorithms by name on GPUs: every one computes the same, preferences are honoured, and the fastest is the one that was measured.

Kernels run under Triton's interpreter on a GPU made of the host's memory; NVIDIA's libraries are played by NumPy.
"""

import os
import subprocess
import sys
from math import prod
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.compiler.gpu import algorithms as choice
from weft.compiler.gpu.program import gpu_program
from weft.compiler.planning.cost_model import work
from weft.errors import UserError
from weft.knobs import GPU_ALGORITHMS, PRODUCT_ALGORITHMS
from weft.options import CompileOptions
from weft.testing import counted, generator

pytest.importorskip("triton")
from gpu_algorithm_tools import defined, near, plans
from triton_runner import run_program

OURS = [name for name in GPU_ALGORITHMS if name not in ("CUDNN", "DEPTHWISE", "FFT", "FFT_TILED")]  # of small filters


# --- convolutions -------------------------------------------------------------------------------------------------------------------

CASES = {
    "plain": ((2, 3, 7, 6), (5, 3, 3, 3), {}),
    "stride, uneven padding": ((2, 4, 9, 8), (6, 4, 3, 2), {"stride": (2, 3), "padding": ((1, 0), (2, 1))}),
    "dilation": ((1, 3, 11, 9), (4, 3, 3, 3), {"dilation": (2, 1), "padding": 2}),
    "groups": ((2, 6, 6, 5), (4, 3, 3, 3), {"groups": 2, "padding": 1}),
    "depthwise": ((2, 5, 6, 6), (10, 1, 3, 3), {"groups": 5, "padding": 1, "stride": 2}),
    "one by one": ((3, 7, 4, 5), (9, 7, 1, 1), {}),
    "a line": ((2, 3, 17), (4, 3, 5), {"padding": 2, "stride": 2}),
    "a volume": ((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), {"padding": 1}),
    "one window": ((1, 1, 3, 3), (1, 1, 3, 3), {}),
}


def all_directions(how, algorithm):
    """The convolution with something after it, and its gradients."""

    def step(x, w):
        y, back = weft.vjp(lambda x, w: weft.conv(x, w, algorithm=algorithm, **how), x, w)
        return (weft.relu(y), *back(y * 0.5))

    return step


@pytest.mark.sweep("algorithm", share=0.25)
@pytest.mark.parametrize(
    ("algorithm", "name"),
    [(a, c) for a in OURS for c in CASES if a != "LOOPS" or c == "groups"],  # loops are tested with all others
)
def test_every_algorithm_is_the_definition(algorithm, name):
    x_shape, w_shape, how = CASES[name]
    rng = generator(name)
    x, w = rng.normal(size=x_shape).astype(np.float32), rng.normal(size=w_shape).astype(np.float32)
    program = gpu_program(weft.make_graph(all_directions(how, algorithm), x, w), {})
    assert set(plans(program).values()) == ({algorithm} if algorithm != "LOOPS" else set())
    for actual, expected in zip(
        run_program(program, [x, w]), defined(all_directions(how, "fastest"), x, w), strict=True
    ):
        near(actual, expected, 2e-6)


@pytest.mark.sweep(share=3.0)
@pytest.mark.parametrize(
    ("shape", "kernel", "how"),
    [
        ((2, 5, 9, 7), (3, 3), {"padding": 1}),
        ((1, 40, 12, 11), (3, 3), {"padding": 1}),  # several rectangles and groups of channels
        ((1, 3, 9, 8), (7, 7), {"padding": 3}),
        ((2, 6, 9), (5,), {"padding": 2, "stride": 2}),
        ((1, 4, 5, 6, 4), (3, 2, 3), {"padding": 1}),
        (
            (2, 3, 9, 8),
            (3, 17),
            {"padding": ((1, 0), (8, 9)), "dilation": (2, 1)},
        ),  # a line of taps that is not written out
        ((1, 2, 3, 3), (1, 1), {}),
    ],
)
def test_each_channel_by_itself(shape, kernel, how):
    """DEPTHWISE, which is also chosen where no algorithm is named; gradients of filters are other kernels."""
    rng = generator(f"depthwise {shape}")
    how = how | {"groups": shape[1]}
    x, w = (rng.normal(size=s).astype(np.float32) for s in (shape, (shape[1], 1, *kernel)))
    program = gpu_program(weft.make_graph(all_directions(how, "fastest"), x, w), {})
    assert sorted(plans(program).values())[:2] == ["DEPTHWISE", "DEPTHWISE"]
    for actual, expected in zip(
        run_program(program, [x, w]), defined(all_directions(how, "fastest"), x, w), strict=True
    ):
        near(actual, expected, 2e-6)


@pytest.mark.parametrize("constant", [True, False])
def test_weights_that_never_change_are_copied_once(constant):
    """Tap by tap: the copy is kept."""
    x, w = np.ones((1, 8, 6, 6), np.float32), np.ones((8, 1, 3, 3), np.float32)
    graph = weft.make_graph(lambda x, w: weft.conv(x, w, groups=8, padding=1), x, w)
    program = gpu_program(graph, {}, constants=frozenset([1] if constant else []))
    [copy] = [call for call in program.calls if call.phase is not None and call.phase.symbol == "taps"]
    assert copy.once == constant
    assert (program.memory.kept >= w.nbytes) == constant


def test_several_filters_for_a_channel_have_another_algorithm():
    x, w = np.ones((1, 2, 4, 4), np.float32), np.ones((4, 1, 3, 3), np.float32)
    program = gpu_program(weft.make_graph(lambda x, w: weft.conv(x, w, groups=2, algorithm="DEPTHWISE"), x, w), {})
    assert list(plans(program).values()) == ["IMPLICIT_GEMM"]


@pytest.mark.sweep("algorithm", share=1.0)
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("algorithm", ["GEMM", "DIRECT"])
def test_of_16_bits(algorithm, kind):
    rng, dtype = generator(kind), weft.dtypes.as_dtype(kind, "test")
    x, w = (weft.asarray(rng.normal(size=shape)).astype(dtype).numpy() for shape in ((2, 8, 6, 5), (4, 8, 3, 3)))
    program = gpu_program(weft.make_graph(all_directions({"padding": 1}, algorithm), x, w), {})
    assert set(plans(program).values()) == {algorithm}
    for actual, expected in zip(
        run_program(program, [x, w]), defined(all_directions({"padding": 1}, "fastest"), x, w), strict=True
    ):
        near(actual, expected, 0.02)


def long_filter_gradient(algorithm):
    def step(x, g):
        _, back = weft.vjp(lambda w: weft.conv(x, w, algorithm=algorithm), weft.zeros((4, 4, 3, 3)))
        return back(g)[0]

    return step


@pytest.mark.parametrize("algorithm", ["IMPLICIT_GEMM", "GEMM"])
def test_long_sums_in_parts(algorithm):
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=(4, 4, 20, 21)).astype(np.float32), rng.normal(size=(4, 4, 18, 19)).astype(np.float32)
    program = gpu_program(weft.make_graph(long_filter_gradient(algorithm), x, g), {})
    assert plans(program) == {"conv_filter_last": f"{algorithm}, in parts"}
    [actual], [expected] = run_program(program, [x, g]), defined(long_filter_gradient("fastest"), x, g)
    near(actual, expected, 2e-6)


# --- matrix products ----------------------------------------------------------------------------------------------------------------

PRODUCTS = {
    "odd sizes": ((37, 45), (45, 33), lambda a, b: a @ b),
    "with an epilogue": ((20, 70), (70, 19), lambda a, b: weft.relu(a @ b - 1) * 2),
    "a batch, turned": ((3, 17, 9), (3, 20, 17), lambda a, b: a.mT @ b.mT),
    "one row": ((1, 50), (50, 3), lambda a, b: a @ b),
    "one element": ((1, 5), (5, 1), lambda a, b: a @ b),
}


@pytest.mark.sweep("algorithm", "dtype", share=0.25)
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("algorithm", [n for n in PRODUCT_ALGORITHMS if n != "CUBLASLT"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_every_product_is_the_definition(dtype, algorithm, name):
    a_shape, b_shape, f = PRODUCTS[name]
    rng = generator(name)
    a, b = (weft.asarray(rng.normal(size=s)).astype(dtype).numpy() for s in (a_shape, b_shape))
    program = gpu_program(weft.make_graph(f, a, b), {}, CompileOptions("cuda", matmul_algorithm=algorithm))
    assert plans(program) == {"contract": algorithm}
    [actual], [expected] = run_program(program, [a, b]), defined(f, a, b)
    near(actual, expected, {"float32": 2e-6, "bfloat16": 0.02, "float64": 1e-14}[dtype])


def test_the_tiled_product_keeps_away_from_the_matrix_units():
    a = np.ones((40, 40), weft.bfloat16.numpy)
    options = CompileOptions("cuda", matmul_algorithm="TILED", tf32=1)
    [kernel] = gpu_program(weft.make_graph(lambda a: a @ a, a), {}, options).kernels
    [source] = choice.sources(kernel, choice.choose(kernel, False, None, options).plan)
    assert source.body.count(".to(tl.float32)") >= 2
    assert 'input_precision="ieee"' in source.body


# --- preferences --------------------------------------------------------------------------------------------------------------------


def test_the_call_the_block_and_the_setting():
    x, w = weft.ones((1, 4, 8, 8)), weft.ones((4, 4, 3, 3))

    def used(algorithm=None):
        return plans(gpu_program(weft.make_graph(lambda x, w: weft.conv(x, w, algorithm=algorithm), x, w), {}))

    assert used() == {"conv_last": "IMPLICIT_GEMM"}
    assert used("DIRECT") == {"conv_last": "DIRECT"}
    with weft.algorithms("GEMM"):
        assert used() == {"conv_last": "GEMM"}
    with weft.knobs.set(conv_algorithm="GEMM"):
        assert used() == {"conv_last": "GEMM"}
        assert used("fastest") == {"conv_last": "IMPLICIT_GEMM"}
    with weft.knobs.set(conv_algorithm="LOOPS"):
        assert used() == {}


@pytest.mark.parametrize("name", ["WINOGRAD", "IMPLICIT_PRECOMP_GEMM", "CUDNN"])
def test_another_one_does_what_does_not_exist_and_a_note_says_so(name):
    graph = weft.make_graph(
        lambda x, w: weft.conv(x, w, algorithm=name), weft.ones((1, 4, 8, 8)), weft.ones((4, 4, 3, 3))
    )
    program = gpu_program(graph, {})
    assert plans(program) == {"conv_last": "IMPLICIT_GEMM"}
    [kernel] = program.plans
    note = "CUDNN has no kernel for it, or is not installed" if name == "CUDNN" else f"{name} does not exist on GPUs"
    assert choice.choose(kernel, False, None, CompileOptions("cuda")).note == note


def test_the_library_of_gpus_is_no_algorithm_of_cpus():
    x, w = weft.ones((1, 4, 8, 8)), weft.ones((4, 4, 3, 3))
    assert weft.conv(x, w, algorithm="CUDNN").numpy().max() == 36
    with pytest.raises(UserError, match="WEFT_MATMUL_ALGORITHM cannot be 'GEMM': it must be fastest"):
        weft.knobs.matmul_algorithm = "GEMM"


def test_parts_of_long_sums_fit_into_the_limit():
    """The workspace shrinks with what is allowed, and without any the result is the same."""
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=(4, 4, 20, 21)).astype(np.float32), rng.normal(size=(4, 4, 18, 19)).astype(np.float32)
    [expected] = defined(long_filter_gradient("fastest"), x, g)

    def used(prefer):
        program = gpu_program(weft.make_graph(long_filter_gradient(prefer), x, g), {})
        near(run_program(program, [x, g])[0], expected, 2e-6)
        [plan] = program.plans.values()
        return plan.workspace

    most, sums = used("fastest"), 4 * prod(expected.shape)
    assert most >= 2 * sums
    assert used(f"workspace:{most}") == most
    assert used(f"workspace:{most - 1}") == (most // 2 if most > 2 * sums else 0)
    assert used(f"workspace:{sums}") == used("no_workspace") == 0  # one part is the whole sum


def test_products_within_a_limit():
    a, b = np.ones((8, 4096), np.float32), np.ones((4096, 8), np.float32)
    graph = weft.make_graph(lambda a, b: a @ b, a, b)
    used = {}
    for prefer in ("fastest", "workspace:600", "no_workspace"):
        [plan] = gpu_program(graph, {}, CompileOptions("cuda", matmul_algorithm=prefer)).plans.values()
        used[prefer] = plan.workspace
    assert used.pop("fastest") > 600
    assert used == {"workspace:600": 512, "no_workspace": 0}  # two parts of 64 sums


def test_the_work_is_put_down_to_the_product():
    """Not to the patches before it or the sums after it."""
    x, g = np.ones((4, 4, 20, 21), np.float32), np.ones((4, 4, 18, 19), np.float32)
    program = gpu_program(weft.make_graph(long_filter_gradient("GEMM"), x, g), {})
    flops = {call.phase.symbol: work(program, call).flops for call in program.calls if call.kind == "plan"}
    assert flops == {"patches": 0, "unfolded_parts": 2 * 4 * 18 * 19 * 4 * 36, "finish": 0}


# --- to be read ------------------------------------------------------------------------------------------------------------------------


def test_teaching_kernels_compile_for_gpus():
    """In a process of its own: interpreting is for a whole process."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "teaching_build.py")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("built") >= 5
    counted(5)
