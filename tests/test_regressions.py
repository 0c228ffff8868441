"""Mistakes that were made once. Each test was red before its mend."""

import copy
import gc
import math
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import weft
from weft.graph import Op, Type
from weft.tensor import emit

INF = math.inf


def test_halves_are_widened_however_they_are_given():
    ones = np.ones(100_000, np.float16)
    assert weft.mean(ones).item() == 1.0
    assert weft.softmax(x=weft.zeros(4, dtype="float16")).dtype is weft.float16
    assert weft.cross_entropy(logits=weft.zeros((1, 2)), target=[0]).item() == pytest.approx(math.log(2))


def test_small_integers_can_index_large_tables():
    table = weft.arange(600).reshape(300, 2)
    assert weft.embedding(table, weft.asarray([200], dtype="uint8")).tolist() == [[400, 401]]
    assert table[weft.asarray([-1], dtype="int8")].tolist() == [[598, 599]]


MOVED = {
    "spread": lambda x: weft.where(weft.asarray([[False, True], [False, True]]), weft.sqrt(x), 0.0),
    "sliced": lambda x: weft.where(weft.asarray([False]), weft.sqrt(x)[:1], 0.0),
    "reshaped": lambda x: weft.where(weft.asarray([[False], [True]]), weft.sqrt(x).reshape(2, 1), 0.0),
    "an infinite factor": lambda x: weft.where(weft.asarray([True, True]), x, x * INF),
}


@pytest.mark.parametrize("name", MOVED)
def test_the_mask_of_where_passes_movement(name):
    assert np.isfinite(weft.grad(lambda x: MOVED[name](x).sum())(weft.asarray([0.0, 1.0])).numpy()).all()


def test_a_body_of_which_nothing_is_needed():
    f = weft.checkpoint(lambda i, x: x.sum() + i.sum().astype("float32"))
    x = weft.asarray([1.5, 2.5])
    assert weft.grad(lambda x: f(x.astype("int64"), weft.ones(2)) + x.sum())(x).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: weft.cond(weft.asarray(True), lambda: None, lambda: None),
        lambda: weft.checkpoint(lambda x: None)(weft.ones(2)),
        lambda: weft.scan(lambda c, x: (None, None), None, weft.ones(2)),
    ],
)
def test_a_body_must_return_something(call):
    with pytest.raises(weft.UserError, match="must return at least one tensor"):
        call()


def test_a_detached_parameter_may_change():
    w, v = weft.parameter(1.0), weft.parameter(2.0)
    known = (w * 2.0).detach()
    w -= 0.5
    (v * known).backward()
    assert v.grad.item() == 2.0


def test_derivatives_by_a_changed_parameter_are_refused():
    p = weft.parameter(3.0)
    y = p * p
    p -= 1.0
    with pytest.raises(weft.UserError, match="changed in place"):
        weft.gradients(y, [p])


def test_a_constant_known_elsewhere_is_no_value_here():
    with weft.knobs.set(device="null"):
        held = weft.full((3,), 5.25).realize()
    total, _ = weft.scan(lambda c, x: (c + weft.full((3,), 5.25) * x, None), weft.zeros(3), weft.ones(2))
    assert total.tolist() == [10.5] * 3
    assert held.shape == (3,)


def test_a_device_that_was_asked_for_stays():
    x = weft.zeros(3, device="reference")
    with weft.knobs.set(device="null"):
        assert (x + 1.0).device.name == "reference"


def test_tracing_does_not_touch_streams_of_other_threads():
    stream = weft.random.Generator(1)
    inside, drawn = threading.Event(), threading.Event()
    values = []

    def body(c, x):
        inside.set()
        drawn.wait(10)
        return c + stream.uniform(), None

    def other():
        inside.wait(10)
        values.append(stream.uniform().item())
        drawn.set()

    thread = threading.Thread(target=other)
    thread.start()
    weft.scan(body, weft.asarray(0.0), weft.ones(2))
    thread.join()
    assert 0.0 <= values[0] < 1.0


def test_errors_travel_between_processes():
    with pytest.raises(weft.UserError) as caught:
        weft.zeros(3).reshape(2)
    for twin in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert type(twin) is weft.UserError
        assert str(twin) == str(caught.value)


def test_derivatives_of_bodies_do_not_keep_closures_alive():
    class Scale:
        def __init__(self, by):
            self.by = weft.asarray(by)

        def __call__(self, x):
            return x * self.by

    watched = []
    for i in range(5):
        scale = Scale(float(i))
        watched.append(weakref.ref(scale))
        own_rule = weft.custom_vjp(scale, lambda g, y, x, scale=scale: (g * scale.by,))
        weft.grad(weft.checkpoint(own_rule))(weft.asarray(1.0)).item()
    del scale, own_rule
    gc.collect()
    assert [w() for w in watched] == [None] * 5


def test_fmod_and_exp2_are_exact():
    x, y = np.float32([1e9, 1e8, -7.5, 7.0]), np.float32([7.0, 3.0, 2.0, INF])
    assert weft.fmod(x, y).tolist() == np.fmod(x, y).tolist()
    assert weft.fmod(weft.asarray([-7, 7]), 3).tolist() == [-1, 1]
    assert weft.exp2(weft.asarray(100.0)).item() == 2.0**100


def test_isin_and_isclose_and_nan_to_num():
    assert weft.isin(weft.arange(6).reshape(2, 3), [4, 1]).tolist() == [[False, True, False], [False, True, False]]
    assert weft.isin(weft.arange(2), weft.zeros(0, dtype="int64")).tolist() == [False, False]
    assert not weft.isclose(16777216, weft.asarray(16777217), rtol=0.0, atol=0.0).item()
    assert weft.nan_to_num(weft.asarray([math.nan, INF])).tolist() == [0.0, float(np.finfo(np.float32).max)]


@pytest.mark.whole_errors
def test_what_numpy_cannot_do_names_the_line():
    y = weft.zeros((2**40, 2**40)) + 1.0
    with pytest.raises(weft.RunError, match=r"test_regressions.py:\d+: y = weft.zeros"):
        y.numpy()


def test_ints_of_any_make():
    two = np.int64(2)
    assert weft.conv(weft.ones((1, 1, 8)), weft.ones((1, 1, 2)), stride=two, padding=np.int32(1)).shape == (1, 1, 5)
    assert weft.max_pool(weft.ones((1, 1, 8)), two).shape == (1, 1, 4)
    assert weft.pad(weft.ones(2), two).shape == (6,)
    assert weft.roll(weft.arange(3), two).tolist() == [1, 2, 0]
    assert len(weft.split(weft.arange(4), two)) == 2
    with pytest.raises(weft.UserError, match=r"\[conv\] the groups must be an int"):
        weft.conv(weft.ones((1, 1, 8)), weft.ones((1, 1, 2)), groups=1.0)


def test_the_text_of_an_op_declared_later_runs():
    op = Op("later_test_op", "elementwise", lambda x: Type(x.shape, x.dtype), np.negative, arity=1)
    names = {}
    exec(weft.make_graph(lambda x: emit(op, (x,)), weft.zeros(2)).text(), names)
    assert names["graph"](weft.ones(2))[0].tolist() == [-1.0, -1.0]
    with pytest.raises(weft.UserError, match="declared already"):
        Op("later_test_op", "elementwise", lambda x: Type(x.shape, x.dtype), np.negative, arity=1)


def test_a_setting_that_cannot_be_is_refused_wherever_it_is_set():
    with pytest.raises(weft.UserError, match="there is no setting 'pending_node'"):
        weft.knobs.pending_node = 3
    with pytest.raises(weft.UserError, match="WEFT_DEBUG cannot be 'x'"):
        weft.knobs.debug = "x"
    run = [sys.executable, "-c", "import weft; weft.Tensor"]
    said = subprocess.run(run, env={"WEFT_DEVICE": "moon"}, capture_output=True, text=True).stderr
    assert "WEFT_DEVICE cannot be 'moon'" in said


def test_settings_of_a_checkpoint_are_not_traced():
    f = weft.checkpoint(lambda x, flag, how: weft.mse_loss(x, x * 2.0, reduction=how) if flag else x.sum())
    assert f(weft.ones(2), True, "sum").item() == 2.0


def test_a_tensor_from_outside_cannot_change_inside_a_trace():
    total = weft.parameter(0.0)

    def body(c, x):
        nonlocal total
        total += x
        return c, None

    with pytest.raises(weft.UserError, match="cannot be changed inside a function that is being traced"):
        weft.scan(body, weft.asarray(0.0), weft.ones(2))
    assert total.item() == 0.0


def test_comparing_with_a_list_and_writing_without_a_key():
    assert (weft.asarray([1, 2]) == [1, 3]).tolist() == [True, False]
    with pytest.raises(weft.UserError, match="the key is missing"):
        weft.zeros(2).at.set(1.0)


def test_messages_name_the_function_that_was_called():
    with pytest.raises(weft.UserError, match=r"\[greater\] the shapes \(2,\) and \(3,\)"):
        weft.zeros(2) > weft.zeros(3)  # noqa: B015


def test_a_loop_of_bodies_stays_linear(monkeypatch):
    """What stands outside a body is not walked: the history of a loop would be walked in every step."""
    seen = []
    inputs_of = weft.tracing.trace.dependencies
    monkeypatch.setattr(weft.tracing.trace, "dependencies", lambda node: seen.append(node) or inputs_of(node))
    x, counts = weft.asarray(1.0), []
    for _ in range(100):
        x = weft.cond(x > 0.0, lambda v: v * 0.5, lambda v: v, x)
        counts.append(len(seen))
        seen.clear()
    assert counts[-1] == counts[1]
    assert x.item() == 0.5**100


def test_dicts_filled_in_another_order_are_the_same():
    start = {"a": weft.asarray(1.0), "b": weft.asarray(2.0)}
    last, _ = weft.scan(lambda c, x: ({"b": c["b"] + x, "a": c["a"] * 2.0}, None), start, weft.ones(3))
    assert (last["a"].item(), last["b"].item()) == (8.0, 5.0)


def looked_at(x):
    y = x * x
    float(y)
    return y


def test_looking_at_the_result_inside_a_differentiated_function():
    three, one = weft.asarray(3.0), weft.asarray(1.0)
    assert weft.grad(looked_at)(three).item() == 6.0
    assert weft.vjp(looked_at, three)[1](one)[0].item() == 6.0
    assert weft.jvp(looked_at, (three,), (one,))[1].item() == 6.0


def test_a_branch_that_is_not_taken_computes_nothing():
    n, m = weft.asarray([0]), weft.asarray([0])
    assert weft.cond(n.sum() > 0, lambda: 10 // n, lambda: n - 1).tolist() == [-1]
    assert weft.while_loop(lambda i: (i < 0).all(), lambda i: i + 10 // m, m).tolist() == [0]
    f = weft.grad(lambda x: weft.cond(x > 0.0, lambda: weft.log(x), lambda: x * 1.0))
    assert f(weft.asarray(0.0)).item() == 1.0


def test_a_copied_stream_is_a_stream():
    for twin in (copy.copy(weft.random.Generator(3)), copy.deepcopy(weft.random.Generator(3))):
        drawn = weft.scan(lambda c, _, g=twin: (c, g.uniform()), weft.asarray(0.0), length=3)[1]
        assert drawn.tolist() != [drawn.tolist()[0]] * 3


def test_threads_never_draw_the_same_numbers():
    stream, drawn = weft.random.Generator(5), [[] for _ in range(4)]

    def draw(into):
        into.extend(stream.bits() for _ in range(500))

    threads = [threading.Thread(target=draw, args=(into,)) for into in drawn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    places = {d._node.inputs[1] for into in drawn for d in into}
    assert len(places) == 2000


def test_functional_training_walks_only_its_own_step(monkeypatch):
    """Below the argument of a differentiated function lies the history of all steps before."""
    visits = []
    walk = weft.derivatives.toposort
    monkeypatch.setattr(weft.derivatives, "toposort", lambda *a: visits.append(walk(*a)) or visits[-1])
    w = weft.asarray(1.0)
    for _ in range(50):
        w = w - 0.1 * weft.grad(lambda w: w * w)(w)
    assert len({len(v) for v in visits[1:]}) == 1


REFUSED = {
    "an argument asked for twice": lambda: weft.grad(lambda a, b: a * b, (0, -2))(weft.ones(()), weft.ones(())),
    "a range beyond the dtype": lambda: weft.random.uniform((4,), 0.0, 1e5, dtype="float16"),
    "a text as ignore_index": lambda: weft.cross_entropy(weft.ones((2, 3)), [0, 1], ignore_index="1"),
    "an unknown way to approximate": lambda: weft.gelu(weft.ones(2), "sometimes"),
    "no dtype": lambda: weft.ones(2).astype(None),
    "a list as dtype": lambda: weft.zeros(2, dtype=[1]),
    "an empty text as dtype": lambda: weft.zeros(2, dtype=""),
    "an empty text as axis": lambda: weft.sum(weft.ones(2), axis=""),
    "a type as axis": lambda: weft.sum(weft.ones(2), axis=int),
    "a type as shape": lambda: weft.zeros(int),
    "a number as device": lambda: weft.zeros(2, device=0),
    "a list in itself": lambda: weft.asarray(CIRCLE),
    "a text as slope": lambda: weft.leaky_relu(weft.ones(2), "steep"),
    "None as eps": lambda: weft.layer_norm(weft.ones(2), eps=None),
    "a number as equation": lambda: weft.einsum(3, weft.ones(2)),
    "too many dots": lambda: weft.einsum("......i->i", weft.ones(2)),
    "an endless range": lambda: weft.arange(0, INF),
}
CIRCLE: list = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize("name", REFUSED)
def test_senseless_arguments_are_answered_in_our_words(name):
    with pytest.raises(weft.UserError) as caught:
        REFUSED[name]()
    first, last = str(caught.value).splitlines()[0], str(caught.value).splitlines()[-1]
    assert first.startswith("test_regressions.py:")
    assert last.startswith("[")


def test_dtypes_are_themselves_after_a_copy():
    for twin in (copy.deepcopy(weft.float32), pickle.loads(pickle.dumps(weft.float32))):
        assert twin is weft.float32


def test_memory_that_only_seems_read_only_is_copied():
    memory = bytearray(b"abc")
    x = weft.asarray(memoryview(memory).toreadonly())
    memory[0] = 200
    assert x.tolist() == [97, 98, 99]


def test_activations_in_half_precision_keep_their_tails():
    x = weft.asarray([-3.25], dtype="bfloat16")
    assert weft.gelu(x).item() == pytest.approx(-0.00188, rel=0.02)
    assert weft.grad(lambda x: weft.elu(x).sum())(weft.asarray([-20.0])).item() == pytest.approx(math.exp(-20.0))


def test_filter_gradients_where_the_ends_of_a_panel_agree_by_chance() -> None:
    """Rows of a panel were taken for neighbours because the first and the last were as far apart as if they were."""
    rng = np.random.default_rng(0)
    how = {"stride": (1, 2), "padding": ((1, 2), (1, 0))}
    for width in range(3, 10):
        x, w = rng.normal(size=(3, 1, 1, width)).astype("float32"), rng.normal(size=(3, 1, 3, 2)).astype("float32")
        slope = weft.grad(lambda w, x: (weft.conv(x, w, **how) ** 2).sum())
        actual = weft.jit(slope)(w, x).numpy()
        with weft.knobs.set(device="reference"):
            np.testing.assert_allclose(actual, slope(weft.asarray(w), weft.asarray(x)).numpy(), rtol=1e-4, atol=1e-4)


def test_a_traced_function_does_not_change_with_what_is_alive_outside():
    """A constant table that somebody looked at became data in every graph that computes the same table."""

    def table():
        return weft.arange(3).reshape(3, 1) + 1

    alone = weft.make_graph(table)
    seen = weft.arange(3).reshape(3, 1)
    assert seen.tolist() == [[0], [1], [2]]
    assert weft.make_graph(table) == alone


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,), (2, 0, 3)])
def test_kernels_over_nothing_are_compiled(shape):
    """Two kernels over a tensor without elements were compared by dividing by its size."""
    sine, negative = weft.jit(lambda a: (weft.sin(a), -weft.sin(a)))(np.zeros(shape, "float32"))
    assert sine.numpy().shape == negative.numpy().shape == shape
    total, double = weft.jit(lambda a: (weft.sin(a).sum(), weft.cos(a) * 2))(np.zeros(shape, "float32"))
    assert total.item() == 0.0
    assert double.numpy().shape == shape


PARTS = {
    "the first rows": lambda y: weft.tanh(y[:3]),
    "the first columns": lambda y: weft.tanh(y[:, :3]),
    "one row": lambda y: weft.tanh(y[:1]),
    "the last rows": lambda y: weft.tanh(y[2:]),
    "every other row": lambda y: weft.tanh(y[::2]),
    "the first elements": lambda y: weft.tanh(y.reshape(-1)[:7]),
    "the first rows, and all": lambda y: (weft.tanh(y[:3]), weft.sin(y)),
}


@pytest.mark.parametrize("name", PARTS)
def test_what_is_made_of_a_part_of_a_product(name):
    """The first rows lie where all of them begin, but are fewer: the product's epilogue wrote the rest behind their memory."""
    rng = np.random.default_rng(5)
    x, w = rng.normal(size=(5, 4)).astype("float32"), rng.normal(size=(4, 8)).astype("float32")
    image, filters = rng.normal(size=(4, 4, 5, 2)).astype("float32"), rng.normal(size=(8, 4, 1, 2)).astype("float32")

    def convolved(x, w):
        return weft.conv(x, w).permute(0, 2, 3, 1).reshape(20, 8)

    for product, a, b in ((weft.matmul, x, w), (convolved, image, filters)):
        with weft.knobs.set(device="reference"):
            expected = PARTS[name](product(weft.asarray(a), weft.asarray(b)))
        found = weft.jit(lambda a, b, product=product: PARTS[name](product(a, b)))(a, b)
        for actual, e in zip(*((t if isinstance(t, tuple) else (t,)) for t in (found, expected)), strict=True):
            np.testing.assert_allclose(actual.numpy(), e.numpy(), rtol=1e-5, atol=1e-5)


def test_the_graph_of_a_loop_does_not_depend_on_what_was_traced_before() -> None:
    """A mask that the body makes of numbers alone was taken for a value from outside where an older graph held the same nodes:
    another program, other last bits, another file in the cache."""

    def f(x: weft.Tensor) -> weft.Tensor:
        return weft.fori_loop(0, 3, lambda i, v: weft.tril(weft.sin(v)), x)

    first = weft.make_graph(f, weft.ones((3, 3)))
    again = weft.make_graph(f, weft.ones((3, 3)))
    assert again.text() == first.text()


def test_a_constant_that_somebody_holds_is_made_once_outside_of_the_loop() -> None:
    table = weft.sin(weft.arange(5).astype("float32"))
    graph = weft.make_graph(lambda x: weft.fori_loop(0, 3, lambda i, v: v * table, x), weft.ones(5))
    (loop,) = [n for n in graph.nodes if n.op.name == "scan"]
    assert "sin" in {n.op.name for n in graph.nodes}
    assert "sin" not in {n.op.name for n in loop.params[0].nodes}
