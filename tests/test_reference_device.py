"""The reference device computes compiled functions, too, by the definitions of ops."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.knobs import knobs
from weft.runtime import native


def test_a_compiled_function_is_computed_by_the_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a comparison of devices would compare native code with itself. State, random numbers and views are as without jit, to the bit."""
    monkeypatch.setattr(native, "_code", None)  # no program is compiled
    x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)

    def trained(wrap: Callable[[Any], Any]) -> list[np.ndarray]:
        weft.random.seed(3)
        w, count = weft.parameter(np.full((6, 6), 0.1, np.float32)), weft.asarray(0)

        def step(x: Any) -> tuple[Any, ...]:
            y = weft.tanh(weft.dropout(x, 0.3) @ w)
            loss = (y * y).mean()
            w.assign(w - 0.1 * weft.gradients(loss, [w])[0])
            count.assign(count + 1)
            return loss, y.mT, x

        call = wrap(step)
        results = [part for _ in range(3) for part in call(weft.asarray(x))]
        return [result.numpy().copy() for result in (*results, w, count)]

    with knobs.set(device="reference"):
        plain, compiled = trained(lambda f: f), trained(weft.jit)
    for a, b in zip(plain, compiled, strict=True):
        np.testing.assert_array_equal(a, b)


def test_compiled_functions_of_empty_arrays() -> None:
    with knobs.set(device="reference"):
        assert weft.jit(lambda x: x.sum(axis=0))(weft.zeros((0, 3))).tolist() == [0.0, 0.0, 0.0]
