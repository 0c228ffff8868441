"""Products with weights of 2:4 sparsity on GPUs: cuSPARSELt, played by NumPy on a GPU made of the host's memory, and what happens without it."""

import sys

import numpy as np
import pytest

import weft
from weft import compress, nn, optim
from weft.nn.activations import activation
from weft.ops.semi_sparse import semi_sparse_weight
from weft.testing import counted, generator

pytest.importorskip("triton")
import fake_gpu
from fake_cusparselt import FakeCusparseLt
from gpu_algorithm_tools import near
from test_gpu_libraries import clock as clock
from test_gpu_libraries import deferred
from test_gpu_libraries import machine as machine
from weft.runtime.cuda import libraries, sparse_blas


@pytest.fixture
def sparse(machine, monkeypatch):
    """cuSPARSELt beside the other libraries, faster than them; `sparse.fast = False` makes it slower."""
    module = FakeCusparseLt()
    module.fast = True
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cusparseLt", module)
    sparse_blas.handle.cache_clear()
    for kind in (sparse_blas.WeightCompression, sparse_blas.SparseProduct):
        monkeypatch.setattr(kind, "run", deferred(machine.gpu, kind.run))

    def seconds(gpu, enqueue):
        before = len(module.runs)
        enqueue()
        return (1.0 if module.fast else 3.0) if len(module.runs) > before else 2.0

    monkeypatch.setattr(libraries, "seconds", seconds)
    monkeypatch.setattr(libraries, "LEAST_COMPRESSED", 1)
    yield module
    sparse_blas.handle.cache_clear()


def layer(inputs=32, outputs=48, dtype="float16", **how):
    """A pruned layer as it is stored, and its dense twin."""
    weft.seed(len(how) + inputs)
    dense, made = (nn.Sequential(nn.Linear(inputs, outputs, **how)).eval() for _ in range(2))
    for model in (dense, made):
        model[0].weight = weft.parameter(weight(outputs, inputs).astype("float32"))
        if model[0].bias is not None:
            model[0].bias = weft.parameter(generator("bias").normal(size=outputs).astype(np.float32))
    compress.prune_n_of_m(dense, 2, 4)
    compress.prune_n_of_m(made, 2, 4)
    compress.semi_sparse(made)
    return made.astype(dtype), dense.astype(dtype)


def weight(*shape):
    return generator(str(shape)).normal(size=shape)


def exact(dense, x):
    """By the definition, in float64."""
    [linear] = dense
    w, b = linear.weight.astype("float64").numpy(), linear.bias.astype("float64").numpy()
    with weft.knobs.set(device="reference"):
        return activation(linear.activation)(weft.asarray(x.astype(np.float64) @ w.T + b)).numpy()


def after(made, x, count=4):
    """The result of the last of some calls: played, recorded, replayed."""
    for _ in range(count):
        found = made(x)
    counted()
    return found.astype("float32").numpy()


@pytest.mark.parametrize("rows", [1, 7, 8, 24])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("then", [None, "relu", "gelu"])
def test_layers_multiply_the_compressed_weight(sparse, rows, dtype, then):
    made, dense = layer(dtype=dtype, activation=then)
    x = weft.asarray(weight(rows, 32)).astype(dtype)
    step = weft.jit(made)
    near(after(step, x), exact(dense, x.astype("float32").numpy()), 2e-3 if dtype == "float16" else 2e-2)
    number, *epilogue = sparse.runs[-1]
    assert number in (0, 2)  # the algorithms that can be had
    fused = (
        rows % 8 == 0 and then != "gelu"
    )  # rows that were added are cut off first, and cuSPARSELt has no gelu of ours
    assert epilogue == [fused, fused and then == "relu"]


def test_a_weight_that_stays_is_compressed_once(sparse):
    made, dense = layer()
    x = weft.asarray(weight(8, 32)).astype("float16")
    step = weft.jit(made)
    step(x).numpy()
    before, runs = sparse.compressions, len(sparse.runs)
    near(after(step, x), exact(dense, x.astype("float32").numpy()), 2e-3)
    assert sparse.compressions == before
    assert len(sparse.runs) == runs + 4
    values = compress.parametrization_of(made[0], "weight").values
    values.assign(np.roll(values.numpy(), 1))
    near(after(step, x), exact(made, x.astype("float32").numpy()), 2e-3)
    assert sparse.compressions > before


def test_values_that_are_passed_are_compressed_in_every_call(sparse):
    made, dense = layer()
    packed = compress.parametrization_of(made[0], "weight")
    product = weft.jit(lambda x, values, positions: x @ semi_sparse_weight(values, positions).T)
    x = weft.asarray(weight(16, 32)).astype("float16")
    for scale in (1.0, 2.0, 3.0, 4.0):
        values = packed.values.numpy() * np.float16(scale)
        before = sparse.compressions
        found = product(x, values, packed.positions.numpy()).astype("float32").numpy()
        expected = scale * x.astype("float32").numpy() @ dense[0].weight.astype("float32").numpy().T
        near(found, expected, 2e-3)
        assert sparse.compressions > before


def test_mixed_precision_rounds_to_16_bits(sparse):
    made, dense = layer(dtype="float32", activation="relu")
    x = weight(24, 32).astype(np.float32)
    near(after(weft.jit(made, precision="bfloat16"), x), exact(dense, x), 2e-2)
    assert sparse.runs
    sparse.runs.clear()
    near(after(weft.jit(made), x), exact(dense, x), 1e-5)  # float32 is multiplied as float32
    assert not sparse.runs


def test_a_dense_product_that_is_faster_is_taken(sparse):
    sparse.fast = False
    made, dense = layer()
    x = weft.asarray(weight(8, 32)).astype("float16")
    step = weft.jit(made)
    step(x).numpy()
    measured = len(sparse.runs)
    near(after(step, x), exact(dense, x.astype("float32").numpy()), 2e-3)
    assert len(sparse.runs) == measured > 0


@pytest.mark.parametrize(("inputs", "outputs"), [(40, 48), (32, 40)])
def test_sizes_that_the_library_refuses_are_multiplied_dense(sparse, inputs, outputs):
    made, dense = layer(inputs, outputs)
    x = weft.asarray(weight(8, inputs)).astype("float16")
    near(after(weft.jit(made), x), exact(dense, x.astype("float32").numpy()), 2e-3)
    assert not sparse.runs


def test_without_the_library_a_warning_says_so_once(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cusparseLt", None)
    monkeypatch.setattr(libraries, "LEAST_COMPRESSED", 1)
    sparse_blas.handle.cache_clear()
    made, dense = layer()
    x = weft.asarray(weight(8, 32)).astype("float16")
    with pytest.warns(UserWarning, match=r"nvmath-python is missing or too old .* multiplied as dense ones"):
        found = after(weft.jit(made), x)
    near(found, exact(dense, x.astype("float32").numpy()), 2e-3)
    after(weft.jit(lambda x: made(x) + 1), x)


def test_training_reaches_the_kept_values(sparse):
    """Gradients of a layer whose product is compressed are those of its dense twin, at the kept places."""
    made, dense = layer(dtype="float32")
    x = weight(16, 32).astype(np.float32)

    for model in (made, dense):
        optimizer = optim.sgd(model, rate=1e-3)

        @weft.jit(precision="bfloat16")
        def step(x, model=model, optimizer=optimizer):
            value = (model(x) ** 2).mean()
            optimizer.minimize(value)
            return value

        for _ in range(3):
            step(x).numpy()
    near(made[0].weight.numpy(), dense[0].weight.numpy(), 2e-2)
    assert sparse.runs


def test_a_saved_network_is_multiplied_compressed(sparse, tmp_path):
    made, dense = layer()
    weft.save(tmp_path / "net.weft", made, weft.zeros((8, 32), dtype="float16"))
    loaded = weft.load(tmp_path / "net.weft")
    x = weft.asarray(weight(8, 32)).astype("float16")
    sparse.runs.clear()
    near(after(loaded, x), exact(dense, x.astype("float32").numpy()), 2e-3)
    assert sparse.runs


def test_small_products_are_not_even_measured(sparse, monkeypatch):
    monkeypatch.setattr(libraries, "LEAST_COMPRESSED", 8 * 32 * 48 + 1)
    made, dense = layer()
    for rows, wanted in ((8, False), (16, True)):
        x = weft.asarray(weight(rows, 32)).astype("float16")
        near(after(weft.jit(made), x), exact(dense, x.astype("float32").numpy()), 2e-3)
        assert bool(sparse.runs) == wanted


def test_algorithms_of_float16_that_do_not_run_are_not_tried(sparse):
    """cuSPARSELt 0.8 lists some for float16 that end in an illegal instruction, which takes the whole process with it."""
    made, dense = layer(dtype="float16")
    x = weft.asarray(weight(8, 32)).astype("float16")
    near(after(weft.jit(made), x), exact(dense, x.astype("float32").numpy()), 2e-3)
    assert {number for number, *_ in sparse.runs} == {0, 2}


def test_the_gpu_must_have_sparse_tensor_cores(sparse, monkeypatch):
    monkeypatch.setattr(fake_gpu.FakeGpu, "capability", 75)
    made, dense = layer()
    x = weft.asarray(weight(8, 32)).astype("float16")
    near(after(weft.jit(made), x), exact(dense, x.astype("float32").numpy()), 2e-3)
    assert not sparse.runs
