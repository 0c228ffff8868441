"""Schedules: every formula at many steps, called with numbers and inside compiled steps; and rates lowered on a plateau."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft import optim
from weft.knobs import knobs
from weft.optim import SCHEDULES, ReduceOnPlateau, schedules
from weft.testing import counted

STEPS = [
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    9,
    10,
    11,
    13,
    14,
    15,
    20,
    29,
    30,
    31,
    49,
    50,
    69,
    70,
    71,
    99,
    100,
    101,
    150,
    1000,
    10**6,
]


@pytest.fixture
def reference() -> Iterator[None]:
    with knobs.set(device="reference"):
        yield


def half_cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * min(part, 1.0))) / 2


def restarts(t: int, first: int, factor: float) -> float:
    length: float = first
    while t >= length:
        t, length = t - length, length * factor
    return half_cosine(0.3, 0.1, t / length)


def triangle(t: int) -> float:
    """Up in 10 steps, down in 10; half as high every time."""
    cycle, inside = divmod(t, 20)
    return 0.1 + 0.2 * (1 - abs(inside - 10) / 10) * 0.5**cycle


def warm(t: int) -> float:
    return 0.05 + (0.3 - 0.05) * t / 10 if t < 10 else 0.3 * 0.5 ** ((t - 10) // 30)


def joined(t: int) -> float:
    if t < 10:
        return 0.1 + 0.4 * t / 20
    return 0.7 if t < 30 else 0.2 * 0.9 ** (t - 30)


def custom(t: Any) -> Any:
    return 0.2 / (1.0 + t)


ROWS: dict[str, tuple[Callable[[], Any], Callable[[int], float]]] = {
    "constant": (lambda: schedules.constant(0.3), lambda t: 0.3),
    "step": (lambda: schedules.step(0.3, 10, 0.5), lambda t: 0.3 * 0.5 ** (t // 10)),
    "multistep": (
        lambda: schedules.multistep(0.3, [5, 30, 100], 0.2),
        lambda t: 0.3 * 0.2 ** ((t >= 5) + (t >= 30) + (t >= 100)),
    ),
    "exponential": (lambda: schedules.exponential(0.3, 0.9, 10), lambda t: 0.3 * 0.9 ** (t / 10)),
    "inverse_time": (lambda: schedules.inverse_time(0.3, 0.5, 10), lambda t: 0.3 / (1 + 0.5 * t / 10)),
    "inverse_root": (lambda: schedules.inverse_root(0.3, 10), lambda t: 0.3 * min(1, math.sqrt(10 / (t + 1)))),
    "inv": (lambda: schedules.inv(0.3, 0.1, 0.75), lambda t: 0.3 * (1 + 0.1 * t) ** -0.75),
    "sigmoid": (lambda: schedules.sigmoid(0.3, 0.1, 50), lambda t: 0.3 / (1 + math.exp(min(700, 0.1 * (t - 50))))),
    "polynomial": (
        lambda: schedules.polynomial(0.3, 100, 0.1, 3.0),
        lambda t: 0.1 + 0.2 * (1 - min(t, 100) / 100) ** 3,
    ),
    "linear": (lambda: schedules.linear(0.1, 0.5, 70), lambda t: 0.1 + 0.4 * min(t, 70) / 70),
    "cosine": (lambda: schedules.cosine(0.3, 70, 0.1), lambda t: half_cosine(0.3, 0.1, t / 70)),
    "cosine_restarts": (lambda: schedules.cosine_restarts(0.3, 10, 2, 0.1), lambda t: restarts(t, 10, 2)),
    "warmup": (lambda: schedules.warmup(schedules.step(0.3, 30, 0.5), 10, 0.05), warm),
    "one_cycle": (
        lambda: schedules.one_cycle(0.5, 100, 0.3, 0.1, 0.02),
        lambda t: half_cosine(0.05, 0.5, t / 30) if t < 30 else half_cosine(0.5, 0.01, (t - 30) / 70),
    ),
    "cyclic": (lambda: schedules.cyclic(0.1, 0.3, 10, 0.5), triangle),
    "piecewise": (
        lambda: schedules.piecewise([(5, 0.1), (15, 0.5), (70, 0.2)]),
        lambda t: float(np.interp(t, [5, 15, 70], [0.1, 0.5, 0.2])),
    ),
    "join": (
        lambda: schedules.join(
            [(schedules.linear(0.1, 0.5, 20), 10), (0.7, 20), (schedules.exponential(0.2, 0.9), None)]
        ),
        joined,
    ),
}
OTHERS: dict[str, tuple[Callable[[], Any], Callable[[int], float]]] = {
    "restarts of equal length": (lambda: schedules.cosine_restarts(0.3, 10, 1, 0.1), lambda t: restarts(t, 10, 1)),
    "restarts by three": (lambda: schedules.cosine_restarts(0.3, 10, 3.0, 0.1), lambda t: restarts(t, 10, 3.0)),
    "warmup to a number": (lambda: schedules.warmup(0.3, 10), lambda t: 0.3 * min(t, 10) / 10),
    "warmup to a function": (lambda: schedules.warmup(custom, 10), lambda t: 0.02 * t if t < 10 else custom(t - 10)),
    "a function": (lambda: custom, custom),
}
ALL = {**ROWS, **OTHERS}


def test_every_schedule_is_in_the_table() -> None:
    assert set(ROWS) == set(SCHEDULES)
    assert schedules.find("cosine") is schedules.cosine
    counted(2)


@pytest.mark.parametrize("name", ALL)
def test_formula(name: str, reference: None) -> None:
    make, formula = ALL[name]
    schedule = make()
    for t in STEPS:
        expected = formula(t)
        for given in (t, weft.asarray(t)):
            actual = weft.asarray(schedule(given))
            assert actual.shape == ()
            exact = name != "a function"  # a user's own function gives the dtype it likes
            assert not exact or actual.dtype is weft.float64  # rates of float64 parameters are not rounded on the way
            assert actual.item() == pytest.approx(
                expected, rel=1e-12 if exact else 2e-6, abs=1e-15 if exact else 1e-9
            ), t
            counted()


def test_all_inside_one_compiled_step() -> None:
    """The number of steps is state of the program: it is traced once, and the rates follow."""
    parameters = [weft.parameter([0.0]) for _ in ALL]
    groups = [{"parameters": p, "rate": make()} for p, (make, _) in zip(parameters, ALL.values(), strict=True)]
    optimizer, traces = optim.sgd(groups), []

    @weft.jit
    def step(g: weft.Tensor) -> None:
        traces.append(1)
        optimizer.step([g] * len(parameters))

    expected, g = np.zeros(len(ALL)), weft.asarray([-1.0])
    for t in range(40):
        expected += [formula(t) for _, formula in ALL.values()]
        step(g)
    np.testing.assert_allclose([p.item() for p in parameters], expected, rtol=1e-5)
    assert len(traces) == 1
    counted(len(ALL))


def test_they_show_how_they_were_made() -> None:
    made = schedules.warmup(schedules.cosine(0.1, steps=50), 10)
    assert repr(made) == "warmup(after=cosine(rate=0.1, steps=50, end=0.0), steps=10, start=0.0)"
    assert "rate step(rate=0.1, every=3, factor=0.1)" in repr(optim.sgd(weft.parameter([1.0]), schedules.step(0.1, 3)))
    counted(2)


def test_steps_are_counted_beyond_float32(reference: None) -> None:
    """float32 does not know 2**24 + 1."""
    assert schedules.multistep(1.0, [2**24 + 1], 0.5)(2**24).item() == 1.0
    assert schedules.multistep(1.0, [2**24 + 1], 0.5)(2**24 + 1).item() == 0.5
    counted(2)


# --- plateau --------------------------------------------------------------------------------------------------------------------


def plateau(**settings: Any) -> tuple[optim.Optimizer, ReduceOnPlateau]:
    optimizer = optim.sgd(weft.parameter([1.0]), rate=1.0)
    return optimizer, ReduceOnPlateau(optimizer, **settings)


PLATEAUS: dict[str, tuple[dict[str, Any], list[float], list[float]]] = {
    "patience": ({"factor": 0.5, "patience": 2}, [3, 3, 3, 3, 3, 3, 3], [1, 1, 1, 0.5, 0.5, 0.5, 0.25]),
    "none": ({"factor": 0.5, "patience": 0}, [3, 3, 2, 2], [1, 0.5, 0.5, 0.25]),
    "threshold": ({"factor": 0.5, "patience": 0, "threshold": 0.1}, [10, 9.5, 8.9, 8.1], [1, 0.5, 0.5, 0.25]),
    "below zero": ({"factor": 0.5, "patience": 0, "threshold": 0.1}, [-10, -10.5, -11.5], [1, 0.5, 0.5]),
    "max": ({"factor": 0.5, "patience": 0, "mode": "max"}, [1, 2, 1.5, 3], [1, 1, 0.5, 0.5]),
    "least": ({"factor": 0.5, "patience": 0, "least": 0.4}, [1, 1, 1, 1], [1, 0.5, 0.4, 0.4]),
    "nan": ({"factor": 0.5, "patience": 0}, [1, math.nan, 0.5], [1, 0.5, 0.5]),
}


@pytest.mark.parametrize("name", PLATEAUS)
def test_plateau(name: str, reference: None) -> None:
    settings, values, scales = PLATEAUS[name]
    optimizer, watcher = plateau(**settings)
    before = 1.0
    for value, scale in zip(values, scales, strict=True):
        assert watcher.see(value) == (scale < before)
        assert optimizer.rates() == [pytest.approx(scale)]
        before = scale
        counted()


def test_plateau_without_tracing_again() -> None:
    p, traces = weft.parameter([0.0]), []
    optimizer = optim.sgd(p, rate=1.0)
    watcher = ReduceOnPlateau(optimizer, factor=0.5, patience=0)

    @weft.jit
    def step(g: weft.Tensor) -> None:
        traces.append(1)
        optimizer.step([g])

    for _ in range(3):
        step(weft.asarray([-1.0]))
        watcher.see(1.0)
    assert p.item() == 1.0 + 1.0 + 0.5
    assert len(traces) == 1
    counted(2)


def test_plateau_goes_on(reference: None) -> None:
    _, watcher = plateau(patience=3)
    for value in (2.0, 1.0, 1.0):
        watcher.see(value)
    _, other = plateau(patience=3)
    other.load(watcher.named_state())
    assert (other.best, other.waited) == (1.0, 1)
    assert [other.see(1.0) for _ in range(3)] == [False, False, True]
    counted(2)


# --- errors -------------------------------------------------------------------------------------------------------------------

ERRORS: list[tuple[Callable[[], Any], str]] = [
    (lambda: schedules.find("cosinus"), "[schedules] there is no schedule 'cosinus'. Known: constant, step, "),
    (lambda: schedules.constant(-1.0), "[constant] rate must be a number of 0 or more, got -1.0."),
    (lambda: schedules.step(0.1, every=0), "[step] every must be an int of 1 or more, got 0."),
    (lambda: schedules.step(0.1, 10, factor=0.0), "[step] factor must be a number greater than 0, got 0.0."),
    (lambda: schedules.multistep(0.1, []), "[multistep] numbers of steps that grow are required, got []."),
    (lambda: schedules.multistep(0.1, [5, 5]), "[multistep] numbers of steps that grow are required, got [5, 5]."),
    (lambda: schedules.cosine(0.1, 1.5), "[cosine] steps must be an int of 1 or more, got 1.5."),
    (
        lambda: schedules.cosine_restarts(0.1, 5, 0.5),
        "[cosine_restarts] factor must be a number of 1 or more, got 0.5.",
    ),
    (lambda: schedules.one_cycle(0.1, 10, rise=1.0), "[one_cycle] rise must be a number in [0, 1), got 1.0."),
    (lambda: schedules.warmup("slow", 5), "[warmup] after must be a rate of 0 or more, or a schedule, got 'slow'."),
    (lambda: schedules.join([]), "[join] at least one (schedule, steps) is required, got none."),
    (lambda: schedules.join([(0.1, None), (0.2, 5)]), "[join] steps must be an int of 1 or more, got None."),
    (lambda: schedules.piecewise([(0, 0.1), (5, -0.1)]), "[piecewise] rate must be a number of 0 or more, got -0.1."),
    (lambda: plateau(factor=1.0), "[ReduceOnPlateau] factor must be a number in [0, 1), got 1.0."),
    (lambda: plateau(patience=-1), "[ReduceOnPlateau] patience must be a number of 0 or more, got -1."),
    (lambda: plateau(mode="least"), "[ReduceOnPlateau] mode must be 'min' or 'max', got 'least'."),
    (lambda: plateau()[1].load({}), "[ReduceOnPlateau] best and waited are required, got nothing."),
]


@pytest.mark.parametrize(("wrong", "text"), ERRORS, ids=[text[:40] for _, text in ERRORS])
def test_errors(wrong: Callable[[], Any], text: str) -> None:
    with pytest.raises(weft.UserError) as caught:
        wrong()
    assert text in str(caught.value)
    counted()
