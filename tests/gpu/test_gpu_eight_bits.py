"""Products of few bits on the device: integers are exact by every algorithm, 8-bit floats and decoded weights agree with float64."""

from typing import Any

import numpy as np
import pytest
from gpu_tools import DEVICE, IS_GPU

import weft
from weft import compress, nn
from weft.ops.grouped import grouped_weight
from weft.testing import counted

RNG = np.random.default_rng(0)
ALGORITHMS = ("fastest", "TRITON", "CUBLASLT") if IS_GPU else ("fastest",)


def integers(*shape: int) -> np.ndarray:
    return RNG.integers(-128, 128, shape).astype(np.int8)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("shape", [(1, 16, 64, 48), (3, 33, 70, 40), (1, 512, 4096, 1024), (1, 1000, 1000, 1000)])
def test_integer_products(algorithm: str, shape: tuple[int, ...]) -> None:
    b, m, k, n = shape
    x, w = integers(b, m, k), integers(b, n, k)
    made = weft.jit(lambda x, w: weft.matmul(x, w.mT, dtype="int32"))
    layer = weft.jit(lambda x, w: weft.requantize(weft.matmul(x, w.mT, dtype="int32") + 3, 2.0**-12, 5))
    expected = np.matmul(x.astype(np.float64), w.astype(np.float64).swapaxes(1, 2))
    with weft.knobs.set(matmul_algorithm=algorithm):
        for _ in range(3):
            np.testing.assert_array_equal(made(x, w).numpy(), expected.astype(np.int32))
            wanted = np.clip(np.rint((expected + 3) * 2.0**-12) + 5, -128, 127)
            np.testing.assert_array_equal(layer(x, w).numpy(), wanted)
    counted()


@pytest.mark.parametrize(
    ("x", "w", "how"),
    [((2, 3, 32, 32), (16, 3, 7, 7), {"stride": 2, "padding": 3}), ((4, 64, 14, 14), (128, 64, 3, 3), {"padding": 1}),
     ((2, 32, 9, 8), (32, 8, 3, 3), {"groups": 4, "padding": 1}), ((2, 24, 9, 8), (24, 1, 3, 3), {"groups": 24, "padding": 1}),
     ((2, 64, 7, 7), (40, 64, 1, 1), {})],
)  # fmt: skip
def test_integer_convolutions(x: tuple[int, ...], w: tuple[int, ...], how: dict[str, Any]) -> None:
    a, b = integers(*x), integers(*w)
    with weft.knobs.set(device="cpu"):
        expected = weft.jit(lambda a, b: weft.conv(a, b, dtype="int32", **how))(a, b).numpy()
    np.testing.assert_array_equal(weft.jit(lambda a, b: weft.conv(a, b, dtype="int32", **how))(a, b).numpy(), expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("formats", [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e5m2", "e5m2")])
@pytest.mark.parametrize("shape", [(64, 128, 48), (33, 70, 40), (512, 4096, 1024)])
def test_float8_products(algorithm: str, formats: Any, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    x, w = RNG.normal(size=(m, k)).astype(np.float32), RNG.normal(size=(n, k)).astype(np.float32)
    codes = [weft.to_float8(a, 0.1, format=f) for a, f in zip((x, w), formats, strict=True)]
    exact = [weft.from_float8(c, 0.1, format=f).numpy().astype(np.float64) for c, f in zip(codes, formats, strict=True)]
    expected = exact[0] @ exact[1].T
    with weft.knobs.set(matmul_algorithm=algorithm):
        made = weft.jit(lambda a, b: weft.float8_matmul(a, b, 0.1, 0.1, formats=formats))
        found = made(*codes).numpy()
    # Matrix units align products of 8-bit floats to 13 bits before they add them.
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize(("bits", "group"), [(8, 512), (8, 64), (4, 32), (4, 128)])
@pytest.mark.parametrize("rows", [1, 4, 16, 40, 100])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_of_few_bits(bits: int, group: int, rows: int, dtype: str) -> None:
    n, k = 200, 512
    codes = RNG.integers(0, 256, n * k * bits // 8).astype(np.uint8).view(np.int8 if bits == 8 else np.uint8)
    scale = RNG.uniform(0.5, 1, n * k // group).astype(np.float32)
    x = weft.asarray(RNG.normal(size=(rows, k)).astype(np.float32)).astype(dtype).realize()

    def f(x: Any, codes: Any, scale: Any) -> Any:
        weight = grouped_weight(codes, scale, bits=bits, shape=(n, k))
        return weft.matmul(x.astype("float32"), weight.T) + 1.0

    found = weft.jit(f)(x, codes, scale).numpy()
    weight = grouped_weight(codes, scale, bits=bits, shape=(n, k)).numpy().astype(np.float64)
    expected = x.astype("float32").numpy().astype(np.float64) @ weight.T + 1.0
    tolerance = 2e-6 if dtype == "float32" else 5e-3
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def test_an_int8_network_has_the_bits_of_the_cpu(tmp_path: Any) -> None:
    with weft.knobs.set(device="cpu"):
        weft.seed(0)
        block = nn.Residual(
            nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 1)), activation="relu"
        )
        model = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), block, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 64), nn.ReLU(), nn.Linear(64, 10)
        )  # fmt: skip
        x = RNG.normal(size=(8, 3, 12, 12)).astype(np.float32)
        model.eval()(x)
        compress.int8(model, x)
        fast = compress.to_int8(model)
        expected = weft.jit(fast)(x).numpy()
        weft.save(tmp_path / "network.weft", fast, x)
    with weft.knobs.set(device=DEVICE):
        found = weft.jit(weft.load(tmp_path / "network.weft"))(x).numpy()
    np.testing.assert_array_equal(found, expected)
