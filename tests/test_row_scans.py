"""Scans whose rows do not depend on each other, as one kernel on GPUs: the results of the CPU, and which scans qualify.

Kernels run under Triton's interpreter on a GPU made of the host's memory.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.testing import counted

pytest.importorskip("triton")
import fake_gpu
from weft.compiler.gpu import row_scans

LENGTH, BATCH = 6, 37


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The source of each scan that became one kernel."""
    fake_gpu.install(monkeypatch)
    found: list[Any] = []
    write = row_scans.write_row_scan

    def noted(*given: Any) -> Any:
        made = write(*given)
        found.append(made[0])
        return made

    monkeypatch.setattr(row_scans, "write_row_scan", noted)
    with weft.knobs.set(cache="off"):  # what is on disk is not written again
        yield found


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def results(device: str, make: Callable[[], Callable[..., Any]], *arrays: np.ndarray) -> list[np.ndarray]:
    """Of two calls of a compiled function: the second one finds the buffers as the first has left them."""
    with weft.knobs.set(device=device, compile_after=1):
        weft.seed(0)
        function = make()
        found = [function(*arrays) for _ in range(2)]
        return [np.asarray(value.astype("float64").numpy()) for one in found for value in one]


def same(make: Callable[[], Callable[..., Any]], *arrays: np.ndarray, tolerance: float = 2e-6) -> None:
    for here, there in zip(results("cuda", make, *arrays), results("cpu", make, *arrays), strict=True):
        assert np.isfinite(there).all()
        np.testing.assert_allclose(here, there, rtol=0, atol=tolerance * max(1.0, np.abs(there).max()))
        counted()


# --- recurrent layers -------------------------------------------------------------------------------------------------------------


def layer(kind: str, precision: str | None, training: bool, **how: Any) -> Callable[..., Any]:
    """Inference, or a step of training that gives the loss and all parameters."""
    model = getattr(nn, kind)(5, 20, **how)
    optimizer = optim.sgd(model, 0.5)

    def forward(x: Any, *more: Any) -> Any:
        outputs, state = model(x, *more)
        return (outputs, *(state if isinstance(state, tuple) else (state,)))

    def step(x: Any, *more: Any) -> Any:
        loss = (model(x, *more)[0] ** 2).mean()
        optimizer.minimize(loss)
        return (loss, *model.parameters())

    return weft.jit(step if training else forward, precision=precision)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_are_one_kernel(kernels: list[Any], kind: str, training: bool) -> None:
    same(lambda: layer(kind, None, training), floats(BATCH, LENGTH, 5))
    assert len(kernels) == 1 + training
    assert {source.programs for source in kernels} == {3}  # of 16 rows, the last of 5


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_in_16_bits(kernels: list[Any], kind: str) -> None:
    """Products read what is stored in 16 bits as it is, and not its copy in float32."""
    same(lambda: layer(kind, "bfloat16", True), floats(BATCH, LENGTH, 5), tolerance=2e-2)
    assert len(kernels) == 2
    for source in kernels:
        assert ".to(tl.float32), total, input_precision" not in source.body


@pytest.mark.parametrize("how", [{"bidirectional": True}, {"layers": 2}, {"batch_first": False}], ids=str)
def test_layers_in_every_direction(kernels: list[Any], how: dict[str, Any]) -> None:
    x = floats(LENGTH, BATCH, 5) if "batch_first" in how else floats(BATCH, LENGTH, 5)
    same(lambda: layer("LSTM", None, True, **how), x)
    assert len(kernels) == (2 if "batch_first" in how else 4)


def test_sequences_of_different_lengths(kernels: list[Any]) -> None:
    lengths = np.random.default_rng(0).integers(1, LENGTH + 1, BATCH)

    def make() -> Callable[..., Any]:
        model = nn.LSTM(5, 20)
        return weft.jit(lambda x: (lambda outputs, state: (outputs, *state))(*model(x, lengths=lengths)))

    same(make, floats(BATCH, LENGTH, 5))
    assert len(kernels) == 1


def test_many_rows_share_a_program(kernels: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_scans, "PROGRAMS", 2)
    same(lambda: layer("GRU", None, False), floats(100, LENGTH, 5))
    assert {source.programs for source in kernels} == {2}  # of 64 rows


# --- scans ------------------------------------------------------------------------------------------------------------------------


def scanned(body: Callable[..., Any], start: Any, *more: Any, **how: Any) -> Callable[[], Callable[..., Any]]:
    def run(xs: Any) -> Any:
        last, outputs = weft.scan(lambda c, x: body(c, x, *more), weft.asarray(start), xs, **how)
        return last, outputs

    return lambda: weft.jit(run)


def test_results_of_every_kind(kernels: list[Any]) -> None:
    """States, sequences, results and constants that are read or handed on as they are, forward and backward in time."""
    table, matrix = floats(BATCH, 7), floats(7, 7) / 4

    def body(c: Any, x: Any, table: Any, matrix: Any) -> Any:
        new = weft.tanh(c @ matrix + x * table)
        return new, (c, new.sum(axis=1), x, new.max(axis=1, keepdims=True) - table)

    for reverse in (False, True):
        run = scanned(body, floats(BATCH, 7), table, matrix, reverse=reverse)

        def flat(run: Callable[[], Callable[..., Any]] = run) -> Callable[..., Any]:
            function = run()
            return lambda xs: (lambda last, rest: (last, *rest))(*function(xs))

        same(flat, floats(LENGTH, BATCH, 7))
    assert len(kernels) == 2


def test_an_integer_and_a_boolean_state(kernels: list[Any]) -> None:
    def body(c: Any, x: Any) -> Any:
        count, seen = c
        return (count + (x > 0).sum(axis=1), seen | (x > 1.5)), count

    def make() -> Callable[..., Any]:
        def run(xs: Any) -> Any:
            start = (weft.zeros(BATCH, dtype="int64"), weft.zeros((BATCH, 4), dtype="bool"))
            (count, seen), counts = weft.scan(body, start, xs)
            return count, seen, counts

        return weft.jit(run)

    same(make, floats(LENGTH, BATCH, 4))
    assert len(kernels) == 1


ROWS_THAT_MEET = {
    "sums over rows": lambda c, x, m: (c + x.sum(axis=0), c),
    "neighbours": lambda c, x, m: (weft.roll(c, 1, axis=0) + x, c),
    "products from the left": lambda c, x, m: (m @ c + x, c),
    "transposed products": lambda c, x, m: (c @ c.T @ x / 9, c),
}


@pytest.mark.parametrize("name", ROWS_THAT_MEET)
def test_rows_that_depend_on_each_other_stay_apart(kernels: list[Any], name: str) -> None:
    same(scanned(ROWS_THAT_MEET[name], floats(9, 9) / 9, floats(9, 9) / 9), floats(LENGTH, 9, 9) / 9)
    assert kernels == []


def test_large_matrices_and_short_scans_stay_apart(kernels: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    same(lambda: layer("RNN", None, False), floats(BATCH, row_scans.FEWEST_STEPS - 1, 5))
    assert kernels == []
    monkeypatch.setattr(row_scans, "MATRIX_BYTES", 20 * 20 * 4 - 1)
    same(lambda: layer("RNN", None, False), floats(BATCH, LENGTH, 5))
    assert kernels == []
    monkeypatch.setattr(row_scans, "MATRIX_BYTES", 20 * 20 * 4)
    same(lambda: layer("RNN", None, False), floats(BATCH, LENGTH, 5))
    assert len(kernels) == 1
    monkeypatch.setattr(row_scans, "LARGE", LENGTH * BATCH * 20)
    same(lambda: layer("RNN", None, False), floats(BATCH, LENGTH, 5))
    assert len(kernels) == 1
