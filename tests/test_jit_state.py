"""Checks what `weft.jit` does with state: tensors from outside that a compiled function reads or changes."""

import gc
from typing import Any

import numpy as np
import pytest

import weft
from jit_tools import address, floats
from weft.knobs import knobs


def test_state_is_found_and_updated() -> None:
    w = weft.asarray(floats(4))
    total = weft.asarray(0.0)

    @weft.jit
    def step(x: Any) -> Any:
        w.assign(w - 0.1 * x)
        total.assign(total + (w * x).sum())
        return total * 2.0

    expected, sum_ = w.numpy().copy(), 0.0
    for i in range(4):
        x = floats(4, seed=i)
        got = step(x).item()
        expected = expected - np.float32(0.1) * x
        sum_ += float((expected * x).sum())
        assert got == pytest.approx(2 * sum_, rel=1e-5)
    np.testing.assert_allclose(w.numpy(), expected, rtol=1e-6)


def test_state_that_depends_on_no_argument() -> None:
    """A step counter: nothing in it comes from an argument."""
    steps = weft.asarray(0)
    reset = weft.asarray([1.0, 2.0])

    @weft.jit
    def step(x: Any) -> Any:
        steps.assign(steps + 1)
        reset.assign(weft.zeros(2))
        return x + steps.astype("float32")

    assert [step(weft.asarray(10.0)).item() for _ in range(3)] == [11.0, 12.0, 13.0]
    assert (steps.item(), reset.tolist()) == (3, [0.0, 0.0])


def test_state_with_no_arguments_at_all() -> None:
    w = weft.asarray([1.0, 2.0])

    @weft.jit
    def double() -> None:
        w.assign(w * 2.0)

    double()
    double()
    assert w.tolist() == [4.0, 8.0]


def test_state_stays_where_it_is() -> None:
    w = weft.asarray(floats(64))

    @weft.jit
    def step(x: Any) -> None:
        w.assign(w - 0.5 * x)

    step(floats(64))
    gc.collect()
    places = set()
    for _ in range(5):
        step(floats(64))
        places.add(address(w))
    assert len(places) == 1


def test_a_parameter_stays_where_it_is_and_stays_a_parameter() -> None:
    w = weft.parameter(floats(64))

    @weft.jit
    def step(x: Any) -> Any:
        loss = (w * x).sum()
        [g] = weft.gradients(loss, [w])
        w.assign(w - 0.5 * g)
        return loss

    step(floats(64))
    places = set()
    for _ in range(3):
        step(floats(64))
        places.add(address(w))
    assert len(places) == 1
    assert w.requires_grad
    [g] = weft.gradients((w * w).sum(), [w])
    np.testing.assert_allclose(g.numpy(), 2 * w.numpy(), rtol=1e-6)


def test_views_taken_before_a_step_do_not_change() -> None:
    w = weft.asarray(floats(8))

    @weft.jit
    def step(x: Any) -> None:
        w.assign(w + x)

    kept = []
    for _ in range(4):
        view = w.numpy()
        kept.append((view, view.copy()))
        step(np.ones(8, "float32"))
    for view, was in kept:
        np.testing.assert_array_equal(view, was)
    np.testing.assert_allclose(w.numpy(), kept[0][1] + 4, rtol=1e-6)


def test_part_of_a_view_keeps_the_memory_too() -> None:
    w = weft.asarray(floats(8))

    @weft.jit
    def step(x: Any) -> None:
        w.assign(w + x)

    step(np.ones(8, "float32"))
    part = w.numpy()[2:4]
    was = part.copy()
    step(np.ones(8, "float32"))
    np.testing.assert_array_equal(part, was)


def test_another_name_of_the_value_does_not_change() -> None:
    w = weft.asarray([1.0, 2.0])

    @weft.jit
    def step(x: Any) -> None:
        w.assign(w + x)

    step(np.ones(2, "float32"))
    twin, detached = weft.asarray(w), w.detach()
    other = weft.asarray([0.0, 0.0])
    other.assign(w)
    step(np.ones(2, "float32"))
    assert w.tolist() == [3.0, 4.0]
    assert twin.tolist() == detached.tolist() == other.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("make", [weft.asarray, weft.parameter])
def test_work_that_waits_on_the_old_value_reads_the_old_value(make: Any) -> None:
    w = make([1.0, 2.0])

    @weft.jit
    def step(x: Any) -> None:
        w.assign(w + x)

    step(np.ones(2, "float32"))
    waiting = w * 10.0
    step(np.ones(2, "float32"))
    step(np.ones(2, "float32"))
    assert waiting.tolist() == [20.0, 30.0]
    assert w.tolist() == [4.0, 5.0]


def test_assigning_from_outside_between_calls_is_seen() -> None:
    w, c = weft.asarray([1.0, 2.0]), weft.asarray(10.0)

    @weft.jit
    def step(x: Any) -> Any:
        w.assign(w + x * c)
        return w * 1.0

    one = np.ones(2, "float32")
    assert step(one).tolist() == [11.0, 12.0]
    w.assign(weft.zeros(2))
    c.assign(3.0)
    assert step(one).tolist() == [3.0, 3.0]
    w += 1.0
    w[0] = 100.0
    assert step(one).tolist() == [103.0, 7.0]
    assert w.tolist() == [103.0, 7.0]


def test_the_old_value_can_be_returned() -> None:
    w = weft.asarray([1.0, 2.0])

    @weft.jit
    def step(x: Any) -> Any:
        old = w * 1.0
        w.assign(w + x)
        return old

    one = np.ones(2, "float32")
    assert step(one).tolist() == [1.0, 2.0]
    assert step(one).tolist() == [2.0, 3.0]
    assert w.tolist() == [3.0, 4.0]


def test_the_old_value_goes_to_another_state() -> None:
    w, before = weft.asarray([1.0, 2.0]), weft.zeros(2)

    @weft.jit
    def step(x: Any) -> None:
        old = w * 1.0
        w.assign(w + x)
        before.assign(old)

    step(np.ones(2, "float32"))
    step(np.ones(2, "float32"))
    assert (before.tolist(), w.tolist()) == ([2.0, 3.0], [3.0, 4.0])


@pytest.mark.parametrize("count", [2, 3])
def test_states_change_places(count: int) -> None:
    states = [weft.asarray([float(i), float(i)]) for i in range(count)]

    @weft.jit
    def rotate() -> None:
        values = [s * 1.0 for s in states]
        for s, v in zip(states, values[1:] + values[:1], strict=True):
            s.assign(v)

    rotate()
    assert [s.tolist()[0] for s in states] == [*range(1, count), 0]
    rotate()
    assert [s.tolist()[0] for s in states] == [*range(2, count), 0, 1]


def test_states_change_places_and_values() -> None:
    a, b = weft.asarray([1.0, 2.0]), weft.asarray([3.0, 4.0])

    @weft.jit
    def step(x: Any) -> Any:
        p, q = a + x, b * 2.0
        a.assign(q)
        b.assign(p)
        return a + b

    assert step(np.ones(2, "float32")).tolist() == [8.0, 11.0]
    assert (a.tolist(), b.tolist()) == ([6.0, 8.0], [2.0, 3.0])


def test_an_argument_becomes_the_state() -> None:
    w = weft.zeros(2)

    @weft.jit
    def keep(x: Any) -> Any:
        w.assign(x)
        return x

    x = weft.asarray([1.0, 2.0])
    keep(x)
    keep(x + 1.0)
    assert (x.tolist(), w.tolist()) == ([1.0, 2.0], [2.0, 3.0])


def test_the_state_is_given_as_an_argument_too() -> None:
    w = weft.asarray([1.0, 2.0])

    @weft.jit
    def step(x: Any) -> Any:
        w.assign(w + x)
        return x * 1.0

    step(w)
    got = step(w)
    assert (got.tolist(), w.tolist()) == ([4.0, 8.0], [4.0, 8.0]), "as without jit: x is w"


def test_a_state_changed_twice_in_one_call() -> None:
    w = weft.asarray([1.0, 2.0])

    @weft.jit
    def step(x: Any) -> Any:
        w.assign(w + x)
        middle = w * 1.0
        w.assign(w * w)
        return middle

    assert step(np.ones(2, "float32")).tolist() == [2.0, 3.0]
    assert w.tolist() == [4.0, 9.0]


def test_writing_a_part_of_the_state() -> None:
    w = weft.zeros(4)

    @weft.jit
    def put(i: Any, v: Any) -> None:
        w[i] = v

    put(1, 5.0)
    put(3, 7.0)
    assert w.tolist() == [0.0, 5.0, 0.0, 7.0]


def test_a_reversed_state_is_not_read_after_it_is_written() -> None:
    """Every element needs another one that the same kernel writes."""
    w = weft.asarray(floats(1000))
    m = weft.asarray(floats(40, 40))
    before, matrix = w.numpy().copy(), m.numpy().copy()

    @weft.jit
    def step(x: Any) -> None:
        w.assign(w[::-1] + x)
        m.assign(m.mT * 2.0)

    step(np.ones(1000, "float32"))
    np.testing.assert_array_equal(w.numpy(), before[::-1] + 1)
    np.testing.assert_array_equal(m.numpy(), matrix.T * 2)


def test_a_state_normalised_by_its_own_sum() -> None:
    w = weft.asarray(np.abs(floats(7, 300)) + 1)
    before = w.numpy().copy()

    @weft.jit
    def step(x: Any) -> None:
        w.assign(w / w.sum(axis=1, keepdims=True) + x)

    step(0.0)
    np.testing.assert_allclose(w.numpy(), before / before.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("beside", ["total", "new"])
def test_a_state_of_each_row_is_read_after_the_row_has_its_new_value(beside: str) -> None:
    """One kernel reduces a row, stores its state, and reads the old state again for all elements of the row."""
    start, x = floats(6), floats(6, 40, seed=1)
    state = weft.asarray(start)

    @weft.jit
    def step(x: Any) -> Any:
        total = x.sum(axis=1)
        new = state + total
        result = x * state[:, None] + (total if beside == "total" else new)[:, None]
        state.assign(new)
        return result

    found, total = step(x).numpy(), x.sum(axis=1)
    added = total if beside == "total" else start + total
    np.testing.assert_allclose(found, x * start[:, None] + added[:, None], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.numpy(), start + total, rtol=1e-5, atol=1e-5)


def test_a_product_with_the_state_that_replaces_it() -> None:
    w = weft.asarray(floats(40, 40))
    before, x = w.numpy().copy(), floats(40, 40, seed=1)

    @weft.jit
    def step(x: Any) -> None:
        w.assign(w @ x + w)

    step(x)
    np.testing.assert_allclose(w.numpy(), before.astype("f8") @ x + before, rtol=1e-4, atol=1e-4)


def test_equal_states_stay_two() -> None:
    a, b = weft.zeros(3), weft.zeros(3)
    c = weft.asarray([1.0, 1.0, 1.0])
    d = weft.asarray(c)

    @weft.jit
    def step(x: Any) -> None:
        a.assign(a + x)
        b.assign(b - x)
        d.assign(d * 5.0)

    step(np.ones(3, "float32"))
    assert (a.tolist()[0], b.tolist()[0], c.tolist()[0], d.tolist()[0]) == (1.0, -1.0, 1.0, 5.0)
    step(np.ones(3, "float32"))
    assert (a.tolist()[0], b.tolist()[0], c.tolist()[0], d.tolist()[0]) == (2.0, -2.0, 1.0, 25.0)


def test_a_captured_tensor_outlives_its_name() -> None:
    w = weft.asarray([1.0, 2.0])
    box = [w]

    @weft.jit
    def f(x: Any) -> Any:
        return x + box[0]

    assert f(np.ones(2, "float32")).tolist() == [2.0, 3.0]
    del w
    box.clear()
    gc.collect()
    assert f(np.ones(2, "float32")).tolist() == [2.0, 3.0]


def test_a_state_of_every_dtype() -> None:
    names = ("uint8", "int16", "uint32", "int64", "float16", "bfloat16", "float64")
    states = [weft.asarray([0, 1, 1], dtype=name) for name in names]
    flags = weft.asarray([False, True, True])

    @weft.jit
    def step(x: Any) -> None:
        for s in states:
            s.assign(s + x.astype(s.dtype))
        flags.assign(~flags)

    for _ in range(2):
        step(weft.asarray([1, 1, 0]))
    for name, state in zip(names, states, strict=True):
        assert [int(v) for v in state.tolist()] == [2, 3, 1], name
    assert flags.tolist() == [False, True, True]


@pytest.mark.parametrize("make", [weft.asarray, weft.parameter])
def test_what_is_prepared_of_a_weight_follows_the_weight(make: Any) -> None:
    """One function only reads the weight, and may keep it packed; another one changes it in place, unseen by the first."""
    w, now, x = make(floats(64, 64)), floats(64, 64), floats(64, 64, seed=1)
    predict = weft.jit(lambda x: weft.relu(x @ w))

    @weft.jit
    def step(x: Any) -> None:
        w.assign(w * 0.5 + x)

    found, expected = [], []
    for i in range(8):
        if i % 2:
            step(x)
            now = now * np.float32(0.5) + x
        if i == 6:
            w.assign(weft.zeros((64, 64)))
            now = np.zeros((64, 64), "float32")
        found.append(predict(x))
        expected.append(np.maximum(x.astype("f8") @ now, 0))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-4, atol=1e-3)


def test_a_value_known_on_one_device_does_not_follow_to_another() -> None:
    """The graph of a compiled function keeps nodes alive; what another device computes for them is its own affair."""

    def f(x: Any) -> Any:
        return x[weft.arange(2) * 3]

    fast, x = weft.jit(f), floats(4)
    expected = fast(x).tolist()
    with knobs.set(device="reference"):
        assert f(weft.asarray(x)).tolist() == expected
    assert f(weft.asarray(x)).tolist() == expected
    assert weft.jit(f)(x).tolist() == expected


def test_what_was_computed_from_parameters_keeps_its_history() -> None:
    w = weft.parameter([1.0, 2.0])
    doubled = w * 2.0
    f = weft.jit(lambda x: x * doubled)
    for _ in range(2):
        assert f(np.float32([3.0, 4.0])).tolist() == [6.0, 16.0]
        assert weft.gradients(doubled.sum(), [w])[0].tolist() == [2.0, 2.0]
    doubled.assign(doubled + 1.0)
    assert f(np.float32([1.0, 1.0])).tolist() == [3.0, 5.0]


@pytest.mark.parametrize("way", ["alone", "beside", "backward"])
def test_derivatives_do_not_reach_what_was_computed_before(way: str) -> None:
    """Nor is the part that they do reach given out as all of it."""
    w = weft.parameter([1.0, 2.0])
    doubled = w * 2.0

    def step(x: weft.Tensor) -> weft.Tensor | None:
        if way == "backward":
            (x * doubled * w).sum().backward()
            return w.grad
        return weft.gradients((x * doubled if way == "alone" else x * doubled * w).sum(), [w])[0]

    with pytest.raises(weft.UserError, match=r"a part of the value was made .* before this one was compiled"):
        weft.jit(step)(weft.ones(2))
    assert weft.gradients(doubled.sum(), [w])[0].tolist() == [2.0, 2.0]
    detached = doubled.detach()
    found = weft.jit(lambda x: weft.gradients((x * detached * w).sum(), [w])[0])(weft.ones(2))
    assert found.tolist() == [2.0, 4.0]


def test_nor_what_a_compiled_function_gave() -> None:
    w = weft.parameter([1.0, 2.0])
    made = weft.jit(lambda: w * 2.0)()
    for call in (lambda: weft.gradients((made * w).sum(), [w]), lambda: (made * w).sum().backward()):
        with pytest.raises(weft.UserError, match=r"a part of the value was made by a compiled function"):
            call()
    assert weft.gradients((made.detach() * w).sum(), [w])[0].tolist() == [2.0, 4.0]


def test_what_other_parameters_made_counts_as_given() -> None:
    """A teacher's answers, the images of a generator: they were not made of what is trained."""
    teacher, student = weft.parameter([1.0, 2.0]), weft.parameter([3.0, 4.0])
    answers = weft.jit(lambda: teacher * 2.0)()
    assert weft.gradients((answers * student).sum(), [student])[0].tolist() == [2.0, 4.0]
    (answers * student).sum().backward()
    assert student.grad is not None
    assert student.grad.tolist() == [2.0, 4.0]
    doubled = teacher * 2.0
    found = weft.jit(lambda x: weft.gradients((x * doubled * student).sum(), [student])[0])(weft.ones(2))
    assert found.tolist() == [2.0, 4.0]


def test_a_value_that_python_computes_from_state_is_part_of_the_program() -> None:
    """Also if it is not the state itself that is read."""
    count = weft.asarray(1)
    step = weft.jit(lambda x: x * int(count * 2 + 1))
    for i in range(3):
        count.assign(weft.asarray(i))
        assert step(weft.ones(1)).item() == 2 * i + 1


@pytest.mark.parametrize("shifted", [False, True])
def test_an_index_that_is_state_stays_a_variable(shifted: bool) -> None:
    """A position that moves with every step is no reason to trace again."""
    place, cache, traced = weft.asarray(0), weft.zeros((5, 2)), []

    @weft.jit
    def step(x: Any) -> Any:
        traced.append(1)
        following = place + 1
        place.assign(following)
        at = following - 1 if shifted else following
        cache.assign(cache.at[at].set(x))
        return cache[at].sum()

    for i in range(3):
        assert step(floats(2, seed=i)).item() == pytest.approx(floats(2, seed=i).sum(), rel=1e-6)
    first = 0 if shifted else 1
    np.testing.assert_array_equal(cache.numpy()[first : first + 3], [floats(2, seed=i) for i in range(3)])
    assert len(traced) == 1
