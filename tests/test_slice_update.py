"""Updates of slices: right for every key, and in place where the old value is not needed any more."""

import numpy as np
import pytest

import weft
from weft.compiler.planning.cost_model import work
from weft.errors import RunError
from weft.testing import counted


def floats(*shape, seed=0):
    """Whole numbers: sums of them are exact in any order."""
    return np.round(np.random.default_rng(seed).normal(size=shape) * 8).astype("float32")


def program_of(f, *args):
    return weft.jit(f)._for(args, {}).executable.program


def moved(program):
    """The bytes that a program reads and writes, loops by their bodies."""
    return sum(work(program, call).nbytes for call in program.calls)


def copies(program):
    """The calls that copy whole tensors."""
    return [c for c in program.calls if c.kind == "copy" or (c.phase is not None and c.phase.copies)]


def eager_and_compiled(update, shape, *args, dtype="float32", calls=3, threads=(1, 2)):
    """State that a function updates several times, as interpreted and as compiled."""
    start = floats(*shape).astype(dtype)
    with weft.knobs.set(device="reference", compile_after=1 << 30):
        expected = weft.asarray(start.copy())
        for number in range(calls):
            update(expected, number, *map(weft.asarray, args))
        expected = expected.numpy()
    for count in threads:
        with weft.knobs.set(threads=count):
            state = weft.asarray(start.copy())
            step = weft.jit(lambda i, *args, state=state: update(state, i, *args))
            for number in range(calls):
                step(number, *map(weft.asarray, args))
            np.testing.assert_array_equal(state.numpy(), expected)
    counted()


def setter(key, how="set"):
    """An update of a state at a key made of the number of the call."""

    def update(state, i, value):
        state.assign(getattr(state.at[key(i)], how)(value))

    return update


KEYS = {
    "dynamic": ((6, 5, 4), lambda i: (slice(None), i), (6, 4)),
    "negative": ((6, 5, 4), lambda i: (slice(None), i - 5), (6, 4)),
    "first axis": ((6, 5, 4), lambda i: i, (5, 4)),
    "last axis": ((6, 5, 4), lambda i: (Ellipsis, i), (6, 5)),
    "two axes": ((6, 5, 4), lambda i: (i, slice(None), i), (5,)),
    "an element": ((6, 5, 4), lambda i: (i, 2, i), ()),
    "strided": ((9, 5, 40), lambda i: (slice(1, None, 3), i, slice(2, 36)), (3, 34)),
    "backwards": ((9, 5, 4), lambda i: (slice(None, None, -2), i), (5, 4)),
    "static": ((6, 5, 4), lambda i: (slice(1, 3), 2), (2, 4)),
    "static steps": ((6, 50), lambda i: (slice(None, None, 2), slice(40, 3, -5)), (3, 8)),
    "nothing": ((6, 5), lambda i: (slice(3, 3), i), (0,)),
    "broadcast": ((6, 5, 4), lambda i: (slice(2, None), i), (4,)),
}


@pytest.mark.parametrize("how", ["set", "add", "max"])
@pytest.mark.parametrize("name", KEYS)
def test_updates_agree_with_the_interpreter(name, how):
    shape, key, value = KEYS[name]
    eager_and_compiled(setter(key, how), shape, floats(*value, seed=1))


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "int64", "float64"])
def test_updates_of_other_dtypes(dtype):
    eager_and_compiled(setter(lambda i: (slice(1, None), i)), (4, 5, 19), floats(3, 19, seed=1), dtype=dtype)


@pytest.mark.parametrize("how", ["set", "add"])
def test_places_that_are_named_twice(how):
    places = np.array([3, 0, 3, 3])
    eager_and_compiled(setter(lambda i: places, how), (5, 3), floats(4, 3))
    eager_and_compiled(setter(lambda i: (slice(None), places), how), (3, 5), floats(3, 4))


def shift(state, i, value):
    state[1:] = state[:-1]


def shift_dynamic(state, i, value):
    state[i] = state[i + 1]


def chained(state, i, value):
    state[i] = value
    state[i + 1, 1:] = state[i, :-1] * 2.0
    state[i + 2] = value - state[0]


def reads_old(state, i, value):
    old = state * 1.0
    state[i] = value + old.sum(axis=0)
    state[i + 1] = old[i] - value


def scaled(state, i, value):
    state[i] = value
    state *= 0.5


def swapped(state, i, value):
    new = state.at[i].set(value)
    state.assign(new.at[i + 1].set((new - state).sum(axis=0)))


@pytest.mark.parametrize("update", [shift, shift_dynamic, chained, reads_old, scaled, swapped])
def test_updates_that_read_what_they_replace(update):
    eager_and_compiled(update, (7, 20), floats(20, seed=2))


def looped(state, i, value):
    def step(carry, t):
        cache, total = carry
        cache = cache.at[t, 1:].set(value[1:] + total)
        return (cache, total + cache[t].sum()), cache[0, 0]

    (cache, _), _ = weft.scan(step, (state, value[0]), weft.arange(3))
    state.assign(cache)


def looped_with_old(state, i, value):
    """Each step also gives the cache as it was before."""

    def step(cache, t):
        return cache.at[t].set(value), cache

    cache, history = weft.scan(step, state, weft.arange(4))
    state.assign(cache + history.sum(axis=0))


def looped_on_captured(state, i, value):
    """The loop reads the cache as it was before the first step."""
    cache, _ = weft.scan(lambda cache, t: (cache.at[t].set(value + state[t + 1]), t), state, weft.arange(4))
    state.assign(cache)


def looped_while(state, i, value):
    def body(carry):
        t, cache = carry
        return t + 1, cache.at[t].add(value)

    state.assign(weft.while_loop(lambda carry: carry[0] < 3, body, (weft.asarray(0), state))[1])


def looped_never(state, i, value):
    state.assign(weft.while_loop(lambda c: c[0] < 0, lambda c: (c[0], c[1].at[0].set(value)), (i * 1, state))[1])


LOOPS = [looped, looped_with_old, looped_on_captured, looped_while, looped_never]


@pytest.mark.parametrize("update", LOOPS)
def test_updates_in_loops(update):
    eager_and_compiled(update, (7, 20), floats(20, seed=2))


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    pytest.importorskip("triton")
    fake_gpu = pytest.importorskip("fake_gpu")
    found = fake_gpu.install(monkeypatch)
    with weft.knobs.set(device="cuda", cache=str(tmp_path / "cache"), compile_after=1):
        yield found


@pytest.mark.parametrize("name", ["negative", "two axes", "strided", "static", "static steps", "nothing"])
def test_updates_on_a_gpu(gpu, name):
    shape, key, value = KEYS[name]
    eager_and_compiled(setter(key, "add"), shape, floats(*value, seed=1), threads=(1,))


@pytest.mark.parametrize("update", [shift, chained, swapped, *LOOPS])
def test_updates_on_a_gpu_that_read_what_they_replace(gpu, update):
    eager_and_compiled(update, (7, 20), floats(20, seed=2), threads=(1,))


# --- in place -----------------------------------------------------------------------------------------------------------------------


def test_a_row_of_state_costs_a_row():
    cache, row = weft.zeros((64, 1024)), weft.ones(64)

    def dynamic(row, i):
        cache[:, i] = row

    def static(row):
        cache[:, 3] = row * 2.0

    for program in (program_of(dynamic, row, 5), program_of(static, row)):
        assert not copies(program)
        assert moved(program) < 16 * row.size * 4


@pytest.mark.parametrize("key", [3, (slice(None), 3), slice(2, 4)])
@pytest.mark.parametrize("how", ["set", "add"])
def test_a_slice_at_a_known_place_of_a_parameter_costs_a_slice(key, how):
    """`assign` puts a `stop_gradient` between the update and the state."""
    w = weft.parameter(floats(64, 1024))
    value = weft.ones(w[key].shape)
    program = program_of(lambda value: w.assign(getattr(w.at[key], how)(value)), value)
    assert not copies(program)
    assert moved(program) < 8 * value.size * 4


def test_caches_of_keys_and_values_stay_in_place():
    keys, values = weft.zeros((8, 64, 16)), weft.zeros((8, 64, 16))

    def step(k, v, i):
        keys[:, i], values[:, i] = k, v
        return (weft.softmax((keys * k[:, None]).sum(axis=-1), axis=-1)[..., None] * values).sum(axis=1)

    program = program_of(step, weft.ones((8, 16)), weft.ones((8, 16)), 3)
    assert not copies(program)
    updating = [c for c in program.calls if c.kernel.name == "update_slice"]
    assert len(updating) == 2
    assert sum(work(program, c).written for c in updating) == 2 * 8 * 16 * 4


def test_a_chain_of_updates_stays_in_place():
    state = weft.zeros((70, 20))
    assert not copies(program_of(lambda v, i: chained(state, i, v), weft.zeros(20), 1))


def test_a_part_that_moves_within_its_tensor_stays_in_place():
    state = weft.zeros((70, 20))
    program = program_of(lambda i: shift_dynamic(state, i, None), 1)
    assert not copies(program)
    assert moved(program) < 70 * 20 * 4


@pytest.mark.parametrize("update", [looped, looped_while])
def test_a_loop_carries_in_place(update):
    state = weft.zeros((70, 20))
    program = program_of(lambda v: update(state, 0, v), weft.zeros(20))
    assert not copies(program)
    [body] = [bodies[-1] for bodies in program.bodies.values()]
    assert 1 in {*body.updates} or 0 in {*body.updates}
    assert not copies(body)
    assert sum(work(body, c).written for c in body.calls) < 70 * 20 * 4


def test_an_old_value_that_is_still_read_is_copied_once():
    def f(x, v, i):
        return x.at[i].set(v)

    program = program_of(f, weft.zeros((70, 20)), weft.zeros(20), 1)
    assert len(copies(program)) == 1
    state = weft.zeros((70, 20))

    def both(v, i):
        old = state + 0.0
        state[i] = v
        return old

    assert not copies(program_of(both, weft.zeros(20), 1))  # the reader of the old value runs first

    def kept(v, i):
        new = state.at[i].set(v)
        state.assign(new)
        return new

    assert len(copies(program_of(kept, weft.zeros(20), 1))) == 1  # the result is memory of its own


def test_an_intermediate_result_is_updated_where_it_is():
    def f(x, v, i):
        y = (weft.exp(x)).at[i].set(v)
        return y.at[i + 1].set(v).sum(axis=0)

    x, v = weft.asarray(floats(6, 20)), weft.asarray(floats(20, seed=1))
    assert not copies(program_of(f, x, v, 1))
    np.testing.assert_allclose(weft.jit(f)(x, v, 1).numpy(), f(x, v, 1).numpy(), rtol=1e-6)
    assert not copies(program_of(lambda x, v, i: weft.exp(x).at[i].set(v), x, v, 1))


def test_static_updates_of_temporaries_still_fuse():
    def f(x):
        return weft.exp((x * 2.0).at[1:3].set(1.0))

    program = program_of(f, weft.zeros((6, 20)))
    assert [c.kind for c in program.calls] == ["loops"]
    assert "update_slice" not in str(weft.jit(f).passes(weft.zeros((6, 20)))["refine"].nodes)


def test_a_value_that_replaces_other_state_does_not_take_its_memory_early():
    first, second = weft.asarray(floats(6, 20)), weft.asarray(floats(6, 20, seed=1))
    expected = second.numpy() * 2.0, np.exp(first.numpy() * 0.0) + second.numpy()[0]
    expected[1][1] = 7.0

    @weft.jit
    def step(i):
        made = weft.exp(first * 0.0) + second[0]  # reads the state that an update of it replaces
        first.assign(second * 2.0)
        second.assign(made.at[i].set(7.0))

    step(1)
    np.testing.assert_array_equal(first.numpy(), expected[0])
    np.testing.assert_array_equal(second.numpy(), expected[1])


# --- the rest --------------------------------------------------------------------------------------------------------------------------


def test_a_wrong_index_is_reported_and_writes_nothing():
    state = weft.zeros((4, 3))
    step = weft.jit(lambda v, i: state.assign(state.at[i].set(v)))
    for index in (4, -5):
        with pytest.raises(RunError, match=rf"index {index} is out of range for axis 0 of size 4"):
            step(weft.ones(3), index)
            state.numpy()
    assert not state.numpy().any()
    step(weft.ones(3), -4)
    assert state.numpy().sum() == 3


def test_arguments_that_are_not_changed_stay():
    x = weft.zeros((4, 3))
    f = weft.jit(lambda x, v, i: x.at[i].set(v))
    for number in range(3):
        assert f(x, weft.ones(3), number).numpy().sum() == 3
        assert not x.numpy().any()


def test_changed_arguments_and_views_of_the_old_value():
    x = weft.zeros((4, 3))

    @weft.jit
    def f(x, v, i):
        x[i] = v

    for number in range(3):
        before = x.numpy()
        f(x, weft.ones(3), number)
        assert x.numpy().sum() == 3 * (number + 1)
        assert before.sum() == 3 * number


def test_a_view_of_state_keeps_its_values():
    state = weft.zeros((4, 3))
    step = weft.jit(lambda v, i: state.assign(state.at[i].set(v)))
    for number in range(3):
        before = state.numpy()
        step(weft.ones(3), number)
        assert before.sum() == 3 * number


def test_derivatives_and_vmap():
    x, v = floats(5, 4), floats(5, seed=1)

    def f(x, v, i):
        return (x.at[:, i].set(v) ** 3.0).sum() + (x.at[1:3].add(v[0]) ** 2.0).sum()

    for transform in (lambda f: f, weft.jit):
        gx, gv = transform(weft.grad(f, argnums=(0, 1)))(weft.asarray(x), weft.asarray(v), 2)
        expected = 3 * np.where(np.arange(4) == 2, 0, x) ** 2 + 2 * (x + v[0] * np.isin(np.arange(5), (1, 2))[:, None])
        np.testing.assert_allclose(gx.numpy(), expected, rtol=1e-5)
        assert gv.shape == (5,)
        np.testing.assert_allclose(gv.numpy()[1:], 3 * v[1:] ** 2, rtol=1e-5)
    many, places = floats(3, 5, 4), np.array([0, 3, 1])
    got = weft.jit(weft.vmap(lambda x, i: x.at[1:, i].set(7.0)))(weft.asarray(many), weft.asarray(places))
    for number, place in enumerate(places):
        many[number, 1:, place] = 7.0
    np.testing.assert_array_equal(got.numpy(), many)
