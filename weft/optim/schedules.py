"""Learning-rate schedules: functions from the number of completed steps to a learning rate.

Pass one to an optimizer as its rate, `optim.adam(model, rate=schedules.cosine(1e-3, 10_000))`, where it becomes part of the
compiled step, or call it with a number. Any function of a tensor (or a number) works too: `lambda t: 0.1 / (1.0 + t)`. In all
formulas t is the number of completed steps: 0 at the first step.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

from ..dtypes import float64
from ..errors import UserError
from ..ops.elementwise import abs, cos, exp, floor, log, maximum, minimum, sqrt, where
from ..tensor import Tensor, as_tensor
from .checks import counts, fractions, not_negative, positive
from .transform import choice

P = ParamSpec("P")
AnyRate = float | Callable[[Any], Any]


class Schedule:
    """A learning rate as a function of the number of completed steps. Its repr shows its settings.

    >>> round(step(0.1, every=30)(60).item(), 6)
    0.001
    >>> step(0.1, every=30)
    step(rate=0.1, every=30, factor=0.1)
    """

    def __init__(self, text: str, rate: Callable[[Tensor], Any]) -> None:
        self._text, self._rate = text, rate

    def __call__(self, done: Any) -> Tensor:
        """The learning rate after `done` steps, in float64: steps are counted exactly, and float64 parameters lose no precision.
        The optimizer converts it to the dtype of each update."""
        return as_tensor(self._rate(as_tensor(done).astype(float64)), float64)

    def __repr__(self) -> str:
        return self._text


SCHEDULES: dict[str, Callable[..., Schedule]] = {}


def schedule(make: Callable[P, Callable[[Tensor], Any]]) -> Callable[P, Schedule]:
    """Decorator that registers a schedule constructor; the decorated function returns the rate as a function of t (float64)."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> Schedule:
        rate = make(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return Schedule(f"{make.__name__}({', '.join(f'{n}={v!r}' for n, v in given.arguments.items())})", rate)

    SCHEDULES[make.__name__] = made
    return made


def find(name: str) -> Callable[..., Schedule]:
    """Look up a schedule constructor by name."""
    if name not in SCHEDULES:
        raise UserError("schedules", f"there is no schedule {name!r}. Known: {', '.join(SCHEDULES)}.")
    return SCHEDULES[name]


def _at(rate: AnyRate, t: Any) -> Tensor:
    """The value of a rate or schedule, in float64."""
    return as_tensor(rate(t) if callable(rate) else rate, float64).astype(float64)


# --- falling ----------------------------------------------------------------------------------------------------------------


@schedule
def constant(rate: float) -> Callable[[Tensor], Any]:
    """rate"""
    not_negative("constant", rate=rate)
    return lambda t: rate


@schedule
def step(rate: float, every: int, factor: float = 0.1) -> Callable[[Tensor], Any]:
    """rate factor^floor(t / every)"""
    not_negative("step", rate=rate)
    positive("step", factor=factor)
    counts("step", every=every)
    return lambda t: rate * factor ** floor(t / every)


@schedule
def multistep(rate: float, steps: Sequence[int], factor: float = 0.1) -> Callable[[Tensor], Any]:
    """rate factor^n, where n of the steps are reached"""
    not_negative("multistep", rate=rate)
    positive("multistep", factor=factor)
    _check_rising("multistep", steps)
    return lambda t: rate * factor ** sum((choice(t >= s, 1.0, 0.0, float64) for s in steps), as_tensor(0.0, float64))


@schedule
def exponential(rate: float, factor: float, every: int = 1) -> Callable[[Tensor], Any]:
    """rate factor^(t / every)"""
    not_negative("exponential", rate=rate)
    positive("exponential", factor=factor)
    counts("exponential", every=every)
    return lambda t: rate * factor ** (t / every)


@schedule
def inverse_time(rate: float, factor: float, every: int = 1) -> Callable[[Tensor], Any]:
    """rate / (1 + factor t / every)"""
    not_negative("inverse_time", rate=rate, factor=factor)
    counts("inverse_time", every=every)
    return lambda t: rate / (t * (factor / every) + 1.0)


@schedule
def inverse_root(rate: float, steps: int) -> Callable[[Tensor], Any]:
    """rate min(1, √(steps / (t + 1))) (Vaswani et al. 2017)"""
    not_negative("inverse_root", rate=rate)
    counts("inverse_root", steps=steps)
    return lambda t: rate * minimum(sqrt(steps / (t + 1.0)), 1.0)


@schedule
def inv(rate: float, gamma: float, power: float) -> Callable[[Tensor], Any]:
    """rate (1 + gamma t)^-power"""
    not_negative("inv", rate=rate, gamma=gamma)
    return lambda t: rate * (t * gamma + 1.0) ** -power


@schedule
def sigmoid(rate: float, gamma: float, step: int) -> Callable[[Tensor], Any]:
    """rate / (1 + exp(gamma (t - step)))"""
    not_negative("sigmoid", rate=rate)
    return lambda t: rate / (exp((t - float(step)) * gamma) + 1.0)


@schedule
def polynomial(rate: float, steps: int, end: float = 0.0, power: float = 1.0) -> Callable[[Tensor], Any]:
    """end + (rate - end) (1 - t / steps)^power, then end"""
    not_negative("polynomial", rate=rate, end=end)
    positive("polynomial", power=power)
    counts("polynomial", steps=steps)
    return lambda t: (rate - end) * (1.0 - _part(t, steps)) ** power + end


@schedule
def linear(start: float, end: float, steps: int) -> Callable[[Tensor], Any]:
    """start + (end - start) t / steps, then end"""
    not_negative("linear", start=start, end=end)
    counts("linear", steps=steps)
    return lambda t: _between(start, end, _part(t, steps))


@schedule
def cosine(rate: float, steps: int, end: float = 0.0) -> Callable[[Tensor], Any]:
    """end + (rate - end) (1 + cos(π t / steps)) / 2, then end (Loshchilov and Hutter 2017)"""
    not_negative("cosine", rate=rate, end=end)
    counts("cosine", steps=steps)
    return lambda t: _along_cosine(rate, end, _part(t, steps))


def _part(t: Tensor, steps: float) -> Tensor:
    """The completed fraction of `steps`, from 0 to 1."""
    return maximum(minimum(t / steps, 1.0), 0.0)


def _between(start: float | Tensor, end: float | Tensor, part: Tensor) -> Tensor:
    return (1.0 - part) * start + part * end  # so that both ends are exact


def _along_cosine(start: float, end: float, part: Tensor) -> Tensor:
    return _between(end, start, (cos(part * math.pi) + 1.0) * 0.5)


# --- rising and falling ---------------------------------------------------------------------------------------------------------


@schedule
def cosine_restarts(rate: float, first: int, factor: float = 2.0, end: float = 0.0) -> Callable[[Tensor], Any]:
    """cosine with warm restarts: over `first` steps, then each time over `factor` times as many (Loshchilov and Hutter 2017)"""
    not_negative("cosine_restarts", rate=rate, end=end)
    counts("cosine_restarts", first=first)
    if not (isinstance(factor, int | float) and factor >= 1.0):
        raise UserError("cosine_restarts", f"factor must be a number of 1 or more, got {factor!r}.")

    def part(t: Tensor) -> Tensor:
        if factor == 1.0:
            return t / first - floor(t / first)
        # The logarithm at the first step of a cycle may round to just below an integer.
        number = floor(log(t * ((factor - 1.0) / first) + 1.0) / math.log(factor) + 1e-9)
        begin = (factor**number - 1.0) * (first / (factor - 1.0))
        return maximum((t - begin) / (factor**number * first), 0.0)

    return lambda t: _along_cosine(rate, end, part(t))


@schedule
def warmup(after: AnyRate, steps: int, start: float = 0.0) -> Callable[[Tensor], Any]:
    """start + (after(0) - start) t / steps for the first steps, then after(t - steps)"""
    _check_rate("warmup", "after", after)
    not_negative("warmup", start=start)
    counts("warmup", steps=steps)
    # The following schedule must not be evaluated at negative steps.
    return lambda t: where(
        t < float(steps),
        _between(start, _at(after, t * 0.0), _part(t, steps)),
        _at(after, maximum(t - float(steps), 0.0)),
    )


@schedule
def one_cycle(
    peak: float, steps: int, rise: float = 0.3, start: float = 0.04, end: float = 4e-6
) -> Callable[[Tensor], Any]:
    """Cosine from start * peak up to peak over a fraction of the steps, then down to end * peak (Smith and Topin 2017)"""
    not_negative("one_cycle", peak=peak, start=start, end=end)
    counts("one_cycle", steps=steps)
    fractions("one_cycle", rise=rise)
    positive("one_cycle", rise=rise)
    top = rise * steps

    def rate(t: Tensor) -> Tensor:
        up = _along_cosine(start * peak, peak, _part(t, top))
        return where(t < top, up, _along_cosine(peak, end * peak, _part(t - top, steps - top)))

    return rate


@schedule
def cyclic(low: float, high: float, half: int, factor: float = 1.0) -> Callable[[Tensor], Any]:
    """Linear from low to high in `half` steps and back; the amplitude is multiplied by factor in each cycle (Smith 2017)"""
    not_negative("cyclic", low=low, high=high)
    positive("cyclic", factor=factor)
    counts("cyclic", half=half)

    def rate(t: Tensor) -> Tensor:
        cycle = floor(t / (2.0 * half))
        height = 1.0 - abs(t / half - cycle * 2.0 - 1.0)
        return low + (high - low) * height * factor**cycle

    return rate


# --- put together ---------------------------------------------------------------------------------------------------------------


@schedule
def piecewise(points: Sequence[tuple[int, float]]) -> Callable[[Tensor], Any]:
    """Linear interpolation between points (step, rate), constant before the first and after the last"""
    _check_rising("piecewise", [at for at, _ in points])
    for _, value in points:
        not_negative("piecewise", rate=value)

    def rate(t: Tensor) -> Any:
        result = as_tensor(points[0][1], float64)
        for (begin, low), (until, high) in itertools.pairwise(points):
            result = where(t >= float(begin), _between(low, high, _part(t - float(begin), until - begin)), result)
        return result

    return rate


@schedule
def join(parts: Sequence[tuple[AnyRate, int | None]]) -> Callable[[Tensor], Any]:
    """Each schedule (or rate) for its number of steps, counted from its own start; the last continues (its number may be None)"""
    if not parts:
        raise UserError("join", "at least one (schedule, steps) is required, got none.")
    for after, steps in parts[:-1]:
        _check_rate("join", "a part", after)
        counts("join", steps=steps)  # type: ignore[arg-type]
    _check_rate("join", "a part", parts[-1][0])

    def rate(t: Tensor) -> Tensor:
        result, begin = _at(parts[0][0], t), 0
        for (_, steps), (after, _) in itertools.pairwise(parts):
            begin += steps or 0
            result = where(t >= float(begin), _at(after, maximum(t - float(begin), 0.0)), result)
        return result

    return rate


def _check_rate(name: str, word: str, rate: Any) -> None:
    if not callable(rate) and not (isinstance(rate, int | float) and rate >= 0):
        raise UserError(name, f"{word} must be a rate of 0 or more, or a schedule, got {rate!r}.")


def _check_rising(name: str, steps: Sequence[Any]) -> None:
    whole = all(isinstance(s, int) and s >= 0 for s in steps)
    if not steps or not whole or any(a >= b for a, b in itertools.pairwise(steps)):
        raise UserError(name, f"numbers of steps that grow are required, got {list(steps)}.")
