"""Scans whose rows do not depend on each other, as one kernel on GPUs: the results of the CPU, and which scans qualify.

Kernels run under Triton's interpreter on a GPU made of the host's memory.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.testing import counted

pytest.importorskip("triton")
import fake_gpu
from weft.compiler.gpu import program, row_scans

LENGTH, BATCH = 5, 13  # seven programs of 2 rows, one of them of 1


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The source of each scan that became one kernel."""
    fake_gpu.install(monkeypatch)
    found: list[Any] = []
    write = program.write_row_scan

    def noted(*given: Any) -> Any:
        made = write(*given)
        found.append(made[0])
        return made

    monkeypatch.setattr(program, "write_row_scan", noted)
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


@pytest.mark.sweep("kind", "training", share=0.5)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_are_one_kernel(kernels: list[Any], kind: str, precision: str, training: bool) -> None:
    same(lambda: layer(kind, precision, training), floats(BATCH, LENGTH, 5), tolerance=2e-2)
    assert len(kernels) == 1 + training
    assert {source.programs for source in kernels} == {7}


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_what_a_step_computes_stays_in_registers(kernels: list[Any], kind: str) -> None:
    """Of inference, only outputs and last states are stored."""
    same(lambda: layer(kind, "float16", False), floats(BATCH, LENGTH, 5), tolerance=2e-3)
    [source] = kernels
    assert source.body.count("tl.store") == (3 if kind == "LSTM" else 2)


def test_float32_stays_apart(kernels: list[Any]) -> None:
    """Tensor cores take three products for one of float32: kernels of their own are faster."""
    same(lambda: layer("LSTM", None, True), floats(BATCH, LENGTH, 5))
    assert kernels == []


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize("how", [{"bidirectional": True}, {"layers": 2}, {"batch_first": False}], ids=str)
def test_layers_in_every_direction(kernels: list[Any], how: dict[str, Any]) -> None:
    x = floats(LENGTH, BATCH, 5) if "batch_first" in how else floats(BATCH, LENGTH, 5)
    same(lambda: layer("LSTM", "bfloat16", True, **how), x, tolerance=2e-2)
    assert len(kernels) == (2 if "batch_first" in how else 4)


def test_sequences_of_different_lengths(kernels: list[Any]) -> None:
    lengths = np.random.default_rng(0).integers(1, LENGTH + 1, BATCH)

    def make() -> Callable[..., Any]:
        model = nn.LSTM(5, 20)
        run = weft.jit(
            lambda x: (lambda outputs, state: (outputs, *state))(*model(x, lengths=lengths)), precision="float16"
        )
        return cast("Callable[..., Any]", run)

    same(make, floats(BATCH, LENGTH, 5), tolerance=2e-3)
    assert len(kernels) == 1


# --- scans ------------------------------------------------------------------------------------------------------------------------


def scanned(
    body: Callable[..., Any], start: Any, *more: Any, precision: str | None = None, **how: Any
) -> Callable[[], Callable[..., Any]]:
    """Makes a function that scans a sequence and returns last states and results as one tuple."""

    def run(xs: Any) -> Any:
        begin = tuple(map(weft.asarray, start)) if isinstance(start, tuple) else weft.asarray(start)
        last, outputs = weft.scan(lambda c, x: body(c, x, *more), begin, xs, **how)
        parts = [part if isinstance(part, tuple) else (part,) for part in (last, outputs)]
        return (*parts[0], *parts[1])

    return lambda: weft.jit(run, precision=precision)


def results_of_every_kind(c: Any, x: Any, table: Any) -> Any:
    new = weft.tanh(c * weft.exp(table) + x)
    return new, (c, new.sum(axis=1), x, new.max(axis=1, keepdims=True) - table)


def a_state_of_one_column(c: Any, x: Any) -> Any:
    mean, state = c
    new = 0.9 * mean + 0.1 * x.mean(axis=1)
    return (new, state * new[:, None] + x), new


def states_that_change_places(c: Any, x: Any) -> Any:
    a, b, last = c
    return (b, a + x, x), last


def odd_parts(c: Any, x: Any) -> Any:
    """Values are cut where others read them."""
    y = weft.tanh(c + x)
    turned = weft.concat([y[:, 4:], y[:, :4]], axis=1)
    return turned * y, (turned[:, :5] + y[:, 1:6], turned)


def softmax(c: Any, x: Any) -> Any:
    weights = weft.softmax(c + x, axis=1)
    return c + weights, weights.argmax(axis=1)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("body", "start", "more"),
    [
        (results_of_every_kind, floats(BATCH, 7), (floats(BATCH, 7),)),
        (a_state_of_one_column, (np.zeros(BATCH, np.float32), floats(BATCH, 7)), ()),
        (states_that_change_places, (floats(BATCH, 7), floats(7, BATCH).T.copy(), floats(BATCH, 7)), ()),
        (odd_parts, floats(BATCH, 7), ()),
        (softmax, floats(BATCH, 7), ()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_scans_without_products(
    kernels: list[Any], body: Callable[..., Any], start: Any, more: tuple[Any, ...], reverse: bool
) -> None:
    same(scanned(body, start, *more, reverse=reverse), floats(LENGTH, BATCH, 7), tolerance=1e-5)
    assert len(kernels) == 1


def products_of_parts(c: Any, x: Any, into: Any, out: Any) -> Any:
    """One product of parts of different lengths, one of an element of the sequence, and one of two values side by side."""
    parts = weft.tanh(c @ into + x @ into)
    a, b = parts[:, :3] * parts[:, 3:6], weft.concat([parts[:, 6:], c], axis=1)
    return weft.tanh(b @ out) + 0.1 * a.sum(axis=1, keepdims=True), (a, parts)


def products_of_infinities(c: Any, x: Any, into: Any, out: Any) -> Any:
    """Columns beyond the last are not multiplied, whatever is computed there."""
    return weft.tanh((0.5 / (abs(c) + x * x)) @ into[:, :7] * 0.1), c


@pytest.mark.parametrize("body", [products_of_parts, products_of_infinities])
def test_scans_with_products(kernels: list[Any], body: Callable[..., Any]) -> None:
    matrices = floats(7, 20) / 4, floats(21, 7) / 8
    run = scanned(body, abs(floats(BATCH, 7)), *matrices, precision="float16")
    same(run, floats(LENGTH, BATCH, 7), tolerance=5e-3)
    assert len(kernels) == 1


def test_an_integer_and_a_boolean_state(kernels: list[Any]) -> None:
    def body(c: Any, x: Any) -> Any:
        count, seen = c
        return (count + (x > 0).sum(axis=1), seen | (x > 1.5)), count

    start = (np.zeros(BATCH, np.int64), np.zeros((BATCH, 4), bool))
    same(scanned(body, start), floats(LENGTH, BATCH, 4))
    assert len(kernels) == 1


SCANS_THAT_STAY_APART = {
    "sums over rows": lambda c, x, m: (c + x.sum(axis=0), c),
    "neighbours": lambda c, x, m: (weft.roll(c, 1, axis=0) + x, c),
    "products from the left": lambda c, x, m: (m @ c + x, c),
    "transposed products": lambda c, x, m: (c @ c.T @ x / 9, c),
    "a matrix for each step": lambda c, x, m: (weft.tanh(c @ x), c),
    "columns in another order": lambda c, x, m: (weft.flip(c, axis=1) + x, c),
    "indices that are checked": lambda c, x, m: (c + weft.asarray(m)[0][(abs(x) * 3).astype("int32") % 9], c),
}


@pytest.mark.parametrize("precision", [None, "float16"])
@pytest.mark.parametrize("name", SCANS_THAT_STAY_APART)
def test_scans_that_stay_apart(kernels: list[Any], name: str, precision: str | None) -> None:
    """Rows that depend on each other, and columns that would have to be read from memory."""
    run = scanned(SCANS_THAT_STAY_APART[name], floats(9, 9) / 9, floats(9, 9) / 9, precision=precision)
    same(run, floats(LENGTH, 9, 9) / 9, tolerance=2e-6 if precision is None else 5e-3)
    assert kernels == []


@pytest.mark.parametrize(("concurrent", "programs"), [(7, 7), (6, 4), (4, 4), (3, 2), (1, 2)])
def test_programs_take_more_rows_when_there_are_many(
    kernels: list[Any], monkeypatch: pytest.MonkeyPatch, concurrent: int, programs: int
) -> None:
    """2 rows while all programs run at the same time, else 4, else 8."""
    monkeypatch.setattr(row_scans, "CONCURRENT", concurrent)
    same(lambda: layer("GRU", "float16", False), floats(BATCH, LENGTH, 5), tolerance=2e-3)
    assert [source.programs for source in kernels] == [programs]


@pytest.mark.parametrize("more", [0, 1])
def test_limits(kernels: list[Any], monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """Of steps, matrices, rows and positions: a scan at the limit is one kernel, and one beyond it is not."""

    def count(**limits: int) -> int:
        for name, value in limits.items():
            monkeypatch.setattr(row_scans, name, value)
        kernels.clear()
        same(lambda: layer("RNN", "float16", False), floats(BATCH, LENGTH, 5), tolerance=2e-3)
        return len(kernels)

    matrix = 2 * 32 * 32  # 20 x 20, padded
    assert count(FEWEST_STEPS=LENGTH + more) == 1 - more
    assert count(FEWEST_STEPS=1, SHARED_REST=fake_gpu.FakeGpu.shared_bytes - matrix + more) == 1 - more
    assert count(SHARED_REST=0, MOST_ROWS=BATCH - more) == 1 - more
    largest = 20 * max(20, BATCH)  # elements of a tensor that a step reads: the matrix, or the rows
    assert count(MOST_ROWS=BATCH, LARGE=LENGTH * largest + 1 - more) == 1 - more
