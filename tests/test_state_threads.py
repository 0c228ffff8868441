"""Checks that threads share state: no update of a compiled program is lost, and whoever looks sees whole values."""

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft

SIZE = 1 << 16  # elements: enough for another thread to look in the middle of an update
DRAWN = 1000  # random numbers at a time


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    """Python changes threads much more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def together(*works: Callable[[], Any]) -> None:
    """Do all at the same time; the first error is raised."""
    errors: list[BaseException] = []
    ready = threading.Barrier(len(works))

    def one(work: Callable[[], Any]) -> None:
        try:
            ready.wait(60)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread waits for ever"
    if errors:
        raise errors[0]


def repeated(work: Callable[[], Any], times: int) -> Callable[[], None]:
    def many() -> None:
        for _ in range(times):
            work()

    return many


def adders(total: weft.Tensor, count: int) -> list[Any]:
    """Compiled functions, each of its own, that add 1 to a tensor from outside."""

    def adder(number: int) -> Any:
        def add(x: Any) -> Any:
            total.assign(total + x)
            return total * float(number)

        return weft.jit(add)

    return [adder(i) for i in range(count)]


@pytest.mark.parametrize("size", [64, SIZE])
def test_programs_of_two_functions_lose_no_update(size: int) -> None:
    total, one = weft.zeros(size), weft.ones(size)
    first, second = adders(total, 2)
    together(*(repeated(lambda f=f: f(one), 150) for f in (first, second, first, second)))
    assert set(total.tolist()) == {600.0}


def test_programs_of_one_function_for_other_arguments_lose_no_update() -> None:
    total = weft.asarray(0.0)
    add = weft.jit(lambda x: total.assign(total + x.sum() / x.size))
    together(*(repeated(lambda n=n: add(weft.ones(n)), 100) for n in (1, 2, 3)))
    assert total.item() == 300.0


def test_no_change_of_an_argument_is_lost() -> None:
    shared = weft.zeros(64)

    def add(p: Any, x: Any) -> None:
        p += x

    def add_too(p: Any, x: Any) -> None:
        p.assign(p + x)

    one, first, second = weft.ones(64), weft.jit(add), weft.jit(add_too)
    together(*(repeated(lambda f=f: f(shared, one), 100) for f in (first, second)))
    assert shared.tolist() == [200.0] * 64


def test_states_that_are_shared_in_part_are_changed_as_one() -> None:
    a, b, c = (weft.zeros(SIZE) for _ in range(3))

    def move(source: weft.Tensor, target: weft.Tensor) -> Any:
        def step() -> None:
            source.assign(source - 1.0)
            target.assign(target + 1.0)

        return weft.jit(step)

    moves = [move(a, b), move(b, c), move(c, a), move(b, a)]
    together(*(repeated(step, 60) for step in moves))
    assert [set(t.tolist()) for t in (a, b, c)] == [{60.0}, {-60.0}, {0.0}]


def whole(value: np.ndarray) -> None:
    assert (value == value.flat[0]).all(), f"torn: {np.unique(value)}"


@pytest.mark.parametrize("looks", [
    lambda t: whole(t.numpy()),
    lambda t: whole((t * 2.0).numpy()),  # interpreted, then compiled
    lambda t: whole(np.asarray(t)),
    lambda t: whole(t.to_device("reference").numpy()),
], ids=["numpy", "computed", "asarray", "device"])  # fmt: skip
def test_whoever_looks_sees_whole_values(looks: Any) -> None:
    total, one = weft.zeros(SIZE), weft.ones(SIZE)
    [add] = adders(total, 1)
    together(repeated(lambda: add(one), 150), repeated(lambda: looks(total), 150))
    assert total.numpy()[0] == 150.0


def test_a_view_does_not_change_under_its_reader() -> None:
    total, one = weft.zeros(SIZE), weft.ones(SIZE)
    [add] = adders(total, 1)

    def look() -> None:
        view = total.numpy()
        first = view.copy()
        whole(first)
        np.testing.assert_array_equal(view, first)

    together(repeated(lambda: add(one), 150), repeated(look, 100))


def test_filters_that_lie_in_another_order_are_whole_too() -> None:
    w, x = weft.zeros((32, 32, 3, 3)), weft.zeros((1, 32, 5, 5))

    @weft.jit
    def step() -> Any:
        w.assign(w + 1.0)
        return weft.conv(x, w)

    def look() -> None:
        view = w.numpy()
        whole(view)
        whole(view)

    together(repeated(step, 60), repeated(look, 100))
    whole(w.numpy())
    assert w.numpy().flat[0] == 60.0


def test_a_program_that_only_reads_sees_whole_values() -> None:
    total, one = weft.zeros(SIZE), weft.ones(SIZE)
    [add] = adders(total, 1)
    by_state = weft.jit(lambda: total.max() - total.min())
    by_argument = weft.jit(lambda t: t.max() - t.min())

    def look() -> None:
        assert by_state().item() == 0.0
        assert by_argument(total).item() == 0.0

    together(repeated(lambda: add(one), 150), repeated(look, 100))


def test_values_from_outside_are_seen_whole_and_not_undone() -> None:
    """A value that is assigned comes before a program or after it, but never in between."""
    total, one = weft.zeros(SIZE), weft.ones(SIZE)
    [add] = adders(total, 1)
    told = [weft.full(SIZE, 1000.0 * i).realize() for i in range(1, 40)]
    seen = []

    def tell() -> None:
        for value in told:
            total.assign(value)
            view = total.numpy()
            whole(view)
            seen.append(view[0] - value.numpy()[0])

    together(repeated(lambda: add(one), 100), tell)
    assert all(0 <= difference <= 100 for difference in seen)
    whole(total.numpy())


def test_no_random_number_is_drawn_twice() -> None:
    generator = weft.random.Generator(3)
    found: list[list[int]] = [[], [], [], []]
    first = weft.jit(lambda: generator.bits((DRAWN,)))
    second = weft.jit(lambda: generator.bits((DRAWN,)) + 0)
    draws = [first, second, lambda: generator.bits((DRAWN,)), first]
    together(*(repeated(lambda d=d, f=f: f.extend(d().tolist()), 40) for d, f in zip(draws, found, strict=True)))
    numbers = list(itertools.chain(*found))
    expected = weft.random.Generator(3).bits((4 * 40 * DRAWN,)).tolist()
    assert sorted(numbers) == sorted(expected)


def test_the_global_stream_in_programs_and_outside() -> None:
    weft.seed(5)
    found: list[list[int]] = [[], [], []]
    draws = [
        weft.jit(lambda: weft.random.bits((DRAWN,))),
        weft.jit(lambda: weft.random.bits((DRAWN,)) + 0),
        lambda: weft.random.bits((DRAWN,)),
    ]
    together(*(repeated(lambda d=d, f=f: f.extend(d().tolist()), 30) for d, f in zip(draws, found, strict=True)))
    weft.seed(5)
    assert sorted(itertools.chain(*found)) == sorted(weft.random.bits((3 * 30 * DRAWN,)).tolist())


def test_functions_are_traced_in_many_threads_while_others_look() -> None:
    """While a function is traced, the tensors that it changes name something unknown: other threads do not see it."""
    total, p = weft.zeros(64), weft.parameter(np.zeros(64, "float32"))

    def compile_and_run(number: int) -> Callable[[], None]:
        def work() -> None:
            for size in range(1, 5):

                @weft.jit
                def step(x: Any, size: int = size) -> Any:
                    for _ in range(20):  # the trace takes a while
                        total.assign(total + x.sum() / (20 * number * size))
                        p.assign(p + x.sum() / (20 * number * size))
                    return total.sum()

                step(weft.ones(number * size))

        return work

    def look() -> None:
        whole(total.numpy())
        whole((total * 1.0).numpy())
        whole((p.detach() + 1.0).numpy())

    together(compile_and_run(1), compile_and_run(2), compile_and_run(3), repeated(look, 150))
    np.testing.assert_allclose(total.numpy(), 12.0, rtol=1e-4)
    np.testing.assert_allclose(p.numpy(), 12.0, rtol=1e-4)


@pytest.mark.parametrize(
    "read", [lambda t: t.node, lambda t: t.realize(), lambda t: t.numpy()], ids=["node", "realize", "numpy"]
)
def test_a_reader_does_not_bring_back_the_old_value(
    read: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A computed tensor becomes a leaf when it is read. Another thread changes it at the worst time, between the look and the change."""
    total = weft.ones(4) + weft.ones(4)
    (total * 1.0).numpy()  # the value is known, the tensor still names the sum
    writer = threading.Thread(target=lambda: total.assign(weft.zeros(4)))
    plain = type(total)._name

    def name(tensor: Any, node: Any) -> None:
        if tensor is total and threading.current_thread() is not writer and not writer.ident:
            writer.start()
            writer.join(0.2)  # it ends now, or waits until the reader is done
        plain(tensor, node)

    monkeypatch.setattr(type(total), "_name", name, raising=False)
    read(total)
    assert writer.ident, "nothing was named"
    writer.join()
    np.testing.assert_array_equal(total.numpy(), 0.0)


def test_one_function_is_traced_once_by_threads_that_come_together() -> None:
    traces = []
    total = weft.asarray(0.0)

    @weft.jit
    def add(x: Any) -> None:
        traces.append(1)
        total.assign(total + x)

    together(*(repeated(lambda: add(weft.asarray(1.0)), 10) for _ in range(4)))
    assert (len(traces), total.item()) == (1, 40.0)
