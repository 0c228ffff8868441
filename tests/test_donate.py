"""Donated arguments: results are written over them, whatever else refers to their values keeps it, and they cannot be used afterwards."""

import gc

import numpy as np
import pytest

import weft
from weft.testing import counted


def memory(tensor):
    """Where a tensor's value is."""
    return tensor.realize()._node.value.content.ctypes.data


def start(*shape, dtype="float32"):
    """A tensor that nothing else refers to."""
    return weft.asarray(np.arange(np.prod(shape)).reshape(shape).astype(dtype)).realize()


def put(cache, row, i):
    return cache.at[i].set(row)


def test_a_row_is_written_in_place():
    step = weft.jit(put, donate="cache")
    cache, row = start(40, 30), weft.ones(30)
    expected, where = cache.numpy().copy(), memory(cache)
    for i in range(5):
        cache = step(cache, row, i)
        expected[i] = 1
        assert memory(cache) == where
    np.testing.assert_array_equal(cache.numpy(), expected)
    program = step._for((cache, row, 0), {}).executable.program
    assert program.memory.arena == 0
    assert not [c for c in program.calls if c.kind == "copy" or (c.phase is not None and c.phase.copies)]


def test_a_donated_tensor_cannot_be_used():
    def twice(x):
        return x * 2.0

    step, x = weft.jit(twice, donate=0), start(3)
    y = step(x)
    assert y.tolist() == [0.0, 2.0, 4.0]
    uses = {
        "read": lambda: x.numpy(),
        "operation": lambda: x + 1.0,
        "argument": lambda: step(x),
        "captured": lambda: weft.jit(lambda z: z + x)(weft.ones(3)),
        "dlpack": lambda: np.from_dlpack(x),
        "device": lambda: x.to_device("reference"),
        "gradient": lambda: weft.grad(lambda z: (z * x).sum())(weft.ones(3)),
    }
    for use in uses.values():
        with pytest.raises(
            weft.UserError,
            match=r"\[jit\] this tensor of type float32\[3\] was donated to twice, which has overwritten it",
        ):
            use()
        counted()
    assert (x.shape, x.dtype, repr(x)) == ((3,), weft.float32, "Tensor(<float32[3], donated>)")
    x.assign(weft.ones(3))  # a new value makes it a tensor again
    assert x.tolist() == [1.0] * 3


def captured(x):
    """A compiled function that reads the same value."""
    other = weft.asarray(x)
    function = weft.jit(lambda: other * 1.0)
    function()
    return lambda: function().numpy()


def pending(x):
    """Work on the value that has not been done yet."""
    other = x * 1.0
    return lambda: other.numpy()


HOLDERS = {
    "another tensor": lambda x: weft.asarray(x).numpy,
    "an array": lambda x: x.numpy().view,
    "a detached tensor": lambda x: x.detach().numpy,
    "pending work": pending,
    "dlpack": lambda x: np.from_dlpack(x, copy=False).view,
    "a compiled function": captured,
}


@pytest.mark.parametrize("name", HOLDERS)
def test_what_others_hold_is_copied(name):
    step, x = weft.jit(lambda x: x + 1.0, donate=0), start(4)
    look = HOLDERS[name](x)
    y = step(x)
    np.testing.assert_array_equal(look(), [0, 1, 2, 3])
    np.testing.assert_array_equal(y.numpy(), [1, 2, 3, 4])
    where = memory(y)
    z = step(y)
    assert memory(z) == where  # this one was its own
    np.testing.assert_array_equal(look(), [0, 1, 2, 3])


def test_arrays_of_numpy_stay_as_they_are():
    step, a = weft.jit(lambda x: x + 1.0, donate=0), np.zeros(4, np.float32)
    for given in (a, weft.from_dlpack(a), weft.asarray(a, copy=False)):
        assert step(given).tolist() == [1.0] * 4
        assert not a.any()
    view = weft.asarray(np.broadcast_to(np.float32(1), (4,)))
    assert step(view).tolist() == [2.0] * 4
    assert step(np.float32(2)).item() == 3.0


def test_a_tensor_is_not_donated_twice():
    step, x = weft.jit(lambda x, y: x + y, donate=0), start(4)
    with pytest.raises(weft.UserError, match=r"\[jit\] a tensor that is donated to <lambda> is passed to it twice"):
        step(x, x)
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
    other = weft.asarray(x)
    assert step(x, other).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert other.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_an_argument_that_the_function_changes_keeps_its_memory_and_its_new_value():
    def update(p, g):
        p -= 0.5 * g
        return p, (p * g).sum()

    step, p, g = weft.jit(update, donate="p"), start(6), weft.ones(6)
    where, expected = memory(p), np.arange(6.0)
    for _ in range(3):
        result, total = step(p, g)
        expected -= 0.5
        assert result is p
        assert (p.tolist(), total.item(), memory(p)) == (expected.tolist(), expected.sum(), where)
    held = p.numpy()
    step(p, g)
    assert held.tolist() == expected.tolist()
    assert p.tolist() == (expected - 0.5).tolist()


def test_structures_keywords_and_methods():
    def swap(state, *, extra):
        return {"b": state["a"] + extra, "a": state["b"] * 2.0}, extra * 3.0

    step = weft.jit(swap, donate=("state", "extra"))
    state, extra = {"a": start(3), "b": start(4)}, start(3)
    places = {memory(t) for t in (*state.values(), extra)}
    new, left = step(state, extra=extra)
    assert {memory(t) for t in (*new.values(), left)} == places
    assert (new["a"].tolist(), new["b"].tolist(), left.tolist()) == ([0, 2, 4, 6], [0, 2, 4], [0, 3, 6])

    class Counter:
        def __init__(self):
            self.step = 2.0

        @weft.jit(donate=1)
        def next(self, x):
            return x + self.step

    x = start(3)
    where = memory(x)
    y = Counter().next(x)
    assert (y.tolist(), memory(y)) == ([2, 3, 4], where)


def test_a_result_that_updates_slices_is_preferred():
    def step(x, i):
        return x * 2.0, x.at[i].set(0.0)

    x = start(8, 8)
    where, before = memory(x), x.numpy().copy()
    double, updated = weft.jit(step, donate="x")(x, 3)
    del x
    assert memory(updated) == where
    np.testing.assert_array_equal(double.numpy(), 2 * before)
    before[3] = 0
    np.testing.assert_array_equal(updated.numpy(), before)


def test_state_and_random_numbers_beside_donations():
    total = weft.zeros(4)

    def step(x, scale, y):
        total.assign(total + x)
        return (y * scale, weft.random.uniform(4), x + total)

    def run(f):
        weft.seed(3)
        total.assign(weft.zeros(4))
        x, y, found = start(4), start(4), []
        for _ in range(3):
            y, noise, x = f(x, 2.0, y)
            found += [y.tolist(), noise.tolist(), x.tolist(), total.tolist()]
        return found

    assert run(weft.jit(step, donate=("x", "y"))) == run(step)


def test_a_donation_that_nothing_can_take_is_told_and_leaves_the_tensor():
    x = start(4)
    with pytest.warns(
        UserWarning,
        match=r"\[jit\] donated arguments are not used: no result has the shape and dtype of 0 of type float32\[4\]",
    ):
        assert weft.jit(lambda x: x.sum(), donate=0)(x).item() == 6.0
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert weft.jit(lambda x: x, donate=0)(x) is x
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_traced_and_differentiated_calls_donate_nothing():
    square, x = weft.jit(lambda x: x * x, donate=0), start(3)
    assert weft.grad(lambda x: square(x).sum())(x).tolist() == [0.0, 2.0, 4.0]
    assert weft.jit(lambda x: square(x) + x)(x).tolist() == [0.0, 2.0, 6.0]
    assert weft.vmap(square)(x).tolist() == [0.0, 1.0, 4.0]
    assert x.tolist() == [0.0, 1.0, 2.0]


def test_a_call_that_fails_has_taken_what_was_donated():
    step, cache = weft.jit(put, donate="cache"), start(4, 3)
    with pytest.raises(weft.RunError, match="out of range"):
        step(cache, weft.ones(3), weft.asarray(9))
    with pytest.raises(weft.UserError, match="was donated to put"):
        cache.numpy()
    assert step(start(4, 3), weft.ones(3), weft.asarray(1)).tolist()[1] == [1.0] * 3


def test_what_is_said_of_a_program_with_donations():
    x, row = start(40, 30), weft.ones(30)
    step, plain = weft.jit(put, donate="cache"), weft.jit(put)
    artifact = step.artifact(x, row, 0)
    assert str(artifact.inputs[0]) == "argument args.0, replaced"
    assert artifact != plain.artifact(x, row, 0)
    assert (step.memory(x, row, 0).results, plain.memory(x, row, 0).results) == (0, 4800)
    before = x.numpy().copy()
    step.explain(x, row, 0)
    np.testing.assert_array_equal(x.numpy(), before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"donate": 3}, r"there is no argument 3 that could be donated: the function takes \(cache, row, i\)"),
        ({"donate": "i", "static": "i"}, "an argument is static or donated, not both"),
    ],
)
def test_wrong_names(settings, message):
    with pytest.raises(weft.UserError, match=message):
        weft.jit(put, **settings)


def test_memory_of_donated_tensors_is_freed():
    step = weft.jit(lambda x: x + 1.0, donate=0)
    x = start(1000)
    where = memory(x)
    for _ in range(10):
        x = step(x)
    gc.collect()
    assert memory(x) == where


@pytest.mark.parametrize("device", ["reference", "null"])
def test_on_other_devices(device):
    with weft.knobs.set(device=device):
        x = weft.asarray(np.zeros(4, np.float32))
        y = weft.jit(lambda x: x + 1.0, donate=0)(x)
        assert y.shape == (4,)
        assert device == "null" or y.tolist() == [1.0] * 4
        with pytest.raises(weft.UserError, match="was donated"):
            x.numpy()


def test_on_a_gpu(monkeypatch, tmp_path):
    pytest.importorskip("triton")
    import fake_gpu

    fake_gpu.install(monkeypatch)
    with weft.knobs.set(device="cuda", cache=str(tmp_path / "cache"), compile_after=1):
        step, row = weft.jit(put, donate="cache"), weft.ones(3)
        cache = start(5, 3)
        content = cache._node.value.content
        where, expected = content.memory.address, cache.numpy().copy()
        del content
        for i in range(4):
            cache = step(cache, row, i)
            expected[i] = 1
            assert cache._node.value.content.memory.address == where
        np.testing.assert_array_equal(cache.numpy(), expected)
        held = weft.asarray(cache)
        step(cache, row, 4)
        np.testing.assert_array_equal(held.numpy(), expected)
