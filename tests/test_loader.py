"""The loader: orders, resuming, threads that end, errors that arrive, memory that nobody overwrites."""

import gc
import os
import threading

import numpy as np
import pytest

import weft
from weft.data import Arrays, Loader
from weft.data.loader import permutation
from weft.testing import counted


class Made:
    """A dataset in memory: example i is full of i, and its label is 10 * i."""

    classes = ("a", "b")

    def __init__(self, count, bad=None):
        self.labels, self.bad, self.asked = np.arange(count) * 10, bad, []
        self.x = np.arange(count, dtype=np.uint8).reshape(-1, 1, 1, 1) * np.ones((1, 1, 2, 2), np.uint8)

    def __len__(self):
        return len(self.labels)

    def inputs(self, indices):
        self.asked.append(threading.current_thread().name)
        if self.bad is not None and self.bad in indices:
            raise OSError("broken file")
        return self.x[indices]


def seen(batches):
    return [x.numpy()[:, 0, 0, 0].tolist() for x, _ in batches]


def loader_threads():
    return [t for t in threading.enumerate() if t.name.startswith("weft-loader")]


def all_threads_end():
    gc.collect()  # another test may have left an iterator in a cycle
    for thread in loader_threads():
        thread.join(timeout=10)
    counted()
    assert not loader_threads()


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [3, 3, 3, 1]), (True, [3, 3, 3])])
def test_an_epoch_gives_every_example_once(workers, drop_last, sizes):
    loader = Loader(Made(10), 3, workers=workers, drop_last=drop_last, seed=4)
    batches = list(loader)
    assert [len(y) for _, y in batches] == sizes
    assert len(loader) == len(sizes)
    flat = [i for b in seen(batches) for i in b]
    assert len(set(flat)) == len(flat) == sum(sizes)
    for x, y in batches:
        assert x.dtype is weft.uint8
        assert y.dtype is weft.int64
        assert y.tolist() == [10 * i for i in x.numpy()[:, 0, 1, 1].tolist()]
        counted()
    all_threads_end()


def test_order_is_a_function_of_seed_and_epoch():
    orders = {(s, e): permutation(50, s, e).tolist() for s in (0, 1) for e in (0, 1, 2)}
    assert all(sorted(o) == list(range(50)) for o in orders.values())
    assert len({tuple(o) for o in orders.values()}) == 6
    # Written down once: the words of Philox do not change, nor may the order of old runs.
    assert permutation(12, 5, 3).tolist() == [5, 10, 7, 9, 6, 1, 11, 8, 4, 2, 0, 3]
    first, second = Loader(Made(20), 4, seed=1), Loader(Made(20), 4, seed=1, workers=2)
    runs = [[seen(each) for _ in range(3)] for each in (first, second)]
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]
    assert runs[0][1] == [permutation(20, 1, 1)[i : i + 4].tolist() for i in range(0, 20, 4)]
    assert seen(Loader(Made(5), 2, shuffle=False)) == [[0, 1], [2, 3], [4]]
    counted(6)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("stop", [0, 1, 3, 4, 5, 7])
def test_resumes_in_the_middle(workers, stop):
    whole = Loader(Made(11), 3, seed=9, workers=0)
    expected = [b for _ in range(3) for b in seen(whole)]
    begun = Loader(Made(11), 3, seed=9, workers=2 - workers)
    given = 0
    while given < stop:
        for _ in begun:
            given += 1
            if given == stop:
                break
    state = begun.state()
    assert state == {"epoch": stop // 4, "position": stop % 4}
    resumed = Loader(Made(11), 3, seed=9, workers=workers)
    resumed.load(state)
    rest = []
    while len(rest) < 12 - stop:
        rest += seen(resumed)
    assert rest == expected[stop:]
    counted(2)


def test_a_new_iteration_is_a_new_epoch_and_old_iterators_move_nothing():
    loader = Loader(Made(9), 3, seed=2)
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert loader.state() == {"epoch": 1, "position": 0}
    assert seen(first) == [permutation(9, 2, 0)[i : i + 3].tolist() for i in (3, 6)]
    assert loader.state() == {"epoch": 1, "position": 0}
    assert seen(second)[0] == permutation(9, 2, 1)[:3].tolist()
    assert loader.state() == {"epoch": 2, "position": 0}
    counted(5)


@pytest.mark.parametrize("order", ["<", ">"])
def test_batches_are_in_the_byte_order_of_this_machine(order):
    """Files may have the other one."""
    x, y = np.arange(6, dtype=f"{order}f4"), np.arange(6, dtype=f"{order}i8")
    [(found, labels)] = Loader(Arrays(x, y), 6, shuffle=False).arrays()
    for array, expected in ((found, x), (labels, y)):
        assert array.dtype.isnative
        assert array.tolist() == expected.tolist()
    counted(4)


def test_an_iterator_from_before_a_load_moves_nothing():
    loader = Loader(Made(9), 3, seed=2)
    old = iter(loader)
    next(old)
    loader.load({"epoch": 4, "position": 1})
    next(old)
    assert loader.state() == {"epoch": 4, "position": 1}
    assert len(list(old)) == 1
    assert loader.state() == {"epoch": 4, "position": 1}
    assert seen(loader)[0] == permutation(9, 2, 4)[3:6].tolist()
    counted(3)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_an_error_names_the_example(workers):
    loader = Loader(Made(12, bad=7), 4, shuffle=False, workers=workers)
    given = []
    with pytest.raises(weft.RunError, match=r"\[Loader\] example 7 cannot be read: OSError: broken file") as caught:
        for x, _ in loader:
            given.append(x.shape[0])
    assert given == [4]
    assert isinstance(caught.value.__cause__, OSError)
    assert loader.state() == {"epoch": 0, "position": 1}
    assert "test_loader.py" in str(caught.value)
    counted(4)
    del caught
    all_threads_end()


def test_errors_of_a_whole_batch():
    class Odd(Made):
        def inputs(self, indices):
            if len(indices) > 1:
                raise ValueError("too many")
            return self.x[indices]

    with pytest.raises(
        weft.RunError, match=r"the batch of examples 0, 1, 2, 3, \.\.\. cannot be read: ValueError: too many"
    ):
        list(Loader(Odd(6), 5, shuffle=False))

    class Short(Made):
        def inputs(self, indices):
            return self.x[indices][1:]

    with pytest.raises(weft.RunError, match=r"inputs\(\) must return one input per index, got 1 for 2 indices\."):
        list(Loader(Short(6), 2))
    counted(2)


@pytest.mark.parametrize("how", ["break", "close", "garbage", "interrupt"])
def test_no_thread_stays(how):
    loader = Loader(Made(100), 2, workers=3, prefetch=4)
    batches = iter(loader)
    next(batches)
    assert loader_threads()
    if how == "close":
        batches.close()
    elif how == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            batches.throw(KeyboardInterrupt())
    elif how == "break":
        for _ in batches:
            break
    del batches
    gc.collect()
    all_threads_end()


def test_an_interrupt_while_waiting():
    class Interrupted(Made):
        def inputs(self, indices):
            if 4 in indices:
                raise KeyboardInterrupt
            return self.x[indices]

    with pytest.raises(KeyboardInterrupt):
        list(Loader(Interrupted(8), 2, shuffle=False))
    all_threads_end()


def test_what_was_begun_for_nobody_is_not_read():
    class Waiting(Made):
        go = threading.Event()

        def inputs(self, indices):
            if indices[0] > 0:
                self.go.wait(timeout=10)
            return super().inputs(indices)

    data = Waiting(10)
    batches = iter(Loader(data, 1, shuffle=False, prefetch=6))
    next(batches)
    batches.close()
    data.go.set()
    all_threads_end()
    assert len(data.asked) <= 2  # the one that was given, and the one the thread was at
    counted()


def test_work_ahead_is_bounded():
    data = Made(100)
    for workers, prefetch in [(1, 1), (1, 3), (2, 2)]:
        data.asked.clear()
        batches = iter(Loader(data, 1, workers=workers, prefetch=prefetch))
        for taken in range(1, 6):
            next(batches)
            assert taken <= len(data.asked) <= taken + prefetch
            counted()
        batches.close()
        all_threads_end()
        assert all(name.startswith("weft-loader") for name in data.asked)
    data.asked.clear()
    next(iter(Loader(data, 1, workers=0)))
    assert data.asked == [threading.current_thread().name]
    assert not loader_threads()


def test_batches_keep_their_values():
    """A dataset that fills the same memory again and again does not change tensors that were given out."""

    class Reusing(Made):
        def __init__(self, count):
            super().__init__(count)
            self.memory = np.zeros((2, 1, 2, 2), np.uint8)

        def inputs(self, indices):
            self.memory[: len(indices)] = self.x[indices]
            return self.memory[: len(indices)]

    kept = list(Loader(Reusing(8), 2, shuffle=False))
    assert seen(kept) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    data = Made(4)
    kept = list(Loader(data, 2, shuffle=False))
    data.x[:] = 99
    data.labels[:] = 99
    assert seen(kept) == [[0, 1], [2, 3]]
    assert [y.tolist() for _, y in kept] == [[0, 10], [20, 30]]
    counted(3)


def test_arrays_in_memory_and_in_files(tmp_path):
    x, y = np.arange(24, dtype=np.uint8).reshape(6, 1, 2, 2), np.arange(6)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for pixels in (x, mapped, x[:, :, ::-1][:, :, ::-1], x.astype(np.float32), x.astype(">f8")):
        [a, b] = Loader(Arrays(pixels, y), 4, seed=1)
        order = permutation(6, 1, 0)
        assert np.array_equal(np.concatenate([a.x.numpy(), b.x.numpy()]), x[order])
        assert a.y.tolist() + b.y.tolist() == order.tolist()
        assert a.x.numpy().dtype == pixels.dtype.newbyteorder("=")
        counted(3)


def test_values_of_regression():
    [batch] = Loader(Arrays(np.zeros((3, 2), np.float32), np.array([0.5, 1.5, 2.5])), 3, shuffle=False)
    assert batch.y.tolist() == [0.5, 1.5, 2.5]
    counted()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_goes_on_without_threads():
    batches = iter(Loader(Made(12), 2, shuffle=False, workers=2))
    first = next(batches)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            rest = [int(i) for x, _ in batches for i in np.asarray(x.node.params[0].content)[:, 0, 0, 0]]
            os.write(writes, bytes(rest))
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        assert list(pipe.read()) == list(range(2, 12))
    os.waitpid(child, 0)
    assert seen([first]) == [[0, 1]]
    assert seen(batches) == [[2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    counted(3)
    all_threads_end()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Loader(Made(4), 0), "the size of a batch must be an int of 1 or more, got 0"),
        (lambda: Loader(Made(4), 2, workers=-1), "the number of workers must be an int of 0 or more, got -1"),
        (lambda: Loader(Made(4), 2, prefetch=0), "the number of batches to prefetch must be an int of 1 or more, got 0"),
        (lambda: Loader(Made(4), 2, seed=-1), "the seed must be an int of 0 or more, got -1"),
        (lambda: Loader(Made(4), 2, seed=1 << 64), "the seed must be an int from 0 to 2**64 - 1"),
        (lambda: Loader(Made(0), 2), "a dataset with at least one example is required"),
        (lambda: Loader(Made(3), 4, drop_last=True), "3 examples do not fill a batch of 4"),
        (lambda: Loader(Made(4), 2).load({"epoch": 0}), "a state must have epoch and position, got epoch"),
        (lambda: Loader(Made(4), 2).load({"epoch": 0, "position": 2}), "the position must be below 2, the number of batches, got 2"),
        (lambda: Loader(Made(4), 2).load({"epoch": -1, "position": 0}), "the epoch must be an int of 0 or more"),
    ],
)  # fmt: skip
def test_error_texts(make, text):
    with pytest.raises(weft.UserError) as caught:
        make()
    assert text in str(caught.value)
    counted()


def test_in_a_compiled_step():
    step = weft.jit(lambda x, y: (x.astype(weft.float32) / 255.0).mean() + y.sum())
    batches = list(Loader(Made(8), 4, shuffle=False))
    for x, y in batches:
        expected = x.numpy().mean() / 255.0 + y.numpy().sum()
        np.testing.assert_allclose(step(x, y).item(), expected, rtol=1e-6)
        counted()
