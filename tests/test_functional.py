"""Networks written as calls of modules."""

import numpy as np
import pytest

import weft
from weft import nn
from weft.errors import UserError


def branched() -> tuple[nn.Model, list[nn.Module]]:
    first, side, last = nn.Linear(None, 6, activation="relu"), nn.Linear(6, 6), nn.Linear(6, 2)
    x = nn.Input()
    h = first(x)
    return nn.Model(x, last(nn.Add()(side(side(h)), h))), [first, side, last]


X = weft.asarray(np.random.default_rng(0).normal(size=(5, 3)).astype("float32"))


def test_it_computes_what_the_calls_say() -> None:
    model, (first, side, last) = branched()
    found = model(X)
    h = first(X)
    np.testing.assert_array_equal(found.numpy(), last(side(side(h)) + h).numpy())
    assert len(model.layers) == 4, "a module that is called twice comes once"
    assert len(model.parameters()) == 6


def test_it_trains_and_summarises() -> None:
    model, _ = branched()
    assert nn.summary(model, (5, 3)).macs == 5 * (3 * 6 + 2 * 36 + 6 * 2)
    optimizer = weft.optim.sgd(model, 0.01)

    @weft.jit
    def step(x: weft.Tensor) -> weft.Tensor:
        loss = (model(x) ** 2).mean()
        optimizer.minimize(loss)
        return loss

    assert step(X).item() > step(X).item()


def test_several_inputs_and_outputs() -> None:
    a, b = nn.Input(), nn.Input()
    model = nn.Model([a, b], {"sum": nn.Add()(a, b), "product": nn.Multiply()(a, b), "first": a})
    found = model(X, 2.0 * X)
    np.testing.assert_allclose(found["sum"].numpy(), 3.0 * X.numpy(), rtol=1e-6)
    np.testing.assert_allclose(found["product"].numpy(), 2.0 * X.numpy() ** 2, rtol=1e-6)
    np.testing.assert_array_equal(found["first"].numpy(), X.numpy())


def test_mistakes() -> None:
    x, y = nn.Input(), nn.Input()
    with pytest.raises(UserError, match="not among the inputs"):
        nn.Model(x, nn.Add()(x, y))
    with pytest.raises(UserError, match="inputs made by Input"):
        nn.Model(nn.Flatten()(x), x)
    with pytest.raises(UserError, match="outputs are what modules gave"):
        nn.Model(x, 3)
    with pytest.raises(UserError, match="1 inputs are required, got 2"):
        nn.Model(x, nn.Flatten()(x))(X, X)
