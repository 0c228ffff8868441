"""Sums of many indices that name few rows, as they are compiled for an H200: those of the reference."""

import numpy as np
import pytest

pytest.importorskip("triton")
import ptx_gpu
import weft
from weft.compiler.gpu.special import scatter
from weft.compiler.thresholds import thresholds


@pytest.mark.parametrize("columns", [3, 16, 40])
def test_an_index_adds_to_what_the_one_before_it_has_written(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    for name, value in {"CHUNK": 8, "GROUP": 4, "LANES": 16, "COMBINED": 4}.items():
        monkeypatch.setattr(scatter, name, value)
    rng = np.random.default_rng(0)
    index, values = rng.integers(0, 4, 30), rng.normal(size=(30, columns)).astype(np.float32)
    index[8:16] = 2  # one row again and again
    with (
        thresholds.set(gpu_scatter_indices=24),
        ptx_gpu.compiling(monkeypatch, lambda wanted: "# scatter" in wanted.text) as gpu,
        weft.knobs.set(device="cuda"),
    ):
        add = weft.jit(lambda x, v, i: x.at[i].add(v))
        found = add(weft.zeros((4, columns)), weft.asarray(values), weft.asarray(index)).numpy()
        assert gpu.compiled_launches == 2
    expected = np.zeros((4, columns))
    np.add.at(expected, index, values.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
