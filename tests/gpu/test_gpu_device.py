"""The device itself: copies, errors that are told when somebody looks, threads, interrupts."""

import os
import signal
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest
from gpu_tools import DEVICE, Trained, wait

import weft
from weft.testing import counted

ALL_TYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64",
]  # fmt: skip


def test_it_is_listed() -> None:
    assert DEVICE.split(":")[0] in {d.name.split(":")[0] for d in weft.devices()}
    x = weft.asarray([1.0])
    assert x.device.name.split(":")[0] == DEVICE.split(":")[0]


@pytest.mark.parametrize("dtype", ALL_TYPES)
def test_copies_keep_every_bit(dtype: str) -> None:
    kind = weft.asarray(0).astype(dtype).dtype.numpy
    rng = np.random.default_rng(0)
    for shape in ((), (0,), (1,), (3, 0, 2), (1001,), (33, 65), (70_000, 5)):
        array = np.asarray(rng.integers(0, 2 if dtype == "bool" else 100, shape)).astype(kind)
        assert weft.asarray(array).numpy().tobytes() == array.tobytes()
        there = weft.asarray(array, device="cpu").to_device(DEVICE)
        assert there.numpy().tobytes() == array.tobytes()
        assert there.to_device("cpu").numpy().tobytes() == array.tobytes()
        counted(3)


def test_copies_of_strided_arrays() -> None:
    array = np.arange(600, dtype=np.float32).reshape(20, 30)
    for view in (array.T, array[::2, ::-3], array[:, 5], np.broadcast_to(array[0], (4, 30))):
        np.testing.assert_array_equal(weft.asarray(view).numpy(), view)
        np.testing.assert_array_equal(weft.jit(lambda x: x + 0.0)(view).numpy(), view)
        counted(2)


# --- errors -----------------------------------------------------------------------------------------------------------------------


def test_an_index_out_of_range_is_told() -> None:
    run = weft.jit(lambda x, i: weft.take(x, i, axis=0) * 2.0)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert run(x, np.array([1, 3])).numpy().tolist() == (2 * x[[1, 3]]).tolist()
    with pytest.raises(weft.RunError, match="index 9 is out of range for axis 0 of size 4"):
        run(x, np.array([1, 9])).numpy()
    # It was told once; the next call is a new one.
    assert run(x, np.array([0, 2])).numpy().tolist() == (2 * x[[0, 2]]).tolist()


def test_a_division_of_integers_by_zero_is_told() -> None:
    run = weft.jit(lambda a, b: a // b)
    with pytest.raises(weft.RunError, match="an integer was divided by zero"):
        run(np.arange(4), np.array([1, 1, 0, 2])).numpy()
    assert run(np.arange(4), np.array([1, 1, 1, 2])).tolist() == [0, 1, 2, 1]


def test_an_error_of_many_steps_ago_is_told_at_the_next_look() -> None:
    table = weft.asarray(np.arange(5, dtype=np.float32))
    total = weft.zeros(())

    @weft.jit
    def step(i: weft.Tensor) -> weft.Tensor:
        total.assign(total + weft.take(table, i, axis=0).sum())
        return total * 1.0

    def run() -> Any:
        results = [step(np.array([i])) for i in (0, 1, 77, 2, 3)]
        return [r.numpy() for r in results]

    with pytest.raises(weft.RunError, match="index 77 is out of range"):
        run()
    assert np.isfinite(step(np.array([1])).numpy())


def test_tensors_of_two_devices_do_not_mix() -> None:
    there = weft.asarray([10.0, 20.0], device="reference")
    with pytest.raises(weft.UserError, match="device"):
        (weft.asarray([1.0, 2.0]) + there).numpy()


# --- threads and interrupts -----------------------------------------------------------------------------------------------------------


def in_threads(*work: Callable[[], Any]) -> list[Any]:
    """What each gives, all at once; the first error comes out."""
    results: list[Any] = [None] * len(work)
    errors: list[BaseException] = []

    def one(number: int) -> None:
        try:
            results[number] = work[number]()
        except BaseException as error:
            errors.append(error)

    # Settings of a `with` block hold for its own thread, and for those that are started with its context.
    threads = [threading.Thread(target=copy_context().run, args=(one, n)) for n in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def test_two_threads_with_a_program_each() -> None:
    x = np.random.default_rng(0).normal(size=(50, 50)).astype(np.float32)
    first, second = weft.jit(lambda x: weft.softmax(x @ x)), weft.jit(lambda x: weft.tanh(x).sum(axis=0))
    expected = [first(x).numpy().tobytes(), second(x).numpy().tobytes()]

    def many(run: Any) -> list[bytes]:
        return [run(x).numpy().tobytes() for _ in range(100)]

    for found, bits in zip(in_threads(lambda: many(first), lambda: many(second)), expected, strict=True):
        assert set(found) == {bits}


def test_two_threads_with_the_same_program() -> None:
    run = weft.jit(lambda x: (x * x).sum(axis=1))
    inputs = [np.full((40, 30), float(i), np.float32) for i in range(4)]
    expected = [[30.0 * i * i] * 40 for i in range(4)]

    def many(number: int) -> bool:
        return all(run(inputs[number]).tolist() == expected[number] for _ in range(60))

    assert in_threads(*(lambda n=n: many(n) for n in range(4))) == [True] * 4


def test_a_thread_may_compile_while_another_runs() -> None:
    x = np.arange(100, dtype=np.float32)
    running = weft.jit(lambda x: x + 1.0)

    def compiled() -> list[float]:
        return [weft.jit(lambda x, n=n: (x * float(n)).sum())(x).item() for n in range(8)]

    def run() -> bool:
        return all(running(x).numpy()[0] == 1.0 for _ in range(300))

    found, fine = in_threads(compiled, run)
    assert found == [4950.0 * n for n in range(8)]
    assert fine


@pytest.mark.parametrize("delay", [0.02, 0.11, 0.25])
def test_an_interrupt_leaves_everything_in_order(delay: float) -> None:
    """Ctrl-C comes out as it should, steps are done or not done, and training goes on from there."""
    made, again = Trained("mlp"), Trained("mlp")
    count = weft.asarray(0)

    @weft.jit
    def counting() -> None:
        count.assign(count + 1)

    made.steps(2)
    counting()
    done = 2
    timer = threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        while True:
            made.step(made.x, made.y)
            done += 1
    timer.join()
    wait()
    again.steps(done)
    bits = made.bits()
    if bits != again.bits():  # the step that was interrupted may have been begun
        again.steps(1)
        assert bits == again.bits()
    assert made.steps(3) == again.steps(3)
    counting()
    assert count.item() == 2
