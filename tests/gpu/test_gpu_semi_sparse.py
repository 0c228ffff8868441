"""Weights of 2:4 sparsity on the device: products agree with float64, compressed by cuSPARSELt or expanded, in every call."""

from typing import Any

import numpy as np
import pytest
from gpu_tools import IS_GPU

import weft
from weft import compress, nn
from weft.nn.activations import activation
from weft.ops.semi_sparse import packed, semi_sparse_weight
from weft.testing import counted

RNG = np.random.default_rng(0)
SHAPES = [(8, 64, 32), (1, 128, 256), (13, 256, 512), (512, 1024, 768), (64, 4096, 4096)]
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2}


@pytest.fixture(params=["compressed", "measured"] if IS_GPU else ["measured"])
def choice(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Whether every weight that can be is multiplied compressed, or only where that was measured to be faster."""
    if request.param == "measured":
        yield request.param
        return
    from weft.runtime.cuda import libraries

    monkeypatch.setattr(libraries, "GAIN", 1e9)
    monkeypatch.setattr(libraries, "LEAST_COMPRESSED", 1)
    with weft.knobs.set(cache=str(tmp_path / "cache")):  # it would remember what was faster
        yield request.param


def pruned(outputs: int, inputs: int) -> np.ndarray:
    """A weight with 2:4 sparsity; some groups keep one value, or none."""
    weight = RNG.normal(size=(outputs, inputs // 4, 4))
    rank = np.argsort(RNG.random(weight.shape), axis=2)
    weight[rank >= RNG.choice([2, 2, 2, 1, 0], weight.shape[:2] + (1,))] = 0
    return weight.reshape(outputs, inputs)


def library_kernels(made: Any, *arguments: Any) -> list[str]:
    """The algorithms of a compiled function's kernels that have one."""
    program = made._for(arguments, {}).executable.program
    return [plan.name for plan in program.plans.values()]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("then", [None, "relu", "gelu"])
def test_layers(choice: str, dtype: str, shape: tuple[int, int, int], then: Any) -> None:
    m, k, n = shape
    model = nn.Sequential(nn.Linear(k, n, activation=None)).eval()
    model[0].weight = weft.parameter(pruned(n, k).astype(np.float32))
    model[0].bias = weft.parameter(RNG.normal(size=n).astype(np.float32))
    compress.semi_sparse(model)
    model.astype(dtype)
    function = activation(then)
    step = weft.jit(lambda x: function(model(x)))
    w, b = (t.astype("float32").numpy().astype(np.float64) for t in (model[0].weight, model[0].bias))
    for _ in range(4):  # other numbers in every call: run, recorded, replayed
        x = weft.asarray(RNG.normal(size=(m, k))).astype(dtype).realize()
        with weft.knobs.set(device="reference"):
            exact = function(weft.asarray(x.astype("float32").numpy().astype(np.float64) @ w.T + b)).numpy()
        found = step(x).astype("float32").numpy()
        assert np.linalg.norm(found - exact) <= TOLERANCE[dtype] * np.linalg.norm(exact)
        counted()
    if choice == "compressed":
        assert "CUSPARSELT" in library_kernels(step, x)


def test_values_that_change_are_compressed_again(choice: str) -> None:
    values, positions = packed(pruned(256, 512))
    product = weft.jit(lambda x, values, positions: x @ semi_sparse_weight(values, positions).T)
    x = weft.asarray(RNG.normal(size=(32, 512))).astype("float16").realize()
    for scale in (1.0, -2.0, 3.0, 4.0):
        given = weft.asarray(scale * values).astype("float16").realize()
        found = product(x, given, positions).astype("float32").numpy()
        dense = semi_sparse_weight(given.astype("float32").numpy(), positions).numpy().astype(np.float64)
        exact = x.astype("float32").numpy().astype(np.float64) @ dense.T
        assert np.linalg.norm(found - exact) <= 2e-3 * np.linalg.norm(exact)


def test_a_step_trains_the_kept_values(choice: str) -> None:
    """In mixed precision, against float32 on the same device."""
    losses = []
    weight = pruned(128, 256).astype(np.float32)
    x = RNG.normal(size=(64, 256)).astype(np.float32)
    for precision in ("bfloat16", None):
        model = nn.Sequential(nn.Linear(256, 128))
        model[0].weight, model[0].bias = weft.parameter(weight), weft.parameter(np.zeros(128, np.float32))
        compress.semi_sparse(model)
        optimizer = weft.optim.sgd(model, rate=0.5)

        @weft.jit(precision=precision)
        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            loss = (model(x) ** 2).mean()
            optimizer.minimize(loss)
            return loss

        losses.append([step(x).item() for _ in range(5)])
        assert compress.densities(model)["layers.0.weight"] <= 0.5
    np.testing.assert_allclose(losses[0], losses[1], rtol=3e-2)
    assert losses[0][-1] < losses[0][0]
