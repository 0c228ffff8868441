"""Elements whose lines read the same values: tiles of lines, the same numbers, and where they are not worth while."""

import numpy as np
import pytest

import weft
from weft.compiler.gpu import kernels
from weft.compiler.gpu.program import commands, gpu_program
from weft.graph.node import Type
from weft.testing import counted, generator

pytest.importorskip("triton")
from triton_runner import run_program


@pytest.fixture
def few(monkeypatch):
    """Limits at which small tensors are cut as large ones are."""
    for name, value in {"FEW": 1, "LINES": 8, "LONG_LINE": 64}.items():
        monkeypatch.setattr(kernels, name, value)


def kernel_of(f, *examples):
    [launch] = commands(gpu_program(weft.make_graph(f, *examples), {}))
    return launch.kernel


def in_lines(kernel):
    return "[:, None]" in kernel.body


def scaled(x, a, b):
    return weft.relu(x * a + b)


def two_tensors(x, a, b):
    """As the derivative of batch norm has them: the tensor twice, and values of columns in between."""
    return (x - a) * b + weft.where(x * a > b, x, 0.0)


def with_rows(x, a, b):
    return x * a + b + x[:, :1]


@pytest.mark.sweep("f", "dtype", share=0.3)
@pytest.mark.parametrize("f", [scaled, two_tensors, with_rows])
@pytest.mark.parametrize("columns", [32, 49, 64, 100, 128, 200])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numbers(f, columns, dtype, few):
    rng = generator(f"lines {columns}")
    x = rng.normal(size=(37, columns)).astype(getattr(weft, dtype).numpy)
    a, b = rng.normal(size=(2, columns)).astype(np.float32)
    program = gpu_program(weft.make_graph(f, x, a, b), {})
    [launch] = commands(program)
    assert in_lines(launch.kernel)
    assert ("for start in" in launch.kernel.body) == (columns > 64)
    [actual] = run_program(program, [x, a, b])
    with weft.knobs.set(device="reference"):
        expected = f(*(weft.asarray(v.astype(np.float64)) for v in (x, a, b))).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=2e-6)
    counted()


def test_values_of_a_column_are_read_once_for_all_lines(few):
    x, a = Type((64, 64), weft.float32), Type((64,), weft.float32)
    assert "tl.load(p1 + (place), mask=inside_strip" in kernel_of(lambda x, a: x * a, x, a).body


OTHERS = {
    "no value of a column": (lambda x, a: x * 2.0 + x * a[0], (64, 64)),
    "one value for each line": (lambda x, a: x * a[:64, None], (64, 64)),
    "short lines": (lambda x, a: x * a[:16], (256, 16)),
    "few lines": (lambda x, a: x * a[:64], (7, 64)),
    "lines that would leave half of a tile empty": (lambda x, a: x * a[:33], (64, 33)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay_flat(name, few):
    f, shape = OTHERS[name]
    assert not in_lines(kernel_of(f, Type(shape, weft.float32), Type((64,), weft.float32)))


def test_tiles_at_full_size():
    """As large as measured best: 32 lines of 64, 16 of 256, longer ones in strips."""
    channels = {64: (32, 64), 128: (32, 128), 256: (16, 256), 512: (16, 256), 2048: (16, 256)}
    for size, (rows, width) in channels.items():
        kernel = kernel_of(scaled, Type((128, 28, 28, size), weft.float32), *[Type((size,), weft.float32)] * 2)
        assert f"tl.arange(0, {rows})[:, None]" in kernel.body
        assert f"tl.arange(0, {width})[None, :]" in kernel.body
        assert kernel.programs == 128 * 28 * 28 // rows
