"""`weft.jit` on methods, and which arguments are static."""

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

import weft
from jit_tools import counting
from weft import nn


class Counter:
    """An object with a state and a compiled method."""

    def __init__(self, start: float) -> None:
        self.total = weft.asarray(start)
        self.traces = 0

    @weft.jit
    def add(self, x: weft.Tensor) -> weft.Tensor:
        """Adds to the total."""
        self.traces += 1
        self.total.assign(self.total + x)
        return self.total * 1.0

    @weft.jit(static="times")
    def repeated(self, x: weft.Tensor, times: int = 1) -> weft.Tensor:
        return x * float(times)


class Plain:
    @weft.jit
    def double(self, x: weft.Tensor) -> weft.Tensor:
        return x * 2.0


class Twice(Counter):
    @weft.jit
    def add(self, x: weft.Tensor) -> weft.Tensor:
        return super().add(2.0 * x)


class Noisy(nn.Module):
    """A module whose method follows its mode, with no other module in between."""

    def __init__(self) -> None:
        self.scale = 2.0

    @weft.jit
    def step(self, x: weft.Tensor) -> weft.Tensor:
        return x * self.scale if self.training else x

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return x * self.scale if self.training else x


# --- methods ----------------------------------------------------------------------------------------------------------------


def test_each_object_has_its_own_programs_and_state() -> None:
    a, b = Counter(0.0), Counter(100.0)
    for n in range(1, 4):
        assert a.add(1.0).item() == n
        assert b.add(10.0).item() == 100.0 + 10 * n
    assert (a.traces, b.traces) == (1, 1)
    assert (a.total.item(), b.total.item()) == (3.0, 130.0)


def test_a_method_looks_like_one_and_can_be_looked_into() -> None:
    a = Counter(0.0)
    assert (a.add.__name__, a.add.__doc__) == ("add", "Adds to the total.")
    assert a.add.__wrapped__.__self__ is a
    assert isinstance(Counter.add, type(a.add))
    assert "def " in a.add.text(1.0)
    assert a.add.memory(1.0).state == 4
    assert a.total.item() == 0.0  # looking changes nothing


def test_the_method_of_the_class_above() -> None:
    a = Twice(1.0)
    assert [a.add(1.0).item(), a.add(1.0).item()] == [3.0, 5.0]
    assert Counter.add(a, 1.0).item() == 6.0  # the object may be given by hand


def test_class_and_static_methods() -> None:
    class Scaled:
        factor = weft.asarray(3.0)

        @classmethod
        @weft.jit
        def of(cls, x: weft.Tensor) -> weft.Tensor:
            return x * cls.factor

        @staticmethod
        @weft.jit
        def half(x: weft.Tensor) -> weft.Tensor:
            return x / 2.0

    class Other(Scaled):
        factor = weft.asarray(5.0)

    assert (Scaled.of(2.0).item(), Other.of(2.0).item(), Scaled().of(2.0).item()) == (6.0, 10.0, 6.0)
    assert (float(Scaled.half(2.0)), float(Scaled().half(2.0))) == (1.0, 1.0)


def test_what_is_no_function_is_no_method() -> None:
    class Net:
        model = weft.jit(nn.ReLU())

    assert Net().model(np.float32([-1.0, 2.0])).tolist() == [0.0, 2.0]


def test_a_method_keeps_its_object() -> None:
    add = Counter(1.0).add
    gc.collect()
    assert [add(1.0).item(), add(1.0).item()] == [2.0, 3.0]


def test_programs_go_with_their_object() -> None:
    a = Counter(0.0)
    a.itself = a
    a.add(1.0)
    seen, total = weakref.ref(a), weakref.ref(a.total)
    del a
    gc.collect()
    assert (seen(), total()) == (None, None)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
def test_a_copy_does_not_share_programs(way: Any) -> None:
    a = Counter(0.0)
    a.add(1.0)
    b = way(a)
    b.total = weft.asarray(50.0)
    assert (b.add(1.0).item(), b.total.item()) == (51.0, 51.0)
    assert (a.add(1.0).item(), a.total.item()) == (2.0, 2.0)


def test_the_copy_of_a_copy_of_one_that_is_gone() -> None:
    for _ in range(20):  # the new object may lie where the old one lay
        a = Counter(0.0)
        a.add(1.0)
        b = copy.copy(a)
        del a
        c = copy.copy(b)
        c.total = weft.asarray(100.0)
        assert (c.add(1.0).item(), c.total.item()) == (101.0, 101.0)


def test_a_method_that_an_object_stores_is_copied_with_it() -> None:
    a = Counter(0.0)
    a.kept = a.add
    b = copy.deepcopy(a)
    assert b.kept(5.0).item() == 5.0
    assert (a.total.item(), b.total.item()) == (0.0, 5.0)


def test_programs_are_not_put_into_files() -> None:
    a = Plain()
    assert float(a.double(2.0)) == 4.0
    b = pickle.loads(pickle.dumps(a))
    assert (float(a.double(3.0)), float(b.double(3.0))) == (6.0, 6.0)


def test_objects_without_room_are_refused() -> None:
    class Tight:
        __slots__ = ()

        @weft.jit
        def f(self, x: weft.Tensor) -> weft.Tensor:
            return x

    with pytest.raises(
        weft.UserError,
        match=r"\[jit\] objects of Tight cannot hold a compiled method.*Compile a function outside of the class",
    ):
        Tight().f(1.0)


WAYS: dict[str, Any] = {
    "decorated": lambda m: m.step,
    "by hand": lambda m: weft.jit(Noisy.step.__wrapped__.__get__(m)),
    "forward": lambda m: weft.jit(m.forward),
    "by the class": lambda m: lambda x: Noisy.step(m, x),
    "in a function": lambda m: weft.jit(lambda x: m.step(x)),
    "twice": lambda m: weft.jit(m.step),
    "by the class in a function": lambda m: weft.jit(lambda x: Noisy.step(m, x)),
    "differentiated": lambda m: weft.jit(weft.grad(lambda x: m.step(x) * x / 2.0)),
}


@pytest.mark.parametrize("way", WAYS)
def test_methods_of_modules_follow_their_settings(way: str) -> None:
    model = Noisy()
    step = WAYS[way](model)
    assert float(step(3.0)) == 6.0
    model.scale = 5.0
    assert float(step(3.0)) == 15.0
    model.eval()
    assert float(step(3.0)) == 3.0
    model.train()
    assert float(step(3.0)) == 15.0


def test_methods_of_modules_follow_their_parts() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.inner = nn.Linear(3, 2)

        @weft.jit
        def weights(self) -> weft.Tensor:
            return self.inner.weight * 1.0

    model = Net()
    assert model.weights().dtype == weft.float32
    assert model.astype("float16").weights().dtype == weft.float16
    model.inner.weight = weft.parameter(np.zeros((2, 3), "float32"))
    assert not model.weights().numpy().any()


def test_a_property() -> None:
    class Square:
        def __init__(self, side: float) -> None:
            self.side = weft.asarray(side)

        @property
        @weft.jit
        def area(self) -> weft.Tensor:
            return self.side * self.side

    a, b = Square(2.0), Square(3.0)
    assert (a.area.item(), b.area.item(), a.area.item()) == (4.0, 9.0, 4.0)
    seen = weakref.ref(a)
    del a
    gc.collect()
    assert seen() is None


def test_a_compiled_forward() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.linear = nn.Linear(None, 2)

        @weft.jit
        def forward(self, x: weft.Tensor) -> weft.Tensor:
            return self.linear(x)

    model = Net()
    x = weft.ones((4, 3))
    once = model(x).numpy()
    np.testing.assert_allclose(model.linear(x).numpy(), once, rtol=1e-6)
    np.testing.assert_array_equal(weft.jit(lambda x: model(x))(x).numpy(), once)  # inside another it is just a function
    assert sorted(model.named_parameters()) == ["linear.bias", "linear.weight"]


# --- which arguments are static ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("static", ["n", 1, ("n",), (1, "n")])
def test_static_arguments_by_position_and_by_name(static: Any) -> None:
    traces = []

    @weft.jit(static=static)
    def power(x: weft.Tensor, n: int = 2) -> weft.Tensor:
        traces.append(n)
        result = x
        for _ in range(n - 1):
            result = result * x
        return result

    assert float(power(3.0, 3)) == 27.0
    assert float(power(3.0, n=3)) == 27.0
    assert float(power(3.0, 4)) == 81.0
    assert float(power(3.0)) == 9.0
    assert traces == [3, 3, 4, 2]


def test_static_values_that_are_equal_and_not_the_same() -> None:
    kind = weft.jit(lambda x, n: x + {int: 1.0, bool: 2.0, float: 3.0}[type(n)], static="n")
    assert [float(kind(0.0, n)) for n in (1, True, 1.0, 1)] == [1.0, 2.0, 3.0, 1.0]
    sign = weft.jit(lambda x, n: weft.copysign(x, weft.asarray(n)), static=1)
    assert [float(sign(1.0, n)) for n in (0.0, -0.0)] == [1.0, -1.0]


def test_static_arguments_of_methods() -> None:
    a = Counter(0.0)
    assert (float(a.repeated(2.0, 3)), float(a.repeated(2.0, times=4)), float(a.repeated(2.0))) == (6.0, 8.0, 2.0)


def test_static_arguments_of_functions_that_take_any() -> None:
    f, traces = counting(lambda x, n, mode: x * float(n))
    fast = weft.jit(f, static=(1, "mode"))
    assert [float(fast(2.0, 3, mode="a")), float(fast(2.0, 3, mode="b"))] == [6.0, 6.0]
    assert len(traces) == 2


@pytest.mark.parametrize("static", ["k", 2, -1, ("x", "y")])
def test_static_arguments_that_are_none(static: Any) -> None:
    with pytest.raises(weft.UserError, match=r"\[jit\] there is no argument .* static: the function takes \(x, n=2\)"):
        weft.jit(lambda x, n=2: x, static=static)


def test_a_count_that_is_not_static() -> None:
    @weft.jit
    def power(x: weft.Tensor, n: int) -> weft.Tensor:
        return x if n == 0 else x * 2.0

    with pytest.raises(weft.UserError, match=r"a count, is named in weft\.jit\(\.\.\., static=\.\.\.\)"):
        power(2.0, 3)


# --- how many programs are kept ---------------------------------------------------------------------------------------------


def test_settings_that_change_all_the_time_do_not_pile_up() -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    step = weft.jit(lambda x: model(x), remember=3)
    for n in range(8):
        model[0].rate = 0.1 + n / 100
        step(weft.ones(4))
        assert sum(map(len, step.programs.all.values())) <= 3
    assert len(step.programs.latest) == 1


@pytest.mark.parametrize("remember", [-1, "a", 2.0])
def test_how_many_to_remember_is_a_whole_number(remember: Any) -> None:
    with pytest.raises(weft.UserError, match=r"\[jit\] remember is a whole number from 0, got"):
        weft.jit(lambda x: x, remember=remember)


def test_remembering_nothing() -> None:
    f, traces = counting(lambda x: x + 1.0)
    fast = weft.jit(f, remember=0)
    assert [float(fast(1.0)), float(fast(2.0))] == [2.0, 3.0]
    assert len(traces) == 2


def test_the_arguments_seen_last_are_remembered() -> None:
    f, traces = counting(lambda x: x + 1.0)
    fast = weft.jit(f, remember=2)
    for size in (1, 2, 1, 3, 1):
        fast(weft.ones(size))
    assert len(traces) == 3
    fast(weft.ones(2))
    assert len(traces) == 4
