"""The setting `optimize`: code that LLVM has not optimized computes the same bits."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from jit_tools import floats
from weft import nn, optim
from weft.compiler.cpu import library
from weft.compiler.cpu.engine import Loaded, object_code
from weft.knobs import knobs


def trained(steps: int = 3) -> list[np.ndarray]:
    """Losses and parameters of a small network after some steps, dropout included."""
    weft.seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4 * 6 * 6, 5)
    )
    optimizer = optim.adam(model, rate=1e-2)

    @weft.jit
    def step(x: Any, y: Any) -> Any:
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    x, y = floats(7, 1, 8, 8), np.arange(7) % 5
    losses = [step(x, y).numpy().copy() for _ in range(steps)]
    return [*losses, *(parameter.numpy() for parameter in model.parameters())]


def in_loops() -> list[np.ndarray]:
    x = floats(5, 37)

    @weft.jit
    def f(x: Any) -> Any:
        carried, rows = weft.scan(lambda s, row: (weft.tanh(s + row), weft.exp(s)), weft.zeros(37), x)
        return carried, rows, weft.sort(x, axis=1), weft.cumsum(x, axis=0), weft.softmax(x), x.astype("float16").sum()

    return [result.numpy() for result in f(x)]


@pytest.mark.parametrize("work", [trained, in_loops])
def test_the_same_bits_without_optimization(work: Callable[[], list[np.ndarray]]) -> None:
    expected = work()
    with knobs.set(optimize=0):
        found = work()
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_explanation_says_that_code_is_not_optimized() -> None:
    f = weft.jit(lambda x: weft.exp(x) + 1.0)
    assert "not optimized" not in f.explain(floats(9)).where
    with knobs.set(optimize=0):
        assert f.explain(floats(9)).where.endswith("code not optimized")


def test_arithmetic_that_cancels_is_left_in_the_code() -> None:
    text = 'define i64 @"f"(i64 %x) {\n%a = mul i64 %x, 1\n%b = add i64 %a, %x\n%c = sub i64 %b, %x\nret i64 %c\n}\n'
    quick, full = object_code(text, optimize=False), object_code(text)
    assert len(quick) > len(full)
    for code in (quick, full):
        assert Loaded(code).function("f", [ctypes.c_int64], ctypes.c_int64)(41) == 41


def test_library_functions_follow_the_setting() -> None:
    f = weft.jit(lambda x: weft.sort(x, axis=1))
    with knobs.set(optimize=0):
        f(floats(5, 37)).numpy()
    assert any(not optimized for _, optimized, *_ in library._loaded)
