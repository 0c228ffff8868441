"""Matrix products and convolutions by NVIDIA's libraries: what they are told, taken at its word by NumPy, is what is wanted."""

import gc
import itertools
import sys
from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from fake_vendors import FakeCublasLt, FakeCudnn, gelu_slope
from weft.compiler.gpu.vendor.specs import ConvSpec, ProductSpec, Unsupported, from_json, lines, supported, to_json
from weft.errors import RunError, UserError
from weft.runtime.cuda import blas, dnn

TYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
PRODUCT = ProductSpec(1, 4, 5, 6, (24, 6, 1), (30, 5, 1))


def first_way(asked):
    """A product or convolution that is done in the most promising way."""
    asked.select_first()
    return asked


def convolution(direction="forward", spatial=(9, 8), kernel=(3, 2), **changes):
    """A spec with its output worked out, all else 1 or 0 unless it is said."""
    rank = len(spatial)
    facts = {"batch": 2, "channels": 6, "filters": 4, "stride": (1,) * rank, "dilation": (1,) * rank}
    facts |= {"padding_before": (0,) * rank, "padding_after": (0,) * rank} | changes
    names = ("padding_before", "padding_after", "dilation", "stride")
    sizes = zip(spatial, kernel, *(facts[name] for name in names), strict=True)
    output = tuple((n + p + q - (k - 1) * d - 1) // s + 1 for n, k, p, q, d, s in sizes)
    return ConvSpec(direction, spatial=spatial, kernel=kernel, output=output, **facts)


# --- descriptions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [PRODUCT, convolution(epilogue=("bias", "relu")), replace(PRODUCT, epilogue="bias")])
def test_descriptions_survive_as_text(spec):
    assert from_json(to_json(spec)) == spec
    assert hash(from_json(to_json(spec))) == hash(spec)


def test_arguments_have_names():
    assert replace(PRODUCT, epilogue="bias_relu").arguments == ("a", "b", "bias", "c")
    assert replace(PRODUCT, epilogue="relu").arguments == ("a", "b", "c")
    assert replace(PRODUCT, epilogue="bias_gelu_tanh_sum").arguments == ("a", "b", "bias", "sum", "c")
    assert replace(PRODUCT, epilogue="dgelu_tanh").arguments == ("a", "b", "sum", "c")
    assert convolution(epilogue=("bias", "residual", "relu")).arguments == ("x", "w", "bias", "residual", "y")
    assert convolution("data_gradient").arguments == ("dy", "w", "dx")
    assert convolution("filter_gradient").arguments == ("x", "dy", "dw")


@pytest.mark.parametrize(
    ("matrix", "lying"),
    [
        ((2, 3, 3, 1), (False, 3)),
        ((2, 3, 8, 1), (False, 8)),
        ((2, 3, 1, 2), (True, 2)),
        ((2, 3, 1, 9), (True, 9)),
        ((1, 3, 77, 1), (False, 3)),  # the distance of rows is nothing if there is one
        ((2, 1, 5, 77), (False, 5)),
        ((1, 3, 1, 5), (True, 5)),
        ((1, 1, 0, 0), (False, 1)),
        ((2, 3, 6, 2), None),
        ((2, 3, 2, 1), None),  # rows overlap
        ((2, 3, 0, 1), None),  # one row, repeated
    ],
)
def test_how_matrices_lie(matrix, lying):
    assert lines(*matrix) == lying


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"epilogue": "bias_gelu_tanh"}, True),
        ({"epilogue": "gelu"}, False),  # by erf, which cuBLASLt has not
        ({"epilogue": "dgelu_tanh", "n": 8, "b_strides": (48, 8, 1)}, True),
        ({"epilogue": "dgelu_tanh"}, False),  # rows of 5 do not begin where wide loads may
        ({"epilogue": "dgelu_tanh", "n": 8, "b_strides": (48, 8, 1), "batch": 2}, False),
        ({"k": 0}, False),
        ({"m": 2**31}, False),
        ({"a_strides": (48, 12, 2)}, False),
        ({"b_strides": (0, 1, 6)}, True),
        ({"b_dtype": "float16"}, False),
        ({"c_dtype": "float16"}, False),
        ({"a_dtype": "float16", "b_dtype": "float16"}, True),
        ({"a_dtype": "float16", "b_dtype": "float16", "c_dtype": "bfloat16"}, False),
        ({"a_dtype": "int32", "b_dtype": "int32", "c_dtype": "int32"}, False),
        ({"a_dtype": "float64", "b_dtype": "float64", "c_dtype": "float64"}, True),
        ({"a_dtype": "float64", "b_dtype": "float64", "c_dtype": "float64", "epilogue": "relu"}, False),
    ],
)
def test_supported_products(change, expected):
    assert supported(replace(PRODUCT, **change)) is expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"direction": "backward"}, False),
        ({"output": (7, 8)}, False),
        ({"groups": 4}, False),
        ({"padding_before": (-1, 0), "output": (6, 7)}, False),
        ({"padding_before": (1, 0), "output": (8, 7)}, True),
        ({"batch": 0}, False),
        ({"batch": 2**24}, False),
        ({"epilogue": ("relu", "bias")}, False),
        ({"epilogue": ("bias", "gelu")}, False),
        ({"epilogue": ("residual", "relu")}, True),
        ({"direction": "data_gradient", "epilogue": ("relu",)}, False),
        ({"dtype": "float64", "result_dtype": "float64"}, False),
        ({"dtype": "bfloat16", "result_dtype": "bfloat16"}, True),
        ({"dtype": "bfloat16"}, False),
        ({"dtype": "bfloat16", "channels": 16, "filters": 8}, True),
        ({"dtype": "bfloat16", "channels": 16, "filters": 8, "groups": 2}, False),
        ({"result_dtype": "float16"}, False),
    ],
)
def test_supported_convolutions(change, expected):
    assert supported(replace(convolution(), **change)) is expected


def test_four_dimensions_of_space_are_too_many():
    assert supported(convolution(spatial=(4, 4, 4), kernel=(2, 2, 2)))
    assert not supported(convolution(spatial=(4, 4, 4, 4), kernel=(2, 2, 2, 2)))


# --- without the packages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handle", "module", "package"),
    [(blas.BlasHandle, "nvmath.bindings.cublasLt", "nvmath-python"), (dnn.DnnHandle, "cudnn", "nvidia-cudnn-frontend")],
)
def test_missing_packages_are_named(handle, module, package, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"{package} is missing .*pip install '\.\[cuda\]'"):
        handle()


def test_libraries_that_do_not_start(cublas, cudnn, monkeypatch):
    def fail(*_):
        raise RuntimeError("no driver")

    def refuse():
        raise cublas.cuBLASLtError("NOT_INITIALIZED")

    monkeypatch.setattr(cublas, "create", fail)
    with pytest.raises(UserError, match=r"cuBLASLt does not start \(no driver\)"):
        blas.BlasHandle()
    monkeypatch.setattr(cublas, "create", refuse)
    with pytest.raises(UserError, match=r"cuBLASLt does not start \(NOT_INITIALIZED\)"):
        blas.BlasHandle()
    monkeypatch.setattr(cudnn, "create_handle", fail)
    with pytest.raises(UserError, match=r"cuDNN does not start \(no driver\)"):
        dnn.DnnHandle()


# --- cuBLASLt -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cublas(monkeypatch):
    fake = FakeCublasLt()
    kinds = SimpleNamespace(COMPUTE_32F=68, COMPUTE_32F_FAST_TF32=77, COMPUTE_64F=70)
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublasLt", fake)
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublas", SimpleNamespace(ComputeType=kinds))
    return fake


def matrices(rng, batch, rows, columns, turned, gap, dtype):
    """A batch of matrices whose rows (or columns) lie further apart than they must, and the strides."""
    line, count = (rows, columns) if turned else (columns, rows)
    memory = rng.uniform(-1, 1, (batch, count, line + gap)).astype(dtype)
    values = memory[:, :, :line].swapaxes(1, 2) if turned else memory[:, :, :line]
    return memory, values, tuple(s // memory.itemsize for s in values.strides)


@pytest.mark.parametrize(("a_turned", "b_turned"), [*itertools.product([False, True], repeat=2)])
@pytest.mark.parametrize("sizes", [(1, 4, 5, 6), (3, 7, 1, 2), (2, 1, 8, 3), (2, 3, 4, 1)])
@pytest.mark.parametrize(("dtype", "result"), [("float32", "float32"), ("bfloat16", "float32"), ("float64", "float64")])
def test_products(cublas, a_turned, b_turned, sizes, dtype, result):
    batch, m, n, k = sizes
    rng = np.random.default_rng(sum(sizes))
    a_memory, a, a_strides = matrices(rng, batch, m, k, a_turned, 3, TYPES[dtype])
    b_memory, b, b_strides = matrices(rng, batch, k, n, b_turned, 2, TYPES[dtype])
    spec = ProductSpec(batch, m, n, k, a_strides, b_strides, dtype, dtype, result)
    assert supported(spec)
    c = np.full((batch, m, n), np.nan, TYPES[result])
    product = first_way(blas.Product(spec, None, blas.BlasHandle()))
    product.run([a_memory.ctypes.data, b_memory.ctypes.data, c.ctypes.data], 4, 9)
    np.testing.assert_allclose(c, a.astype(float) @ b.astype(float), rtol=1e-6)
    assert cublas.runs == [(0, 4096, 4, 9, 70 if dtype == "float64" else 68)]


def test_one_matrix_for_all_of_a_batch(cublas):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 4, 6)).astype(np.float32), rng.normal(size=(6, 5)).astype(np.float32)
    c = np.zeros((3, 4, 5), np.float32)
    spec = ProductSpec(3, 4, 5, 6, (24, 6, 1), (0, 5, 1))
    first_way(blas.Product(spec, None, blas.BlasHandle())).run([a.ctypes.data, b.ctypes.data, c.ctypes.data], 0, 0)
    np.testing.assert_allclose(c, a.astype(float) @ b, rtol=1e-5)


@pytest.mark.parametrize("epilogue", ["bias", "relu", "bias_relu", "gelu_tanh", "bias_gelu_tanh"])
def test_epilogues(cublas, epilogue):
    rng = np.random.default_rng(1)
    a, b, bias = (rng.normal(size=size).astype(np.float32) for size in ((4, 6), (6, 5), (5,)))
    c = np.zeros((4, 5), np.float32)
    spec = replace(PRODUCT, epilogue=epilogue)
    named = {"a": a, "b": b, "bias": bias, "c": c}
    product = first_way(blas.Product(spec, None, blas.BlasHandle()))
    product.run([named[name].ctypes.data for name in spec.arguments], 0, 0)
    expected = a.astype(float) @ b + (bias if "bias" in epilogue else 0)
    if "relu" in epilogue:
        expected = np.maximum(expected, 0)
    if "gelu" in epilogue:
        expected = expected / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (expected + 0.044715 * expected**3)))
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("epilogue", ["gelu_tanh_sum", "bias_gelu_tanh_sum", "dgelu_tanh"])
def test_the_sum_of_a_gelu_is_written_or_read(cublas, epilogue):
    rng = np.random.default_rng(2)
    shapes = {"a": (4, 6), "b": (6, 8), "bias": (8,), "sum": (4, 8), "c": (4, 8)}
    named = {name: rng.normal(size=size).astype(np.float32) for name, size in shapes.items()}
    spec, given = replace(PRODUCT, n=8, b_strides=(48, 8, 1), epilogue=epilogue), named["sum"].copy()
    product = first_way(blas.Product(spec, None, blas.BlasHandle()))
    product.run([named[name].ctypes.data for name in spec.arguments], 0, 0)
    sums = named["a"].astype(float) @ named["b"] + (named["bias"] if "bias" in epilogue else 0)
    if epilogue == "dgelu_tanh":
        expected, kept = gelu_slope(sums, given.astype(float)), given
    else:
        expected, kept = sums / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (sums + 0.044715 * sums**3))), sums
    np.testing.assert_allclose(named["c"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(named["sum"], kept, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("epilogue", ["", "bias_relu"])
def test_a_residual_is_added(cublas, epilogue, in_place):
    rng = np.random.default_rng(3)
    shapes = {"a": (4, 6), "b": (6, 5), "bias": (5,), "residual": (4, 5), "c": (4, 5)}
    named = {name: rng.normal(size=size).astype(np.float32) for name, size in shapes.items()}
    expected = named["a"].astype(float) @ named["b"] + named["residual"]
    if epilogue:
        expected = np.maximum(expected + named["bias"], 0)
    if in_place:
        named["c"] = named["residual"]
    spec = replace(PRODUCT, epilogue=epilogue, residual=True)
    assert spec.arguments == ("a", "b", *(["bias"] if epilogue else []), "residual", "c")
    first_way(blas.Product(spec, None, blas.BlasHandle())).run([named[n].ctypes.data for n in spec.arguments], 0, 0)
    np.testing.assert_allclose(named["c"], expected, rtol=1e-5, atol=1e-6)


def test_ways_within_the_workspace(cublas):
    product = first_way(blas.Product(PRODUCT, 4096, blas.BlasHandle()))
    assert (product.candidates, product.workspace, product.deterministic) == (2, 4096, True)
    product.select(1)
    assert product.workspace == 0
    a, b, c = np.ones((4, 6), np.float32), np.ones((6, 5), np.float32), np.zeros((4, 5), np.float32)
    product.run([a.ctypes.data, b.ctypes.data, c.ctypes.data], 0, 3)
    assert cublas.runs == [(1, 0, 0, 3, 68)]
    assert product.name == "algorithm 0, tile 1, split 2"
    assert first_way(blas.Product(PRODUCT, 4095, blas.BlasHandle())).candidates == 1
    assert (
        first_way(blas.Product(replace(PRODUCT, epilogue="relu"), 4096, blas.BlasHandle())).workspace == 0
    )  # 16 bytes are kept free
    cublas.ways = ()
    with pytest.raises(Unsupported, match="NOT_SUPPORTED"):
        first_way(blas.Product(PRODUCT, None, blas.BlasHandle()))


def test_tf32_is_asked_for(cublas):
    product = first_way(blas.Product(replace(PRODUCT, tf32=True), None, blas.BlasHandle()))
    a, b, c = np.ones((4, 6), np.float32), np.ones((6, 5), np.float32), np.zeros((4, 5), np.float32)
    product.run([a.ctypes.data, b.ctypes.data, c.ctypes.data], 0, 0)
    assert cublas.runs[0][-1] == 77


def test_failing_products_say_which(cublas, monkeypatch):
    product = first_way(blas.Product(PRODUCT, None, blas.BlasHandle()))

    def fail(*_):
        raise cublas.cuBLASLtError("CUBLAS_STATUS_EXECUTION_FAILED")

    monkeypatch.setattr(cublas, "matmul", fail)
    with pytest.raises(RunError, match=r"EXECUTION_FAILED \(ProductSpec\(batch=1, m=4"):
        product.run([1, 2, 3], 0, 0)


def test_matrices_that_do_not_lie_in_lines(cublas):
    with pytest.raises(Unsupported, match="neither rows nor columns"):
        first_way(blas.Product(replace(PRODUCT, a_strides=(48, 12, 2)), None, blas.BlasHandle()))


def test_records_are_given_back(cublas):
    product = first_way(blas.Product(PRODUCT, None, blas.BlasHandle()))
    assert len([r for r in cublas.records.values() if r is not None]) == 4
    del product
    gc.collect()
    assert not any(r is not None for r in cublas.records.values())


# --- cuDNN --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cudnn(monkeypatch):
    fake = FakeCudnn()
    monkeypatch.setitem(sys.modules, "cudnn", fake)
    return fake


def windows(spec):
    """Each element of y with the elements of x and w that it comes from: (y index, x index, tap) without batch and channels."""
    for out in itertools.product(*map(range, spec.output)):
        for tap in itertools.product(*map(range, spec.kernel)):
            facts = zip(out, tap, spec.stride, spec.dilation, spec.padding_before, strict=True)
            place = tuple(o * s + t * d - p for o, t, s, d, p in facts)
            if all(0 <= i < n for i, n in zip(place, spec.spatial, strict=True)):
                yield out, place, tap


def defined(spec, x, w, y):
    """The definition of a direction, element by element of space: the one array that is None is worked out."""
    x_out, w_out, y_out = (np.zeros(spec.sizes(name)) for name in "xwy")
    c, f = spec.channels // spec.groups, spec.filters // spec.groups
    for g in range(spec.groups):
        ins, outs = slice(g * c, (g + 1) * c), slice(g * f, (g + 1) * f)
        for out, place, tap in windows(spec):
            here, there, which = (slice(None), *out, outs), (slice(None), *place, ins), (outs, *tap)
            if y is None:
                y_out[here] += x[there] @ w[which].T
            elif x is None:
                x_out[there] += y[here] @ w[which]
            else:
                w_out[which] += y[here].T @ x[there]
    return y_out if y is None else x_out if x is None else w_out


CASES = [
    {},
    {"padding_before": (1, 1), "padding_after": (1, 1)},
    {"padding_before": (0, 1), "padding_after": (1, 0), "stride": (2, 2)},
    {"dilation": (2, 3), "stride": (1, 2)},
    {"groups": 2},
    {"channels": 6, "filters": 12, "groups": 6},
    {"spatial": (11,), "kernel": (4,), "padding_before": (2,), "padding_after": (1,), "stride": (3,)},
    {"spatial": (4, 5, 3), "kernel": (2, 3, 1), "padding_before": (1, 0, 0), "padding_after": (1, 0, 0)},
    {"channels": 1, "filters": 3, "kernel": (1, 1)},
]


@pytest.mark.parametrize("direction", ["forward", "data_gradient", "filter_gradient"])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("dtype", "result"), [("float32", "float32"), ("float16", "float32")])
def test_convolutions(cudnn, direction, case, dtype, result):
    spec = convolution(direction, dtype=dtype, result_dtype=result, tf32=True, **case)
    rng = np.random.default_rng(3)
    *inputs, result_name = spec.arguments
    given = {name: rng.uniform(-1, 1, spec.sizes(name)).astype(TYPES[dtype]) for name in inputs}
    computed = np.full(spec.sizes(result_name), np.nan, TYPES[result])
    conv = first_way(dnn.Convolution(spec, None, dnn.DnnHandle()))
    conv.run([*(array.ctypes.data for array in given.values()), computed.ctypes.data], 12, 34)
    wide = {name.strip("d"): array.astype(float) for name, array in given.items()}
    expected = defined(spec, wide.get("x"), wide.get("w"), wide.get("y"))
    np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=1e-6)
    assert cudnn.runs == [("fast", 12, "handle", 34)]


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize(
    "epilogue",
    [("bias",), ("residual",), ("relu",), ("bias", "relu"), ("residual", "relu"), ("bias", "residual", "relu")],
)
def test_what_follows_a_convolution(cudnn, epilogue, rank):
    spec = convolution(spatial=(7, 6)[:rank], kernel=(2, 3)[:rank], epilogue=epilogue, tf32=True)
    rng = np.random.default_rng(4)
    arrays = {name: rng.normal(size=spec.sizes(name)).astype(np.float32) for name in spec.arguments}
    first_way(dnn.Convolution(spec, None, dnn.DnnHandle())).run(
        [arrays[name].ctypes.data for name in spec.arguments], 0, 0
    )
    expected = defined(spec, arrays["x"], arrays["w"], None)
    expected = expected + arrays.get("bias", 0) + arrays.get("residual", 0)
    expected = np.maximum(expected, 0) if "relu" in epilogue else expected
    np.testing.assert_allclose(arrays["y"], expected, rtol=1e-4, atol=1e-5)


def test_plans_that_break_a_promise_are_not_had(cudnn):
    conv = first_way(dnn.Convolution(convolution(tf32=True), None, dnn.DnnHandle()))
    assert (conv.candidates, conv.selected, conv.name, conv.workspace, conv.deterministic) == (4, 1, "fast", 4096, True)
    with pytest.raises(Unsupported, match="plan 0: Deselecting"):
        conv.select(0)
    assert conv.name == "fast"
    assert [conv.compiles(n) for n in range(4)] == [False, False, True, False]
    conv.select(2)
    assert (conv.name, conv.workspace) == ("lean", 0)
    assert first_way(dnn.Convolution(convolution(tf32=False), None, dnn.DnnHandle())).name == "exact"
    assert (
        first_way(dnn.Convolution(convolution(dtype="bfloat16", result_dtype="bfloat16"), None, dnn.DnnHandle())).name
        == "fast"
    )


def test_only_what_is_selected_is_built(cudnn):
    conv = dnn.Convolution(convolution(tf32=True), None, dnn.DnnHandle())
    assert (conv.candidates, cudnn.builds) == (4, [])
    conv.select(2)
    assert cudnn.builds == [2]


def test_plans_within_the_workspace(cudnn):
    assert first_way(dnn.Convolution(convolution(tf32=True), 4095, dnn.DnnHandle())).name == "lean"
    with pytest.raises(Unsupported, match="none of 4 plans"):
        first_way(dnn.Convolution(convolution(), 63, dnn.DnnHandle()))


def test_refusals_are_one_line(cudnn):
    cudnn.refuse = True
    with pytest.raises(Unsupported, match=r"^cuDNN: no engine$"):
        first_way(dnn.Convolution(convolution(), None, dnn.DnnHandle()))


def test_failing_convolutions_say_which_plan(cudnn, monkeypatch):
    conv = first_way(dnn.Convolution(convolution(), None, dnn.DnnHandle()))

    def fail(*_, **__):
        raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")

    monkeypatch.setattr(cudnn.graph, "execute", fail)
    with pytest.raises(RunError, match="plan exact of a convolution failed: CUDNN_STATUS_EXECUTION_FAILED"):
        conv.run([1, 2, 3], 0, 0)
    with pytest.raises(ValueError, match="shorter"):
        conv.run([1, 2], 0, 0)
