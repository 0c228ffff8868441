"""`weft.checkpoint` of functions with state: statistics that move, random streams, and what may not be changed in traced bodies."""

from typing import Any

import numpy as np
import pytest

import weft
from jit_tools import floats
from weft import nn, optim
from weft.graph.node import toposort


def trained(kept: bool, compiled: bool, steps: int = 4) -> list[np.ndarray]:
    """Losses, parameters and statistics of a small network after some steps."""
    weft.seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    optimizer = optim.sgd(model, 0.1)
    forward = model if kept else weft.checkpoint(lambda x: model(x))

    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = nn.cross_entropy(forward(x), y)
        optimizer.minimize(loss)
        return loss

    step = weft.jit(step) if compiled else step
    x, y = weft.asarray(floats(16, 6)), weft.asarray(np.arange(16) % 3)
    losses = [step(x, y).item() for _ in range(steps)]
    return [np.asarray(losses), *(t.numpy() for t in model.named_tensors().values())]


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "jit"])
def test_statistics_and_dropout_are_those_of_the_function(compiled: bool) -> None:
    for found, expected in zip(trained(False, compiled), trained(True, compiled), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, weft.jit], ids=["plain", "jit"])
def test_state_is_changed_once_and_read_as_changed(wrap: Any) -> None:
    total = weft.asarray(1.0)

    def f(x: weft.Tensor) -> weft.Tensor:
        total.assign(total + x)
        total.assign(total * 2.0)
        return total * x

    step = wrap(lambda x: weft.checkpoint(f)(x) + total)
    assert step(weft.asarray(3.0)).item() == 8.0 * 3.0 + 8.0
    assert total.item() == 8.0
    nested = wrap(lambda x: weft.checkpoint(lambda x: weft.checkpoint(f)(x) + total)(x))
    assert nested(weft.asarray(1.0)).item() == 18.0 + 18.0
    assert total.item() == 18.0


def test_a_derivative_computes_again_without_changing_again() -> None:
    total = weft.asarray(1.0)

    def f(x: weft.Tensor) -> weft.Tensor:
        total.assign(total + 1.0)
        return weft.sin(x) * x

    slope = weft.grad(lambda x: weft.checkpoint(f)(x))(weft.asarray(2.0)).item()
    assert slope == pytest.approx(np.cos(2.0) * 2.0 + np.sin(2.0), rel=1e-6)
    assert total.item() == 2.0


def test_when_the_function_fails_nothing_has_changed() -> None:
    total = weft.asarray(1.0)

    def f(x: weft.Tensor) -> weft.Tensor:
        total.assign(total + x)
        raise ValueError("not today")

    for call in (weft.checkpoint(f), weft.jit(weft.checkpoint(f))):
        with pytest.raises(ValueError, match="not today"):
            call(weft.asarray(1.0))
        assert total.item() == 1.0
        assert (total + 1.0).item() == 2.0


@pytest.mark.parametrize("looks", [True, False])
def test_history_does_not_grow(looks: bool) -> None:
    """Each call reads what the one before has changed: it must not keep it, and all before, alive."""
    total = weft.asarray(0.0)
    f = weft.checkpoint(lambda x: total.assign(total + x) * weft.random.uniform(()))
    sizes = []
    for _ in range(60):
        found = f(weft.asarray(1.0))
        if looks:
            found.item()
        sizes.append(len(toposort([total._node, found._node])))
    assert max(sizes) == max(sizes[:5])
    assert total.item() == 60.0


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("wrap", [lambda f: f, weft.jit], ids=["plain", "jit"])
def test_derivatives_through_what_it_changed(wrap: Any, nested: bool) -> None:
    """As an auxiliary loss that is kept in a tensor."""

    def value(x: weft.Tensor) -> weft.Tensor:
        kept = weft.zeros(())

        def f(x: weft.Tensor) -> weft.Tensor:
            kept.assign(kept + x * x)
            return x

        outer = weft.checkpoint(f)
        y = weft.checkpoint(lambda x: outer(x))(x) if nested else outer(x)
        return kept + y

    assert wrap(weft.grad(value))(weft.asarray(3.0)).item() == 7.0


def test_parameters_cannot_be_changed_inside() -> None:
    w = weft.parameter(1.0)
    with pytest.raises(weft.UserError, match=r"\[checkpoint\] a parameter cannot be changed in here"):
        weft.checkpoint(lambda x: w.assign(w + x))(weft.asarray(1.0))
    assert w.item() == 1.0


BODIES = {
    "scan": lambda change, x: weft.scan(lambda c, v: (c, change(v)), weft.asarray(0.0), x),
    "cond": lambda change, x: weft.cond(x[0] > 0.0, change, lambda v: -v, x[0]),
    "while": lambda change, x: weft.while_loop(lambda v: v < 9.0, change, x[0]),
    "scan in a checkpoint": lambda change, x: weft.checkpoint(BODIES["scan"])(change, x),
    "checkpoint in a scan": lambda change, x: BODIES["scan"](weft.checkpoint(change), x),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "jit"])
@pytest.mark.parametrize("body", BODIES)
def test_loops_and_branches_cannot_change_tensors_from_outside(body: str, compiled: bool) -> None:
    total = weft.asarray(1.0)

    def change(x: weft.Tensor) -> weft.Tensor:
        total.assign(total + x)
        return x + 1.0

    def run(x: weft.Tensor) -> Any:
        return BODIES[body](change, x)

    with pytest.raises(weft.UserError, match=r"\[assign\] a tensor from outside cannot be changed"):
        (weft.jit(run) if compiled else run)(weft.ones(3))
    assert total.item() == 1.0


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "jit"])
def test_bodies_cannot_leave_gradients_outside(compiled: bool) -> None:
    w = weft.parameter(2.0)

    def backwards(x: weft.Tensor) -> weft.Tensor:
        (w * x).sum().backward()
        return x

    inside = weft.checkpoint(backwards)
    for run in (
        inside,
        weft.vmap(inside),
        weft.vmap(backwards),
        lambda x: weft.scan(lambda c, v: (c, backwards(v)), weft.asarray(0.0), x),
    ):
        with pytest.raises(weft.UserError, match=r"\[backward\] a function that is being traced cannot leave"):
            (weft.jit(run) if compiled else run)(weft.ones(3))
        assert w.grad is None


def test_a_body_may_change_what_it_made_itself() -> None:
    def body(carry: weft.Tensor, x: weft.Tensor) -> Any:
        own = weft.zeros(2)
        own[0] = x
        return carry + own.sum(), own

    for call in (weft.scan, lambda *a: weft.jit(lambda *a: weft.scan(body, *a))(*a[1:])):
        total, every = call(body, weft.asarray(0.0), weft.asarray([1.0, 2.0]))
        assert (total.item(), every.tolist()) == (3.0, [[1.0, 0.0], [2.0, 0.0]])
