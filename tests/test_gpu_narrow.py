"""Products of few bits on GPUs: int8, 8-bit floats, and weights of 8 and 4 bits that are decoded inside of the product. Kernels run under Triton's interpreter."""

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
from weft import compress, nn
from weft.compiler.gpu.device_functions import with_helpers
from weft.compiler.gpu.program import gpu_program
from weft.ops.grouped import grouped_weight
from weft.testing import counted, generator

pytest.importorskip("triton")
import fake_gpu
from triton_runner import run_program

# --- numbers --------------------------------------------------------------------------------------------------------------------------


def programmed(f: Any, *arrays: np.ndarray) -> tuple[dict[str, str], list[np.ndarray]]:
    """The plan of each product, and the results."""
    program = gpu_program(weft.make_graph(f, *arrays), {})
    plans = {kernel.anchor.op.name: plan.name for kernel, plan in program.plans.items() if kernel.anchor is not None}
    return plans, run_program(program, list(arrays))


def defined(f: Any, *arrays: np.ndarray) -> np.ndarray:
    with weft.knobs.set(device="reference"):
        result: np.ndarray = f(*map(weft.asarray, arrays)).numpy()
    return result


def integers(*shape: int) -> np.ndarray:
    return generator(str(shape)).integers(-128, 128, shape).astype(np.int8)


def normal(*shape: int) -> np.ndarray:
    return generator(str(shape)).normal(size=shape).astype(np.float32)


def product(x: Any, w: Any) -> Any:
    return weft.matmul(x, w.mT, dtype="int32")


def layer(x: Any, w: Any) -> Any:
    return weft.requantize(weft.maximum(product(x, w), 0), 0.001, 3)


def convolution(**how: Any) -> Any:
    return lambda x, w: weft.conv(x, w, dtype="int32", **how)


def bordered(x: Any, w: Any) -> Any:
    """The border of a quantized image is its zero point."""
    return weft.conv(weft.pad(x, ((0, 0), (0, 0), (1, 2), (1, 1)), value=5), w, dtype="int32")


INTEGERS = {
    "a product": (product, (33, 70), (40, 70), {"contract_int8": "TRITON"}),
    "a batch of products": (product, (3, 5, 64), (3, 32, 64), {"contract_int8": "TRITON"}),
    "long sums, requantized": (layer, (33, 700), (40, 700), {"contract_int8": "TRITON, in parts"}),
    "a strided convolution": (convolution(stride=2, padding=1), (2, 6, 9, 8), (10, 6, 3, 3), {"conv_int8_last": "IMPLICIT_GEMM"}),
    "a border that is not zero": (bordered, (2, 16, 6, 5), (10, 16, 3, 3), {"conv_int8_last": "IMPLICIT_GEMM"}),
    "groups": (convolution(padding=1, groups=2), (1, 16, 4, 3), (6, 8, 3, 3), {"conv_int8_last": "IMPLICIT_GEMM"}),
    "one tap": (convolution(), (2, 8, 5, 4), (8, 8, 1, 1), {"contract_int8": "TRITON"}),
    "depthwise, by loops": (convolution(padding=1, groups=8), (2, 8, 5, 4), (8, 1, 3, 3), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_exact(name: str) -> None:
    f, x, w, expected = INTEGERS[name]
    arrays = integers(*x), integers(*w)
    plans, [found] = programmed(f, *arrays)
    assert plans == expected
    np.testing.assert_array_equal(found, defined(f, *arrays))
    counted()


def test_unsigned_integers_are_summed_by_loops() -> None:
    """The matrix units of GPUs multiply them, Triton does not."""
    arrays = integers(9, 20).view(np.uint8), integers(7, 20)
    plans, [found] = programmed(product, *arrays)
    assert not plans
    np.testing.assert_array_equal(found, defined(product, *arrays))


def test_textbook_kernels_of_integers() -> None:
    options = weft.options.CompileOptions("cuda", matmul_algorithm="NAIVE")
    x, w = integers(5, 12), integers(6, 12)
    program = gpu_program(weft.make_graph(product, x, w), {}, options)
    np.testing.assert_array_equal(run_program(program, [x, w])[0], defined(product, x, w))
    options = weft.options.CompileOptions("cuda", matmul_algorithm="TILED")
    assert [p.name for p in gpu_program(weft.make_graph(product, x, w), {}, options).plans.values()] == ["TRITON"]


@pytest.fixture
def on_gpu(monkeypatch: Any, tmp_path: Any) -> Any:
    """Runs a network, saved on the CPU, on a fake GPU: the names of its products, and its result."""
    fake_gpu.install(monkeypatch)
    written: list[str] = []

    def note(sources: Any, capability: int) -> Any:
        written.extend(source.body for source in sources)
        return fake_gpu.cast(sources, capability)

    monkeypatch.setattr("weft.compiler.gpu.compile_pool.compile_kernels", note)

    def run(model: Any, x: np.ndarray) -> tuple[set[str], np.ndarray]:
        weft.save(tmp_path / "network.weft", model, x)
        with weft.knobs.set(device="cuda", cache=str(tmp_path / "cache")):
            found = weft.jit(weft.load(tmp_path / "network.weft"))(weft.asarray(x)).numpy()
        return set(re.findall(r"# (con\w+|\d+ x \d+, .* weights of \d bits)", "".join(written))), found

    return run


def test_an_int8_network_has_the_bits_of_the_cpu(on_gpu: Any) -> None:
    weft.seed(0)
    block = nn.Residual(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1)), activation="relu")
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        block,
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )
    x = normal(2, 3, 6, 6)
    model.eval()(x)
    compress.int8(model, x, method="minmax", weight_method="minmax")
    fast = compress.to_int8(model)
    plans, found = on_gpu(fast, x)
    assert plans == {"conv_int8_last", "contract_int8"}
    np.testing.assert_array_equal(found, weft.jit(fast)(x).numpy())


# --- 8-bit floats -------------------------------------------------------------------------------------------------------------------

FORMATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
SPECIAL = [
    0,
    -0.0,
    np.nan,
    np.inf,
    -np.inf,
    448,
    464,
    465,
    -1e9,
    57344,
    1e5,
    2.0**-9,
    2.0**-10,
    3 * 2.0**-10,
    2.0**-17,
    2.0**-130,
]


@pytest.mark.parametrize("format", FORMATS)
def test_codes_are_those_of_ml_dtypes(format: Any) -> None:
    rng, dtype = generator(format), FORMATS[format]
    x = np.concatenate([rng.normal(size=2000) * 10.0 ** rng.uniform(-8, 6, 2000), SPECIAL]).astype(np.float32)
    info: Any = ml_dtypes.finfo
    most = float(info(dtype).max)
    expected = np.clip(x, -most, most).astype(dtype).view(np.uint8)
    encode, codes = weft.jit(lambda x: weft.to_float8(x, format=format)), np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(encode(x).numpy(), expected)
    np.testing.assert_array_equal(weft.to_float8(x, format=format).numpy(), expected)
    np.testing.assert_array_equal(programmed(lambda x: weft.to_float8(x, format=format), x)[1][0], expected)
    for decoded in (
        weft.jit(lambda c: weft.from_float8(c, format=format))(codes).numpy(),
        programmed(lambda c: weft.from_float8(c, format=format), codes)[1][0],
    ):
        np.testing.assert_array_equal(decoded, codes.view(dtype).astype(np.float32))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_float8_products_read_the_codes(precision: Any) -> None:
    x, w = normal(33, 70), normal(40, 70)

    def f(x: Any, w: Any) -> Any:
        return weft.float8_matmul(
            weft.to_float8(x, 0.1), weft.to_float8(w, 0.2, format="e5m2"), 0.1, 0.2, formats=("e4m3", "e5m2")
        )

    narrow = None if precision == "float32" else weft.bfloat16
    program = gpu_program(weft.make_graph(f, x, w), {}, weft.options.CompileOptions("cuda", narrow))
    [kernel] = [k for k in program.plans if k.anchor is not None]
    assert kernel.anchor.op.name == "contract_float8"
    assert [v.base.dtype for v in kernel.views] == [weft.uint8, weft.uint8]
    expected = defined(f, x, w)
    np.testing.assert_allclose(
        run_program(program, [x, w])[0],
        expected,
        rtol=0,
        atol=(1e-6 if narrow is None else 1e-2) * np.abs(expected).max(),
    )
    np.testing.assert_allclose(weft.jit(f)(x, w).numpy(), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert f(x, w).dtype is weft.float32


def test_older_gpus_multiply_8_bit_floats_as_float16() -> None:
    source = "strip = e4m3_numbers(codes)"
    assert "float8e4nv" in with_helpers(source, 90)
    assert "float8e4nv" not in with_helpers(source, 80)
    assert "e4m3_half" in with_helpers(source, 80)


# --- weights of 8 and 4 bits --------------------------------------------------------------------------------------------------------


def weighted(bits: int, shape: tuple[int, int]) -> Any:
    def f(x: Any, codes: Any, scale: Any) -> Any:
        return weft.relu(weft.matmul(x.astype("float32"), grouped_weight(codes, scale, bits=bits, shape=shape).T) + 1.0)

    return f


@pytest.mark.parametrize(
    ("bits", "group", "shape"), [(8, 96, (37, 96)), (8, 32, (16, 96)), (4, 32, (20, 64)), (4, 64, (20, 128))]
)
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_weights_are_decoded_inside_the_product(bits: int, group: int, shape: tuple[int, int], rows: int) -> None:
    rng = generator(f"{bits} {group} {rows}")
    codes = rng.integers(0, 256, np.prod(shape) * bits // 8).astype(np.uint8).view(np.int8 if bits == 8 else np.uint8)
    scale, f = rng.uniform(0.5, 1, np.prod(shape) // group).astype(np.float32), weighted(bits, shape)
    for dtype, tolerance in ((np.float32, 1e-6), (ml_dtypes.bfloat16, 8e-3)):
        x = rng.normal(size=(rows, shape[1])).astype(dtype)
        plans, [found] = programmed(f, x, codes, scale)
        assert plans == {"contract_grouped": "TRITON"}
        expected = defined(f, x, codes, scale)
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())
        counted()


@pytest.mark.parametrize(
    ("rows", "shape", "group"), [(65, (8, 64), 64), (2, (8, 24), 24)], ids=["many rows", "no whole runs"]
)
def test_other_products_decode_the_weight_first(rows: int, shape: tuple[int, int], group: int) -> None:
    codes, scale = integers(shape[0] * shape[1]), np.abs(normal(shape[0] * shape[1] // group))
    arrays = normal(rows, shape[1]), codes, scale
    plans, [found] = programmed(weighted(8, shape), *arrays)
    assert list(plans) == ["contract"]
    np.testing.assert_allclose(found, defined(weighted(8, shape), *arrays), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 1e-2)])
def test_weight_only_networks_use_it(on_gpu: Any, dtype: str, tolerance: float) -> None:
    weft.seed(0)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 7)).eval().astype(dtype)
    x = weft.asarray(normal(2, 5, 64)).astype(dtype).numpy()
    compress.weight_only(model, bits=4)
    plans, found = on_gpu(model, x)
    assert plans == {
        "10 x 48, each a sum of 64; weights of 4 bits",
        "contract",
    }  # 48 inputs of 4 bits are no whole runs
    expected = model(x).astype("float32").numpy()
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=0, atol=tolerance * np.abs(expected).max())


# --- networks of 8-bit floats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calibrated", [False, True])
def test_float8_networks(on_gpu: Any, calibrated: bool) -> None:
    weft.seed(0)
    model = nn.Sequential(nn.Linear(64, 48, activation="relu"), nn.Linear(48, 16, bias=False)).eval()
    x = normal(20, 64)
    expected = model(x).numpy()
    assert compress.float8(model, x if calibrated else None) == {"layers.0": 48 * 64 + 4, "layers.1": 16 * 48 + 4}
    here = weft.jit(model)(x).numpy()
    assert np.abs(here - expected).max() < 0.08 * np.abs(expected).max()
    if not calibrated:
        return
    plans, found = on_gpu(model, x)
    assert plans == {"contract_float8"}
    np.testing.assert_allclose(found, here, rtol=0, atol=1e-5 * np.abs(here).max())


def test_float8_needs_layers_that_can_be_replaced() -> None:
    with pytest.raises(weft.UserError, match="Put it in nn.Sequential"):
        compress.float8(nn.Linear(4, 4))
    with pytest.raises(weft.UserError, match="skip names 'layers.9'"):
        compress.float8(nn.Sequential(nn.Linear(4, 4)), skip=["layers.9"])


def test_weights_of_few_bits_are_exported_to_onnx(tmp_path: Any) -> None:
    """As the ops that they consist of."""
    pytest.importorskip("onnx")
    weft.seed(0)
    model, x = nn.Sequential(nn.Linear(32, 6)).eval(), normal(2, 32)
    compress.weight_only(model, bits=4)
    weft.onnx.save(tmp_path / "network.onnx", model, weft.asarray(x))
    np.testing.assert_allclose(
        weft.onnx.load(tmp_path / "network.onnx")(x).numpy(), model(x).numpy(), rtol=0, atol=1e-6
    )
