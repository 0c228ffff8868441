"""Checks what `weft.jit` promises: the same values and the same state as the plain function, whatever is done in between."""

import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft
from jit_tools import counting, floats
from weft.knobs import knobs
from weft.tracing.jit import Jit

# --- arguments and results ------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Any
    second: Any


def test_nested_arguments_and_results() -> None:
    @weft.jit
    def f(batch: Any, *rest: Any, scale: Any) -> Any:
        return {
            "sum": batch["x"] + batch["y"][0],
            "pair": Pair(rest[0] * scale, None),
            "list": [batch["y"][1], (rest[1],)],
        }

    x, y = weft.asarray([1.0, 2.0]), weft.asarray([3.0, 4.0])
    got = f({"x": x, "y": [y, x]}, x, y, scale=weft.asarray(2.0))
    assert got["sum"].tolist() == [4.0, 6.0]
    assert isinstance(got["pair"], Pair)
    assert got["pair"].first.tolist() == [2.0, 4.0]
    assert got["pair"].second is None
    assert got["list"][0].tolist() == [1.0, 2.0]
    assert got["list"][1][0].tolist() == [3.0, 4.0]


def test_numpy_arrays_and_numbers_are_values() -> None:
    f, traces = counting(lambda x, y: x * y)
    fast = weft.jit(f)
    assert fast(np.array([1.0, 2.0], "float32"), 3.0).tolist() == [3.0, 6.0]
    assert fast(np.array([1.0, 2.0], "float32"), 5.0).tolist() == [5.0, 10.0]
    assert fast(weft.asarray([1.0, 2.0]), 7.0).tolist() == [7.0, 14.0]
    assert len(traces) == 1
    assert fast(np.array([1, 2]), True).tolist() == [1, 2]
    assert fast(np.float64(2.0), 2) == 4.0


def test_arrays_that_are_not_laid_out_in_order() -> None:
    x = np.arange(12.0, dtype="float32").reshape(3, 4)
    f = weft.jit(lambda a: a * 2.0 + a.sum(axis=0))
    for odd in (x.T, x[::-1], x[:, ::2], np.broadcast_to(x[0], (3, 4))):
        np.testing.assert_array_equal(f(odd).numpy(), odd * 2 + odd.sum(0))
    x = np.arange(6.0, dtype="float32")
    crooked = np.zeros(25, "uint8")[1:].view("float32")
    crooked[:] = x
    np.testing.assert_array_equal(weft.jit(lambda a: a + 1.0)(crooked).numpy(), x + 1)


def test_the_callers_array_is_read_not_written() -> None:
    x = floats(4)
    before = x.copy()
    state = weft.asarray(x, copy=False)

    @weft.jit
    def f(a: Any) -> Any:
        state.assign(state + a)
        return a

    f(x)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(state.numpy(), 2 * before)


def test_results_are_inputs_constants_or_each_other() -> None:
    @weft.jit
    def f(a: Any) -> Any:
        b = a + 1.0
        return a, b, b, weft.zeros(2), a, b * 2.0, 3.0

    x = weft.asarray([1.0, 2.0])
    *tensors, number = f(x)
    got = [t.tolist() for t in tensors]
    assert got == [[1.0, 2.0], [2.0, 3.0], [2.0, 3.0], [0.0, 0.0], [1.0, 2.0], [4.0, 6.0]]
    assert type(number) is float
    assert number == 3.0
    assert tensors[0] is tensors[4] is x, "as without jit"
    assert tensors[1] is tensors[2]


@pytest.mark.parametrize("f", [lambda x, w: x * 2.0, lambda x, w: x * w], ids=["of arguments", "of a parameter"])
def test_a_single_result_is_that_of_a_tuple_of_one(f: Callable[..., Any]) -> None:
    """It is handed out in a shorter way."""
    w = weft.ones(3)
    w.requires_grad = True
    single, tuple_of_one = weft.jit(lambda x: f(x, w)), weft.jit(lambda x: (f(x, w),))
    for i in range(3):
        x = weft.full((3,), i + 1.0)
        one, (other,) = single(x), tuple_of_one(x)
        assert (one.dtype, one.shape, one.device, one.tolist()) == (
            other.dtype,
            other.shape,
            other.device,
            other.tolist(),
        )
        assert getattr(one.node, "detached_from", None) == getattr(other.node, "detached_from", None)
        if f(x, w).node.tracked:
            for result in (one, other):
                with pytest.raises(weft.UserError, match="compiled"):
                    weft.gradients(result.sum(), [w])


def test_a_function_without_results_or_arguments() -> None:
    assert weft.jit(lambda: None)() is None
    assert weft.jit(lambda: weft.arange(3))().tolist() == [0, 1, 2]
    assert weft.jit(lambda x: ())(weft.ones(2)) == ()


def test_pending_arguments_are_computed() -> None:
    x = weft.asarray([1.0, 2.0]) * 3.0
    assert weft.jit(lambda a: a + 1.0)(x).tolist() == [4.0, 7.0]


def test_results_keep_their_values_when_called_again() -> None:
    f = weft.jit(lambda a: a * 2.0)
    first = f(weft.asarray([1.0]))
    second = f(weft.asarray([5.0]))
    assert (first.tolist(), second.tolist()) == ([2.0], [10.0])


def test_static_arguments_are_part_of_the_program() -> None:
    f, traces = counting(lambda x, n, mode: x * float(n) if mode == "mul" else x + float(n))
    fast = weft.jit(f, static=(1, "mode"))
    x = weft.asarray(2.0)
    assert fast(x, 3, mode="mul").item() == 6.0
    assert fast(x, 3, mode="add").item() == 5.0
    assert fast(x, 4, mode="add").item() == 6.0
    assert fast(x, 3, mode="mul").item() == 6.0
    assert len(traces) == 3


def test_texts_are_static_by_themselves() -> None:
    fast = weft.jit(lambda x, how: getattr(weft, how)(x))
    assert fast(weft.asarray(4.0), "sqrt").item() == 2.0
    assert fast(weft.asarray(4.0), "square").item() == 16.0


def test_what_is_neither_a_value_nor_hashable_is_refused() -> None:
    with pytest.raises(weft.UserError, match=r"\[jit\] argument 1 is neither a value nor hashable: set"):
        weft.jit(lambda x, s: x)(weft.zeros(1), {1})
    with pytest.raises(weft.UserError, match=r"\[jit\] a function is required, got 3"):
        weft.jit(3)


def test_the_wrapper_looks_like_the_function() -> None:
    @weft.jit(static="n")
    def step(x: Any, n: int = 2) -> Any:
        """Takes a step."""
        return x * float(n)

    assert (step.__name__, step.__doc__) == ("step", "Takes a step.")
    assert step(weft.asarray(3.0), n=4).item() == 12.0
    assert step(weft.asarray(3.0)).item() == 6.0


# --- tracing again ----------------------------------------------------------------------------------------------------------


def test_new_types_are_traced_once_each() -> None:
    f, traces = counting(lambda x: x + x)
    fast = weft.jit(f)
    for x in (weft.ones(2), weft.ones(3), weft.ones(2, dtype="float64"), weft.ones((1, 2))) * 2:
        np.testing.assert_array_equal(fast(x).numpy(), x.numpy() * 2)
    assert len(traces) == 4


def test_it_says_when_and_why_it_traces(capsys: pytest.CaptureFixture[str]) -> None:
    fast = weft.jit(lambda x: x + 1.0)
    with knobs.set(debug=1):
        fast(weft.ones(2))
        fast(weft.ones(2))
        fast(weft.ones(3))
    said = [line for line in capsys.readouterr().err.splitlines() if "traces" in line]
    assert len(said) == 2
    assert "for the first time" in said[0]
    assert "again: an argument was float32[2], now it is float32[3]" in said[1]


def test_the_reason_names_a_static_argument_too(capsys: pytest.CaptureFixture[str]) -> None:
    fast = weft.jit(lambda x, n: x + float(n), static=1)
    with knobs.set(debug=1):
        fast(weft.ones(2), 1)
        fast(weft.ones(2), 2)
    said = [line for line in capsys.readouterr().err.splitlines() if "again" in line]
    assert len(said) == 1
    assert "was 1, now it is 2" in said[0]


def test_only_so_many_programs_are_kept() -> None:
    f, traces = counting(lambda x: x * 2.0)
    fast = weft.jit(f, remember=2)
    for n in (1, 2, 3, 3, 2):
        assert fast(weft.ones(n)).tolist() == [2.0] * n
    assert len(fast.programs.latest) == 2
    assert len(traces) == 3
    assert fast(weft.ones(1)).tolist() == [2.0]
    assert len(traces) == 4


def test_the_program_used_last_is_the_last_to_go() -> None:
    f, traces = counting(lambda x: x * 2.0)
    fast = weft.jit(f, remember=2)
    for n in (1, 2, 1, 3, 1):  # 2 was used longest ago when 3 came
        fast(weft.ones(n))
    assert len(traces) == 3


# --- derivatives --------------------------------------------------------------------------------------------------------------


def make_net() -> tuple[list[weft.Tensor], Any]:
    params = [weft.parameter(floats(5, 7)), weft.parameter(floats(7, seed=1)), weft.parameter(floats(7, 3, seed=2))]

    def loss(x: Any, y: Any) -> Any:
        return weft.cross_entropy(weft.tanh(x @ params[0] + params[1]) @ params[2], y)

    return params, loss


X, Y = floats(6, 5, seed=3), np.array([0, 2, 1, 1, 0, 2])


def test_backward_sets_grads() -> None:
    params, loss = make_net()
    plain, plain_loss = make_net()

    @weft.jit
    def step(x: Any, y: Any) -> Any:
        value = loss(x, y)
        value.backward()
        return value

    got = step(X, Y)
    expected = plain_loss(weft.asarray(X), weft.asarray(Y))
    expected.backward()
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)
    for p, q in zip(params, plain, strict=True):
        assert p.grad is not None
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_backward_adds_to_grads_as_without_jit() -> None:
    w = weft.parameter([1.0, 2.0])

    @weft.jit
    def step(x: Any) -> None:
        (w * x).sum().backward()

    for i in range(1, 4):
        step(np.ones(2, "float32"))
        assert w.grad is not None
        assert w.grad.tolist() == [float(i)] * 2
    w.grad = None
    step(np.ones(2, "float32"))
    assert w.grad.tolist() == [1.0, 1.0]


def test_grads_used_and_cleared_inside() -> None:
    w = weft.parameter([1.0, 2.0])
    w.grad = weft.asarray([100.0, 100.0])

    @weft.jit
    def step(x: Any) -> None:
        w.grad = None
        (w * x).sum().backward()
        w.assign(w - w.grad)
        w.grad = None

    step(np.ones(2, "float32"))
    step(np.ones(2, "float32"))
    assert w.tolist() == [-1.0, 0.0]
    assert w.grad is None


def test_a_training_step_agrees_with_the_reference_device() -> None:
    def run(wrap: Any) -> list[np.ndarray]:
        params, loss = make_net()
        moments = [weft.zeros(p.shape) for p in params]

        def step(x: Any, y: Any) -> Any:
            value = loss(x, y)
            for p, m, g in zip(params, moments, weft.gradients(value, params), strict=True):
                m.assign(0.9 * m + g)
                p.assign(p - 0.1 * m)
            return value

        fast = wrap(step)
        losses = [fast(weft.asarray(X), weft.asarray(Y)).item() for _ in range(4)]
        return [np.array(losses), *(p.numpy().copy() for p in params), *(m.numpy().copy() for m in moments)]

    with knobs.set(device="reference"):
        expected = run(lambda f: f)
    got = run(weft.jit)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_jit_of_grad_and_grad_of_jit() -> None:
    def f(x: Any) -> Any:
        return (weft.sin(x) * x).sum()

    x = weft.asarray(floats(5))
    expected = weft.grad(f)(x).numpy()
    np.testing.assert_allclose(weft.jit(weft.grad(f))(x).numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(weft.grad(weft.jit(f))(x).numpy(), expected, rtol=1e-6)
    p = weft.parameter(floats(5))
    [g] = weft.gradients(weft.jit(f)(p), [p])
    np.testing.assert_allclose(g.numpy(), expected, rtol=1e-6)


def test_jit_of_captured_parameters_is_differentiable_from_outside() -> None:
    """The parameter is no argument: the jitted function must not cut it off in silence."""
    w = weft.parameter([2.0, 3.0])
    f = weft.jit(lambda x: (w * w * x).sum())
    try:
        [g] = weft.gradients(f(weft.ones(2)), [w])
    except weft.UserError:
        return
    assert g.tolist() == [4.0, 6.0]


def test_jit_inside_jit_is_one_program() -> None:
    w = weft.asarray(1.0)

    @weft.jit
    def inner(x: Any) -> Any:
        w.assign(w + 1.0)
        return x * w

    @weft.jit
    def outer(x: Any) -> Any:
        return inner(x) + inner(x)

    assert outer(weft.asarray(10.0)).item() == 50.0
    assert w.item() == 3.0
    assert outer(weft.asarray(10.0)).item() == 90.0
    assert inner(weft.asarray(10.0)).item() == 60.0
    assert w.item() == 6.0


# --- random numbers --------------------------------------------------------------------------------------------------------------


def draw(x: Any) -> Any:
    return weft.dropout(x, 0.5) + weft.random.normal((4,)), weft.random.uniform((3,))


def values(pair: Any) -> list[Any]:
    return [t.tolist() for t in pair]


def test_streams_move_on_as_without_jit() -> None:
    fast, x = weft.jit(draw), weft.ones(4)
    weft.seed(7)
    plain = [values(draw(x)) for _ in range(4)]
    weft.seed(7)
    assert [values(f(x)) for f in (draw, fast, fast, draw)] == plain
    weft.seed(7)
    assert [values(fast(x)) for _ in range(4)] == plain


def test_a_new_seed_between_calls_is_seen() -> None:
    fast, x = weft.jit(draw), weft.ones(4)
    for seed in (1, 2, 1):
        weft.seed(seed)
        got = values(fast(x))
        weft.seed(seed)
        assert got == values(draw(x))


def test_a_stream_of_ones_own() -> None:
    stream = weft.random.Generator(3)
    fast = weft.jit(lambda: stream.uniform((2,)))
    got = [fast().tolist() for _ in range(3)]
    again = weft.random.Generator(3)
    assert got == [again.uniform((2,)).tolist() for _ in range(3)]


def test_going_back_in_a_stream_between_calls() -> None:
    stream = weft.random.Generator(3)
    fast = weft.jit(lambda: stream.uniform((2,)))
    state = stream.state
    first = fast().tolist()
    fast()
    stream.state = state
    assert fast().tolist() == first


# --- errors ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [np.asarray, weft.asarray])
def test_a_program_does_not_keep_what_its_first_call_was_given(make: Any) -> None:
    f = weft.jit(lambda x, n: x * n)
    given = make(np.ones(8, "float32"))
    gone = weakref.ref(given)
    assert f(given, 2.0).tolist() == [2.0] * 8
    del given
    gc.collect()
    assert gone() is None


def test_an_error_while_tracing_leaves_everything_as_it_was() -> None:
    w, p = weft.asarray([1.0, 2.0]), weft.parameter([1.0, 2.0])
    stream = weft.random.Generator(3)

    def step(x: Any, fail: bool) -> Any:
        (p * x).sum().backward()
        w.assign(w + x)
        p.assign(p + x)
        stream.uniform((2,))
        if fail:
            raise KeyError("mine")
        return w * 1.0

    with pytest.raises(KeyError, match="mine"):
        weft.jit(step, static="fail")(np.ones(2, "float32"), fail=True)
    assert (w.tolist(), p.tolist(), p.grad, p.requires_grad) == ([1.0, 2.0], [1.0, 2.0], None, True)
    assert (w + 1.0).tolist() == [2.0, 3.0]
    assert stream.state[1].item() == 0
    fine = weft.jit(step, static="fail")
    assert fine(np.ones(2, "float32"), fail=False).tolist() == [2.0, 3.0]


def test_looking_at_a_value_while_tracing_is_an_error_that_says_what_to_do() -> None:
    w = weft.asarray([1.0, 2.0])

    @weft.jit
    def f(x: Any) -> Any:
        w.assign(w + x)
        return x if (x > 0.0).all() else -x

    with pytest.raises(weft.UserError, match=r"weft\.where, weft\.cond"):
        f(np.ones(2, "float32"))
    assert w.tolist() == [1.0, 2.0]


@pytest.mark.whole_errors
def test_an_error_at_run_time_names_the_line_and_leaves_the_function_usable() -> None:
    def body(x: Any, i: Any) -> Any:
        return x[i] * 2.0  # THE LINE

    f = weft.jit(body)
    x = weft.asarray([1.0, 2.0, 3.0])
    for _ in range(2):
        with pytest.raises(weft.RunError, match=r"\[gather\] index 7 is out of range for axis 0 of size 3") as caught:
            f(x, weft.asarray([0, 7]))
        assert "THE LINE" in str(caught.value)
        assert f(x, weft.asarray([0, -1])).tolist() == [2.0, 6.0]


@pytest.mark.whole_errors
def test_a_division_by_zero_names_the_line() -> None:
    f = weft.jit(lambda a, b: a // b)  # THE LINE
    with pytest.raises(weft.RunError, match=r"\[floor_divide\] an integer was divided by zero") as caught:
        f(weft.asarray([1, 2]), weft.asarray([1, 0]))
    assert "THE LINE" in str(caught.value)
    assert f(weft.asarray([4, 2]), weft.asarray([2, 2])).tolist() == [2, 1]


def test_equal_kernels_name_their_own_lines() -> None:
    """Kernels that do the same are one function, unless they are put down to different lines."""

    def divided(x: Any, y: Any, z: Any) -> Any:
        first = weft.cumulative_sum(x // y)
        return first // z

    f, begin = weft.jit(divided), divided.__code__.co_firstlineno
    ones, zeros = np.ones(5, "int64"), np.zeros(5, "int64")
    for given, line in (((ones, zeros, ones), begin + 1), ((ones, ones, zeros), begin + 2)):
        with pytest.raises(weft.RunError, match="an integer was divided by zero") as caught:
            f(*given)
        assert caught.value.source is not None
        assert caught.value.source.line == line


def test_an_error_comes_from_the_program_on_disk_too() -> None:
    """The second function finds its code in the cache; the messages are worked out again."""

    def body(x: Any, i: Any) -> Any:
        return (x + 1.0)[i]

    for _ in range(2):
        with pytest.raises(weft.RunError, match=r"index -9 is out of range"):
            weft.jit(body)(weft.asarray([1.0, 2.0, 3.0]), weft.asarray([-9]))


def test_an_op_without_a_compiled_form_is_refused_with_its_name() -> None:
    op = weft.graph.Op("test_jit_only_numpy", "elementwise", lambda x: x.type, np.positive, None, (), 1)
    with pytest.raises(
        weft.UserError, match=r"\[jit\] the op 'test_jit_only_numpy' has no lowering rule for the device 'cpu'"
    ):
        weft.jit(lambda x: weft.tensor.emit(op, (x,)))(weft.ones(2))


# --- looking inside ----------------------------------------------------------------------------------------------------------


def test_lower_and_text_do_not_run_it() -> None:
    w = weft.asarray([1.0, 2.0])

    @weft.jit
    def step(x: Any) -> Any:
        w.assign(w + x)
        return w * 2.0

    graph = step.lower(np.ones(2, "float32"))
    assert [str(i.type) for i in graph.inputs] == ["float32[2]", "float32[2]"]
    assert [str(o.type) for o in graph.outputs] == ["float32[2]", "float32[2]"]
    assert step.text(np.ones(2, "float32")) == graph.text()
    assert w.tolist() == [1.0, 2.0]
    assert isinstance(step, Jit)


def test_threads_are_part_of_the_key_and_not_of_the_result() -> None:
    f, traces = counting(lambda x: (x @ x.mT).sum(axis=0))
    fast, x = weft.jit(f), floats(33, 65)
    found = []
    for threads in (1, 2, 4):
        with knobs.set(threads=threads):
            found.append(fast(x).numpy().copy())
    assert len(traces) == 3
    assert all(np.array_equal(a, found[0]) for a in found)


@pytest.mark.parametrize("make", [weft.parameter, weft.asarray])
def test_detached_state_is_read_at_every_call(make):
    w = make([1.0, 2.0])
    scaled = weft.jit(lambda x: w.detach() * x)
    assert scaled(weft.asarray(1.0)).tolist() == [1.0, 2.0]
    w.assign(weft.asarray([5.0, 7.0]))
    assert scaled(weft.asarray(1.0)).tolist() == [5.0, 7.0]
