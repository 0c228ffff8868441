"""NVIDIA's libraries on GPUs: by name, within limits, with what follows a product or convolution, and where they were measured to be faster.

Kernels run under Triton's interpreter on a GPU made of the host's memory; the libraries are played by NumPy.
"""

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import weft
from weft.algorithms import find_algorithms
from weft.compiler.disk_cache import ObjectCache
from weft.compiler.gpu.fft import plans as fft_plans
from weft.compiler.gpu.vendor.specs import ConvSpec, ProductSpec
from weft.knobs import GPU_ALGORITHMS
from weft.testing import counted

pytest.importorskip("triton")
import fake_gpu
from fake_vendors import FakeCublasLt, FakeCudnn
from gpu_algorithm_tools import defined, near, plans
from weft.runtime.cuda import blas, dnn, measure
from weft.runtime.cuda import device as cuda_device
from weft.runtime.cuda.libraries import Libraries

# --- libraries ----------------------------------------------------------------------------------------------------------------------


def deferred(gpu, run):
    """What a library enqueues is recorded with the rest."""

    def enqueue(self, addresses, workspace, stream):
        gpu._do(lambda: run(self, addresses, workspace, stream))

    return enqueue


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A GPU with both libraries; `timed` lists what was measured, and `speeds` says who is how fast."""
    gpu = fake_gpu.install(monkeypatch)
    blas_module, dnn_module = FakeCublasLt(), FakeCudnn()
    kinds = SimpleNamespace(COMPUTE_32F=68, COMPUTE_32F_FAST_TF32=77, COMPUTE_64F=70, COMPUTE_32I=72)
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublasLt", blas_module)
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublas", SimpleNamespace(ComputeType=kinds))
    monkeypatch.setitem(sys.modules, "cudnn", dnn_module)
    for door, kind in ((blas, blas.Product), (dnn, dnn.Convolution), (dnn, dnn.Attention)):
        door.handle.cache_clear()
        monkeypatch.setattr(kind, "run", deferred(gpu, kind.run))
    found = SimpleNamespace(gpu=gpu, blas=blas_module, dnn=dnn_module, casts=[], timed=[], speeds={})
    found.device = cuda_device.CudaDevice(gpu, "cuda", Libraries(gpu))
    found.libraries = found.device.context.libraries
    monkeypatch.setattr(cuda_device, "_found", [found.device])
    monkeypatch.setattr(
        "weft.compiler.gpu.compile_pool.compile_kernels", lambda s, c: found.casts.append(len(s)) or fake_gpu.cast(s, c)
    )
    monkeypatch.setattr(measure, "RUNS", 2)
    monkeypatch.setattr(measure, "MOST", 2)
    with weft.knobs.set(device="cuda", cache=str(tmp_path / "cache"), compile_after=1):
        yield found
    for door in (blas, dnn):
        door.handle.cache_clear()


@pytest.fixture
def clock(machine, monkeypatch):
    """Times as `machine.speeds` has them: of our kernels, and of anything with a library in it."""

    def seconds(gpu, enqueue):
        before = len(machine.blas.runs) + len(machine.dnn.runs)
        enqueue()
        by = "library" if len(machine.blas.runs) + len(machine.dnn.runs) > before else "own"
        machine.timed.append(by)
        return machine.speeds[by]

    monkeypatch.setattr(measure, "seconds", seconds)
    monkeypatch.setattr(measure, "TINY", 1)
    return machine


IMAGE = np.random.default_rng(0).normal(size=(2, 8, 6, 6)).astype(np.float32)
FILTER = np.random.default_rng(1).normal(size=(8, 3, 3, 8)).astype(np.float32)


def convolved(x, w, **how):
    """Of tensors as a GPU likes them: each filter's channels last."""
    return weft.permute_dims(weft.conv(x, weft.permute_dims(w, (0, 3, 1, 2)), padding=1, **how), (0, 2, 3, 1))


@pytest.mark.parametrize("prefer", ["CUDNN", "cudnn refuses"])
def test_cudnn_by_name(machine, prefer):
    machine.dnn.refuse = prefer != "CUDNN"
    made = weft.jit(partial(convolved, algorithm="CUDNN"))
    for _ in range(3):  # played, recorded, replayed
        [expected] = defined(convolved, IMAGE, FILTER)
        near(made(IMAGE, FILTER).numpy(), expected, 2e-6)
    assert bool(machine.dnn.runs) == (prefer == "CUDNN")
    executable = machine.device.executable(made.lower(IMAGE, FILTER), {}, machine.device.compile_options(), frozenset())
    assert bool(executable.notes()) == (prefer != "CUDNN")


@pytest.mark.parametrize(("limit", "plan"), [(100, "exact"), (63, None), (0, None)])
def test_cudnn_within_a_limit(clock, limit, plan):
    """Of the fake's plans in float32 the exact one is left, which takes 64 bytes."""
    clock.speeds = {"own": 2.0, "library": 1.0}
    graph = weft.make_graph(partial(convolved, algorithm=weft.WORKSPACE_LIMIT(limit)), IMAGE, FILTER)
    executable = clock.device.executable(graph, {}, clock.device.compile_options(), frozenset())
    assert executable.workspace_bytes <= limit
    names = {run[0] for run in clock.dnn.runs}
    assert names == ({plan} if plan else set())
    assert list(plans(executable.program).values()) == ["CUDNN" if plan else "IMPLICIT_GEMM"]


BANDS = {"full": {}, "causal": {"causal": True}, "upper left": {"causal": "upper_left"}, "window": {"window": (3, 1)}}


@pytest.mark.sweep(share=3.0)
@pytest.mark.parametrize("band", BANDS)
def test_cudnn_computes_attention_where_it_is_faster(clock, band):
    """Forward and all gradients, with fewer key heads and other numbers of keys; the layouts are those of the program."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=s).astype(np.float16) for s in ((2, 4, 7, 8), (2, 2, 9, 8), (2, 2, 9, 8)))
    loss = weft.value_and_grad(
        lambda q, k, v: (weft.dot_product_attention(q, k, v, **BANDS[band]).astype("float32") ** 2).sum(),
        argnums=(0, 1, 2),
    )
    found = []
    for faster in ("own", "library"):
        clock.speeds, clock.dnn.runs[:] = {"own": 2.0, "library": 2.0, faster: 1.0}, []
        with weft.knobs.set(cache=f"{weft.knobs.cache}-{faster}"):
            clock.libraries.choices._here.clear()
            made = weft.jit(loss)
            value, gradients = made(q, k, v)
            found.append([value.numpy(), *(g.numpy() for g in gradients)])
            assert set(plans(made._for((q, k, v), {}).executable.program).values()) == {
                "CUDNN" if faster == "library" else "TRITON"
            }
    for own, library in zip(*found, strict=True):
        near(library, own.astype(np.float64), 2e-2)


@pytest.mark.parametrize(
    "given", [{"mask": np.ones((7, 9), bool)}, {"slopes": np.ones(4, np.float32)}, {"causal": True, "swap": True}]
)
def test_attention_that_cudnn_is_not_asked_for(clock, given):
    """Masks, slopes, and queries that attend to nothing."""
    clock.speeds = {"own": 2.0, "library": 1.0}
    q, k = (np.ones((1, 4, n, 8), np.float16) for n in ((9, 7) if given.pop("swap", False) else (7, 9)))
    weft.jit(lambda q, k: weft.dot_product_attention(q, k, k, **given))(q, k).numpy()
    assert not clock.dnn.runs


def test_the_room_of_a_result_counts_as_workspace(clock):
    """Where a library's result is not what is wanted, it needs memory of its own."""
    clock.speeds = {"own": 2.0, "library": 1.0}
    a, b = np.ones((16, 32), np.float32), np.ones((32, 8), np.float32)
    graph = weft.make_graph(lambda a, b: weft.sin(a @ b), a, b)
    used = []
    for limit in (16 * 8 * 4, 16 * 8 * 4 - 1):
        with weft.knobs.set(matmul_algorithm=f"workspace:{limit}"):
            executable = clock.device.executable(graph, {}, clock.device.compile_options(), frozenset())
            used.append((*plans(executable.program).values(), executable.workspace_bytes))
    assert used == [("CUBLASLT", 512), ("TRITON", 0)]


def test_cublaslt_by_name_and_the_setting_compiles_anew(machine):
    a, b = np.ones((16, 32), np.float32), np.ones((32, 8), np.float32)
    product = weft.jit(lambda a, b: a @ b)
    for name, runs in (("CUBLASLT", True), ("NAIVE", False)):
        machine.blas.runs.clear()
        with weft.knobs.set(matmul_algorithm=name):
            near(product(a, b).numpy(), a @ b, 1e-6)
        assert bool(machine.blas.runs) == runs


def gelu_layers(x, w, b, v, g):
    """The derivatives of two layers with a gelu between them, and what comes out."""

    def layers(x, b):
        return weft.gelu(x @ w + b, approximate="tanh") @ v

    out, back = weft.vjp(layers, x, b)
    return (out, *back(g))


def test_a_gelu_and_its_derivative_by_cublaslt(machine):
    rng = np.random.default_rng(0)
    shapes = ((16, 24), (24, 8), (8,), (8, 32), (16, 32))
    arrays = [rng.normal(size=s).astype(np.float32) for s in shapes]
    made = weft.jit(gelu_layers)
    expected = defined(gelu_layers, *arrays)
    with weft.knobs.set(matmul_algorithm="CUBLASLT"):
        for _ in range(3):  # played, recorded, replayed
            for actual, e in zip(made(*arrays), expected, strict=True):
                near(actual.numpy(), e, 2e-6)
    epilogues = {spec.epilogue for spec in machine.libraries._ready}
    assert {"bias_gelu_tanh_sum", "dgelu_tanh"} <= epilogues


# --- the fastest --------------------------------------------------------------------------------------------------------------------


def network(x, w, v):
    """Two products and a convolution, the second of the products with an epilogue."""
    y = convolved(x, w)
    flat = weft.reshape(y, (2, -1))
    return flat @ v, weft.tanh(flat @ (v * 2))


ARGUMENTS = IMAGE, FILTER, np.random.default_rng(2).normal(size=(288, 16)).astype(np.float32)


@pytest.mark.parametrize(("own", "library", "wins"), [(2.0, 1.0, True), (1.0, 2.0, False), (1.0, 0.99, False)])
def test_the_faster_one_is_taken(clock, own, library, wins):
    clock.speeds = {"own": own, "library": library}
    made = weft.jit(network)
    found = made(*ARGUMENTS)
    for actual, expected in zip(found, defined(network, *ARGUMENTS), strict=True):
        near(actual.numpy(), expected, 2e-6)
    executable = next(iter(made.programs.latest.values())).executable
    assert set(plans(executable.program).values()) == ({"CUDNN", "CUBLASLT"} if wins else {"IMPLICIT_GEMM", "TRITON"})
    assert sorted(clock.timed) == ["library"] * 3 + ["own"] * 3


@pytest.mark.parametrize("wins", [True, False])
def test_transforms_are_measured_beside_a_library(clock, monkeypatch, wins):
    """Of a large filter, where no algorithm is named: all four kernels with their workspace, and then the program with either of them."""
    monkeypatch.setattr(fft_plans, "is_faster", lambda kernel: True)
    clock.speeds = {"own": 2.0, "library": 1.0 if wins else 3.0}
    large = np.random.default_rng(3).normal(size=(8, 5, 5, 8)).astype(np.float32)

    def f(x, w):
        return weft.relu(convolved(x, w) + 0.5)

    made = weft.jit(f)
    [expected] = defined(f, IMAGE, large)
    for _ in range(3):  # played, recorded, replayed
        near(made(IMAGE, large).numpy(), expected, 2e-6)
    executable = next(iter(made.programs.latest.values())).executable
    assert set(plans(executable.program).values()) == {"CUDNN" if wins else "FFT_TILED"}
    assert sorted(clock.timed) == ["library", "own"]


def test_all_is_compiled_at_once_and_measured_once(clock):
    """Two calls of the compiler: what is measured, and the program. What is known is on disk, for other processes too."""
    clock.speeds = {"own": 2.0, "library": 1.0}
    weft.jit(network)(*ARGUMENTS)
    assert len(clock.casts) == 2
    assert clock.casts[0] == 4  # three kernels of ours, and one epilogue: the other results are what is wanted
    clock.timed.clear()
    clock.dnn.builds.clear()
    another = Libraries(clock.gpu)
    second = cuda_device.CudaDevice(clock.gpu, "cuda", another)
    graph = weft.make_graph(lambda *a: (*network(*a), a[2] + 1), *ARGUMENTS)
    second.executable(graph, {}, second.compile_options(), frozenset())
    assert clock.timed == []
    assert len(clock.dnn.builds) == len([spec for spec in another._ready if isinstance(spec, ConvSpec)]) > 0


def test_one_process_measures_at_a_time(clock, monkeypatch):
    """Processes that share a GPU would disturb each other's times; what one has measured in the meantime, the others use."""
    clock.speeds = {"own": 2.0, "library": 1.0}
    inside, measured = [], []
    making, seconds = ObjectCache.making, measure.seconds
    other = cuda_device.CudaDevice(clock.gpu, "cuda", Libraries(clock.gpu))
    graph = weft.make_graph(network, *ARGUMENTS)
    more = weft.make_graph(lambda *a: (*network(*a), a[2] + 1), *ARGUMENTS)  # asks the same
    turns = iter([lambda: other.executable(more, {}, other.compile_options(), frozenset())])

    @contextmanager
    def waited_for(self, key):
        if not key.startswith("comparison"):
            with making(self, key) as found:
                yield found
            return
        next(turns, lambda: None)()  # what another process does while this one waits
        with making(self, key) as found:
            inside.append(key)
            yield found
            inside.remove(key)

    monkeypatch.setattr(ObjectCache, "making", waited_for)
    monkeypatch.setattr(measure, "seconds", lambda *a: measured.append(len(inside)) or seconds(*a))
    clock.device.executable(graph, {}, clock.device.compile_options(), frozenset())
    assert measured == [1] * 6


def test_small_work_is_ours_and_a_plan_measures_nothing(clock, monkeypatch):
    clock.speeds = {"own": 2.0, "library": 1.0}
    assert weft.jit(network).memory(*ARGUMENTS).work > 0
    assert clock.timed == []
    monkeypatch.setattr(measure, "TINY", 1 << 40)
    weft.jit(network)(*ARGUMENTS)
    assert clock.timed == []
    assert clock.dnn.runs == clock.blas.runs == []


def test_huge_work_is_the_librarys(clock, monkeypatch):
    clock.speeds = {"own": 1.0, "library": 2.0}
    monkeypatch.setattr(measure, "HUGE", 10)
    a = np.ones((16, 16), weft.bfloat16.numpy)
    executable = clock.device.executable(
        weft.make_graph(lambda a: a @ a, a), {}, clock.device.compile_options(), frozenset()
    )
    assert plans(executable.program) == {"contract": "CUBLASLT"}
    assert clock.timed == []


def test_without_room_to_measure_the_rule_decides(clock, monkeypatch):
    def full(gpu, size):
        raise measure.OutOfMemory("cuda", "the GPU is out of memory.")

    monkeypatch.setattr(measure, "filled", full)
    for size, worth, name in ((20, 1, "CUBLASLT"), (24, 1 << 40, "TRITON")):
        monkeypatch.setattr(measure, "WORTH", {"product": worth, "convolution": worth})
        a = np.ones((16, size), np.float32)
        executable = clock.device.executable(
            weft.make_graph(lambda a: a @ a.mT, a), {}, clock.device.compile_options(), frozenset()
        )
        assert plans(executable.program) == {"contract": name}


def test_the_clock_measures_recorded_work(machine):
    """The median of several replays, after one that does not count; short work several times in a row."""
    ran = []

    def enqueue():
        machine.gpu._do(lambda: ran.append(machine.gpu.recording is None))

    assert 0 < measure.seconds(machine.gpu, enqueue) < 1
    assert len(ran) == 2 + measure.MOST * (1 + measure.RUNS)
    assert machine.gpu.replayed == 1 + measure.RUNS


def test_memory_is_filled_with_numbers_to_its_end(machine):
    for size in (2, 30, measure.BLOCK, 3 * measure.BLOCK + 6):
        room = measure.filled(machine.gpu, size)
        there = np.empty(size // 2, np.uint16)
        machine.gpu.download(there, room.address)
        assert there.min() >= 0x3000
        assert there.max() < 0x3C00
        counted()


# --- find_algorithms ----------------------------------------------------------------------------------------------------------------


OTHERS = {"DEPTHWISE", "FFT", "FFT_TILED"}  # algorithms for depthwise convolutions and for large filters


def test_a_table_of_all_algorithms(machine):
    table = find_algorithms(weft.ones((2, 4, 4, 5)), weft.ones((8, 4, 3, 2)), padding=1, stride=2)
    for word in ("forward", "data", "filter"):
        rows = {row.name: row for row in table.rows if row.direction == word}
        assert set(rows) == set(GPU_ALGORITHMS) - OTHERS
        for row in rows.values():
            assert row.milliseconds > 0
            assert row.gflops > 0
            assert row.error < 2e-6
            assert row.deterministic
        assert rows["GEMM"].workspace > 0
        assert rows["DIRECT"].workspace == rows["LOOPS"].workspace == 0
        assert rows["CUDNN"].workspace >= 64  # of the plan; the result of a filter's gradient besides
        counted(len(rows))
    assert {name for refused in table.refused.values() for name in refused} == OTHERS
    assert "cuda" in str(table)


def test_a_table_says_what_cannot_be(machine):
    machine.dnn.refuse = True
    table = find_algorithms(weft.ones((1, 3, 5, 5)), weft.ones((2, 3, 3, 3)), direction="forward")
    assert {row.name for row in table.rows} == set(GPU_ALGORITHMS) - OTHERS - {"CUDNN"}
    assert table.refused["forward"]["CUDNN"] == "CUDNN has no kernel for it, or is not installed"
    assert table.refused["forward"]["DEPTHWISE"] == "DEPTHWISE is for depthwise convolutions and their data gradients"
    wide = find_algorithms(
        weft.ones((1, 3, 5, 5), dtype="float64"), weft.ones((2, 3, 3, 3), dtype="float64"), direction="data"
    )
    assert [row.name for row in wide.rows] == ["LOOPS"]
    assert set(wide.refused["data"].values()) == {"float64 is computed by LOOPS only"}


def test_a_table_of_16_bits(machine):
    table = find_algorithms(
        weft.ones((2, 8, 5, 5), dtype="bfloat16"), weft.ones((8, 8, 3, 3), dtype="bfloat16"), direction="filter"
    )
    assert {row.name for row in table.rows} == set(GPU_ALGORITHMS) - OTHERS
    assert all(row.error < 0.02 for row in table.rows)


# --- to be read ---------------------------------------------------------------------------------------------------------------------


def test_generated_kernels_can_be_printed(machine):
    """Direct pooling and ReLU are loops by nature: one kernel, which reads its windows in place."""
    pooled = weft.jit(lambda x: weft.relu(weft.max_pool(x, 2)))
    [text] = pooled.sources(IMAGE)
    assert "def kernel(p0, p1, status):" in text
    assert text.count("tl.load(p0") == 4  # a window of 2 x 2
    assert text.count("tl.store(p1") == 1
    with weft.knobs.set(device="cpu"):
        assert any("define" in text for text in pooled.sources(IMAGE))


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_bias_and_relu_ride_on_a_convolution_of_the_library(machine, clock, precision):
    """The result is written once, and in 16 bits a copy of the bias is rounded for it."""
    machine.speeds.update(own=2.0, library=1.0)
    rng = np.random.default_rng(5)
    x, w = rng.normal(size=(2, 16, 6, 6)).astype(np.float32), rng.normal(size=(24, 16, 3, 3)).astype(np.float32) / 8
    weight, bias = weft.asarray(w), weft.asarray(rng.normal(size=24).astype(np.float32))

    @weft.jit(precision=precision)
    def layer(x):
        weight.assign(weight * 1.0)  # state lies as the library wants filters
        return weft.relu(weft.conv(x, weight, padding=1) + bias[:, None, None])

    with weft.knobs.set(device="cuda"):
        weight, bias = weight.to_device("cuda"), bias.to_device("cuda")
        for _ in range(3):
            found = layer(x).numpy()
    expected = defined(lambda x, w, b: weft.relu(weft.conv(x, w, padding=1) + b[:, None, None]), x, w, bias.numpy())[0]
    np.testing.assert_allclose(found, expected, rtol=0.03, atol=0.05 if precision else 1e-4)
    assert machine.dnn.runs


def phases(program):
    """What libraries do, and what our kernels do before and after them."""
    return [[phase.symbol for phase in plan.phases] for plan in program.plans.values()]


def compiled(made):
    return next(iter(made.programs.latest.values())).executable.program


@pytest.mark.parametrize("precision", [None, "float16"])
@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
def test_bias_and_activation_ride_on_a_product_of_the_library(clock, activation, precision):
    """The result of the first layer is of the operands' type, so in 16 bits a copy of its bias is rounded; the last is float32."""
    clock.speeds = {"own": 2.0, "library": 1.0}
    rng = np.random.default_rng(6)
    shapes = (24, 40), (40, 16), (16,), (16, 8), (8,)
    arrays = [(rng.normal(size=s) / 2).astype(np.float32) for s in shapes]
    active = weft.relu if activation == "relu" else partial(weft.gelu, approximate="tanh")

    def layers(x, w, b, v, c):
        return active(active(x @ w + b) @ v + c)

    made = weft.jit(layers, precision=precision)
    for _ in range(3):  # played, recorded, replayed
        near(made(*arrays).numpy(), defined(layers, *arrays)[0], 0.01 if precision else 2e-6)
    assert phases(compiled(made)) == ([["bias", "library"], ["library"]] if precision else [["library"], ["library"]])
    epilogues = {facts.get("EPILOGUE") for facts in clock.blas.records.values() if facts}
    assert clock.blas.Epilogue[{"relu": "RELU_BIAS", "gelu_tanh": "GELU_BIAS"}[activation]] in epilogues


def test_a_bias_that_never_changes_is_rounded_once(clock):
    """Its copy is kept; a new value is copied again."""
    clock.speeds = {"own": 2.0, "library": 1.0}
    rng = np.random.default_rng(8)
    x, w, v = ((rng.normal(size=s) / 2).astype(np.float32) for s in ((24, 40), (40, 16), (16, 8)))
    bias = weft.asarray(rng.normal(size=16).astype(np.float32)).realize()

    def layers(x, b):
        return weft.relu(x @ w + b) @ v

    made = weft.jit(lambda x: layers(x, bias), precision="float16")
    for run in range(6):
        if run == 3:
            bias.assign(bias * -2.0)
        near(made(x).numpy(), defined(layers, x, bias.numpy())[0], 0.01)
    program = compiled(made)
    assert phases(program) == [["bias", "library"], ["library"]]
    [copy] = [call for call in program.calls if call.phase is not None and call.phase.symbol == "bias"]
    assert copy.once
    assert program.memory.kept >= 32


def test_the_bias_of_merged_products_is_one_tensor(clock):
    """Queries, keys and values are one product, whose bias the library adds."""
    clock.speeds = {"own": 2.0, "library": 1.0}
    rng = np.random.default_rng(9)
    x = (rng.normal(size=(1, 128, 64)) / 4).astype(np.float32)
    weights = [(rng.normal(size=s) / 4).astype(np.float32) for s in ((64, 64),) * 3 + ((64,),) * 3]

    def joined(x, a, b, c, d, e, f):
        q, k, v = (
            (x @ w.mT + bias).reshape((1, 128, 4, 16)).permute(0, 2, 1, 3) for w, bias in ((a, d), (b, e), (c, f))
        )
        return weft.dot_product_attention(q, k, v)

    made = weft.jit(joined, precision="float16")
    for _ in range(3):
        near(made(x, *weights).numpy(), defined(joined, x, *weights)[0], 0.02)
    assert "bias" in {spec.epilogue for spec in clock.libraries._ready if isinstance(spec, ProductSpec)}


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_residual_rides_on_a_product_of_the_library(clock, kind):
    """One that another kernel has to compute as well, which stores it."""
    clock.speeds = {"own": 2.0, "library": 1.0}
    rng, dtype = np.random.default_rng(7), weft.dtypes.as_dtype(kind, "test").numpy
    arrays = [(rng.normal(size=s) / 4).astype(dtype) for s in ((32, 64), (32, 64), (64, 64), (64,))]

    def block(x, y, w, b):
        stream = x + y
        return stream + (weft.layer_norm(stream) @ w.mT + b)

    made = weft.jit(block)
    for _ in range(3):
        near(made(*arrays).numpy().astype(np.float32), defined(block, *arrays)[0].astype(np.float32), 0.03)
    assert [spec.residual for spec in clock.libraries._ready if spec.epilogue == "bias"] == [True]
    assert phases(compiled(made)) == [["library"]]


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_a_residual_rides_on_a_convolution_of_the_library(clock, kind):
    clock.speeds = {"own": 2.0, "library": 1.0}
    rng, dtype = np.random.default_rng(7), weft.dtypes.as_dtype(kind, "test").numpy
    shapes = (2, 6, 6, 16), (16, 3, 3, 16), (16,), (16, 3, 3, 16), (16,)
    arrays = [(rng.normal(size=s) / 4).astype(dtype) for s in shapes]

    def block(x, w, b, v, c):
        x, w, v = (weft.permute_dims(t, (0, 3, 1, 2)) for t in (x, w, v))
        y = weft.relu(weft.conv(x, w, b, padding=1))
        return weft.permute_dims(weft.relu(weft.conv(y, v, c, padding=1) + y), (0, 2, 3, 1))

    made = weft.jit(block)
    for _ in range(3):
        near(made(*arrays).numpy().astype(np.float64), defined(block, *arrays)[0], 0.02 if kind == "bfloat16" else 2e-6)
    assert phases(compiled(made)) == [["library"], ["library"]]
    assert clock.dnn.runs


def test_nothing_of_cudnn_outlives_the_interpreter():
    """Its bindings report what does as a leak, in many lines."""
    program = """
import os, sys, types
class Handle:
    def __del__(self, is_finalizing=sys.is_finalizing, write=os.write):
        write(1, b"too late" if is_finalizing() else b"released")
sys.modules["cudnn"] = types.SimpleNamespace(create_handle=Handle, backend_version_string=lambda: "9")
from weft.runtime.cuda import device, dnn
device._found.append(dnn.handle(0))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("released", "")


# --- 8 bits -------------------------------------------------------------------------------------------------------------------------


def requantized(x, w):
    return weft.requantize(weft.matmul(x, w.mT, dtype="int32") + 7, 0.001, 3)


@pytest.mark.parametrize(
    "f", [lambda x, w: weft.matmul(x, w.mT, dtype="int32"), requantized], ids=["alone", "with an epilogue"]
)
def test_cublaslt_multiplies_int8(machine, f):
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((3, 20, 36), (3, 24, 36)))
    with weft.knobs.set(device="reference"):
        expected = f(weft.asarray(x), weft.asarray(w)).numpy()
    with weft.knobs.set(matmul_algorithm="CUBLASLT"):
        made = weft.jit(f)
        for _ in range(3):
            np.testing.assert_array_equal(made(x, w).numpy(), expected)
    assert {run[-1] for run in machine.blas.runs} == {72}
    counted()


@pytest.mark.parametrize(("formats", "able"), [(("e4m3", "e5m2"), True), (("e5m2", "e5m2"), False)])
def test_cublaslt_multiplies_float8(machine, formats, able):
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((32, 64), (48, 64)))

    def f(x, w, scale):
        codes = weft.to_float8(x, scale, format=formats[0]), weft.to_float8(w, 0.2, format=formats[1])
        return weft.float8_matmul(*codes, scale, 0.2, formats=formats).astype("bfloat16")

    arrays = x, w, np.float32(0.1)
    with weft.knobs.set(device="reference"):
        expected = f(*map(weft.asarray, arrays)).astype("float32").numpy()
    with weft.knobs.set(matmul_algorithm="CUBLASLT"):
        made = weft.jit(f)
        near(made(*arrays).astype("float32").numpy(), expected, 4e-3)
        near(made(*arrays).astype("float32").numpy(), expected, 4e-3)
    assert bool(machine.blas.runs) == able
    [plan] = next(iter(made.programs.latest.values())).executable.program.plans.values()
    assert [phase.symbol for phase in plan.phases] == (["library"] if able else ["whole"])  # scales included


def test_the_forecast_has_the_workspace_of_the_chosen_algorithm(clock, monkeypatch):
    clock.speeds = {"own": 2.0, "library": 1.0}
    monkeypatch.setattr(Libraries, "_seconds", lambda self, call, addresses: 1 / (1 + call.workspace))
    x, w = IMAGE.astype(np.float16), FILTER.astype(np.float16)
    step = weft.jit(convolved)
    step(x, w).numpy()
    how = (step.lower(x, w), {}, clock.device.compile_options(), frozenset())
    found = clock.device.executable(*how).facts
    assert found.workspace > 0
    assert clock.device.planned(*how) == found
    assert step.memory(x, w).work == found.arena + found.workspace + found.kept


def test_the_forecast_assumes_the_usual_limit_until_an_algorithm_is_chosen(machine):
    unknown = ProductSpec(1, 64, 64, 64, (0, 64, 1), (0, 64, 1), "float16", "float16", "float16")
    assert machine.libraries.planned_workspace(unknown) == blas.WORKSPACE
    assert machine.libraries.planned_workspace(replace(unknown, workspace=100)) == 100
    machine.libraries.ready(unknown)
    assert machine.libraries.planned_workspace(unknown) == machine.libraries.ready(unknown).workspace < blas.WORKSPACE
