"""Training steps as one loop of the graph: the same bits as step by step, whatever a step changes."""

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.step_loops import scan_steps

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(5, 8, 1, 6, 6)).astype(np.float32), RANDOM.integers(0, 3, (5, 8))


def _training(**settings):
    """A network with running statistics and dropout, and its step."""
    weft.seed(3)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(64, 3)
    )
    optimizer = optim.sgd(model, rate=optim.schedules.linear(0.1, 0.01, 5), momentum=0.9, **settings)

    def step(x, y):
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    return step, model, optimizer


def _state(model, optimizer):
    return [t.numpy() for t in (*model.named_tensors().values(), *optimizer.named_state().values())]


@pytest.mark.parametrize("settings", [{"nesterov": True}, {"average": 0.9}, {"accumulate": 2, "clip_norm": 1.0}])
def test_a_loop_of_steps_has_the_bits_of_single_steps(settings):
    step, *one = _training(**settings)
    single = weft.jit(step)
    losses = [single(x, y).item() for x, y in zip(X, Y, strict=True)]
    step, *other = _training(**settings)
    looped = weft.jit(lambda x, y: scan_steps(lambda batch: step(*batch), (x, y)))(X, Y)
    assert looped.tolist() == losses
    for a, b in zip(_state(*one), _state(*other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_loop_goes_on_where_the_last_one_ended():
    step, *one = _training()
    whole = weft.jit(lambda x, y: scan_steps(lambda batch: step(*batch), (x, y)))
    all_losses = whole(X, Y).tolist()
    step, *other = _training()
    part = weft.jit(lambda x, y: scan_steps(lambda batch: step(*batch), (x, y)))
    assert [*part(X[:2], Y[:2]).tolist(), *part(X[2:], Y[2:]).tolist()] == all_losses
    np.testing.assert_array_equal(_state(*one)[0], _state(*other)[0])


def test_without_jit_and_with_a_length_only():
    count, total = weft.asarray(0), weft.parameter(1.0)

    def step(_):
        count.assign(count + 1)
        total.assign(total * 2.0)
        return count * 10

    assert scan_steps(step, length=3).tolist() == [10, 20, 30]
    assert (count.item(), total.item(), total.requires_grad) == (3, 8.0, True)


def test_what_a_step_only_reads_stays():
    w, fixed = weft.parameter([1.0, 2.0]), weft.parameter([3.0, 4.0])

    def step(x):
        loss = (w * fixed * x).sum()
        w.assign(w - weft.gradients(loss, [w])[0])
        return loss

    weft.jit(lambda xs: scan_steps(step, xs))(np.float32([1.0, 1.0]))
    assert (w.tolist(), fixed.tolist()) == ([-5.0, -6.0], [3.0, 4.0])


def test_a_step_without_changes_is_a_scan():
    with pytest.raises(weft.errors.UserError, match="changes no tensor"):
        scan_steps(lambda x: x, weft.arange(3))
