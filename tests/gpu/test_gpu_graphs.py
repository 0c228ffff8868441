"""What a recorded graph does is what was enqueued: memsets that become kernels, copies of a bias that are kept, products of few rows."""

from typing import Any, cast

import numpy as np
import pytest
from gpu_tools import IS_GPU

import weft
from weft import nn
from weft.runtime.device import device
from weft.testing import counted, generator

HALF = {"float16": 2e-3, "bfloat16": 1.6e-2}


@pytest.mark.skipif(not IS_GPU, reason="records CUDA graphs")
@pytest.mark.parametrize("nbytes", [4, 1028, 65536, 6, (1 << 20) + 4])
def test_memsets(nbytes: int) -> None:
    """Of whole words and others, short ones and long ones: what lies beside them stays."""
    gpu = cast(Any, device()).context.gpu
    room = gpu.allocate(nbytes + 32)
    ones = np.full(nbytes + 32, 7, np.uint8)
    found = np.empty_like(ones)
    recorded = gpu.record(lambda: gpu.clear(room + 16, nbytes))
    for _ in range(2):
        gpu.upload(room, ones)
        gpu.replay(recorded)
        gpu.download(found, room)
        assert not found[16:-16].any()
        assert (found[:16] == 7).all()
        assert (found[-16:] == 7).all()
    gpu.forget(recorded)
    gpu.free(room)


class Block(nn.Module):
    """A layer whose bias and residual a library adds, and one with a gelu."""

    def __init__(self, width: int) -> None:
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        return x + self.down(weft.gelu(self.up(self.norm(x)), approximate="tanh"))


@pytest.mark.parametrize("precision", HALF)
def test_a_changed_bias_is_copied_again(precision: str) -> None:
    """Rounded copies of biases are made once, until a bias changes."""
    weft.seed(0)
    model = nn.Sequential(*(Block(256) for _ in range(3))).eval()
    x = generator("blocks").normal(size=(512, 256)).astype(np.float32)
    used = weft.jit(lambda x: model(x), precision=precision)
    for shift in (0.0, 0.0, 0.0, 2.0, 2.0):
        for tensor in (layer.down.bias for layer in model if shift):
            tensor.assign(tensor * 0.0 + shift)
        with weft.knobs.set(device="cpu"):
            cpu = nn.Sequential(*(Block(256) for _ in range(3))).eval()
            cpu.load({name: tensor.numpy() for name, tensor in model.named_tensors().items()})
            expected = cpu(weft.asarray(x)).numpy()
        limit = HALF[precision]
        np.testing.assert_allclose(used(x).numpy(), expected, rtol=limit, atol=4 * limit * np.abs(expected).max())
        counted()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("rows", "columns", "terms"), [(1, 2304, 768), (1, 768, 3072), (4, 1000, 2048), (3, 77, 20_000)]
)
def test_products_of_few_rows(rows: int, columns: int, terms: int, dtype: str) -> None:
    rng = generator(f"few {rows} {columns} {terms}")
    x, w, b = (
        weft.asarray(rng.normal(size=s)).astype(dtype).realize() for s in ((rows, terms), (columns, terms), (columns,))
    )
    exact = x.numpy().astype(np.float64) @ w.numpy().astype(np.float64).T + b.numpy().astype(np.float64)
    layer = weft.jit(lambda x, w, b: x @ w.mT + b)
    limit = HALF.get(dtype, 2e-6)
    for _ in range(3):
        found = layer(x, w, b).numpy().astype(np.float64)
        np.testing.assert_allclose(found, exact, rtol=limit, atol=limit * np.abs(exact).max())
