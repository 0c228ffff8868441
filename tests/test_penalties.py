"""Penalties on weights and the limit to their length, against NumPy."""

import numpy as np
import pytest

import weft
from weft import nn
from weft.testing import check_grads, close, counted

rng = np.random.default_rng(5)
A, B = rng.normal(size=(3, 4)), rng.normal(size=(5,))

PENALTIES = [
    ("l1", lambda w: nn.l1(w, 0.3), lambda w: 0.3 * np.abs(w).sum()),
    ("l2", lambda w: nn.l2(w, 0.3), lambda w: 0.3 * (w * w).sum()),
    ("elastic", lambda w: nn.elastic(w, 0.3, 0.2), lambda w: 0.3 * np.abs(w).sum() + 0.2 * (w * w).sum()),
]


@pytest.fixture
def plain():
    with weft.knobs.set(device="reference"):
        yield


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(("penalty", "formula"), [p[1:] for p in PENALTIES], ids=[p[0] for p in PENALTIES])
def test_penalties(penalty, formula):
    close(penalty(weft.asarray(A)).numpy(), formula(A), weft.float64)
    close(penalty([weft.asarray(A), weft.asarray(B)]).numpy(), formula(A) + formula(B), weft.float64)
    check_grads(lambda a, b: penalty(x for x in (a, b)), [A, B], rng=np.random.default_rng(6))
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm(3), nn.Linear(3, 2))
    everything = np.concatenate([p.numpy().ravel() for p in model.parameters()]).astype(np.float64)
    close(penalty(model).numpy(), formula(everything), weft.float32)
    model.layers[0].freeze()
    left = np.concatenate([p.numpy().ravel() for p in model.parameters()]).astype(np.float64)
    assert left.size == everything.size - 15  # what is frozen has no penalty
    close(penalty(model).numpy(), formula(left), weft.float32)
    close(penalty(nn.ReLU()).numpy(), 0.0, weft.float32)


@pytest.mark.usefixtures("plain")
def test_penalties_of_halves_do_not_overflow():
    weights = weft.full((100, 100), 8.0, dtype=weft.float16)
    close(nn.l2(weights, 1.0).numpy(), 640000.0, weft.float32)
    close(nn.l1(weights, 1.0).numpy(), 80000.0, weft.float32)


def shortened(w, longest, axis):
    """Each slice for itself."""
    result = np.moveaxis(w.astype(np.float64), axis, 0).copy()
    for i, part in enumerate(result):
        result[i] = part * min(1.0, longest / max(np.sqrt((part * part).sum()), 1e-30))
    return np.moveaxis(result, 0, axis)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("dtype", [weft.bfloat16, weft.float16, weft.float32, weft.float64], ids=str)
@pytest.mark.parametrize(("shape", "axis"), [((3, 4), 0), ((3, 4), -1), ((4, 3, 2, 2), 0), ((2, 3, 2), 1), ((5,), 0)])
def test_max_norm(shape, axis, dtype):
    values = np.random.default_rng(7).normal(size=shape) * np.linspace(0.0, 1.5, shape[0]).reshape(
        -1, *[1] * (len(shape) - 1)
    )
    w = weft.parameter(weft.asarray(values, dtype=dtype))
    before = w.numpy().astype(np.float64)
    assert nn.max_norm([w], 0.5, axis) is None
    assert w.requires_grad
    assert w.dtype is dtype
    expected = shortened(before, 0.5, axis)
    close(w.numpy(), expected, dtype)
    short = expected == before
    assert short.any()
    assert not short.all()
    assert np.array_equal(w.numpy()[short].astype(np.float64), before[short])  # what is short enough keeps every bit
    counted(4)


@pytest.mark.usefixtures("plain")
def test_max_norm_of_a_module_leaves_biases_alone():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm(3), nn.Flatten(), nn.Linear(3, 2))
    values = {n: np.random.default_rng(8).normal(size=t.shape) * 3.0 for n, t in model.named_tensors().items()}
    model.load(values)
    nn.max_norm(model, 0.5)
    for name, tensor in model.named_tensors().items():
        expected = shortened(values[name], 0.5, 0) if tensor.ndim > 1 else values[name]
        close(tensor.numpy(), expected, weft.float32)
    assert max(np.linalg.norm(row) for row in model.layers[0].weight.numpy().reshape(3, -1)) < 0.5001
    counted()


def test_a_compiled_step_with_both_is_a_plain_one():
    start = {"weight": rng.normal(size=(2, 4)), "bias": rng.normal(size=2)}

    def trained(wrap):
        model = nn.Linear(4, 2).load(start)
        x, y = weft.asarray(A, dtype=weft.float32), weft.asarray(A[:, :2], dtype=weft.float32)

        def step(x, y):
            loss = nn.mse(model(x), y) + nn.elastic(model, 0.01, 0.1)
            parameters = model.parameters()
            for p, g in zip(parameters, weft.gradients(loss, parameters), strict=True):
                p.assign(p - 0.1 * g)
            nn.max_norm(model, 0.7)
            return loss

        run = wrap(step)
        losses = [float(run(x, y)) for _ in range(3)]
        return losses, model.weight.numpy(), model.bias.numpy()

    with weft.knobs.set(device="reference"):
        expected = trained(lambda step: step)
    for found, value in zip(trained(weft.jit), expected, strict=True):
        close(np.asarray(found), np.asarray(value), weft.float32, 10.0)
    assert np.linalg.norm(expected[1], axis=1).max() == pytest.approx(0.7, abs=1e-5)  # it had something to do
    counted()


ERRORS = [
    (lambda: nn.l1(weft.zeros(2), -0.1), "[l1] the factor must be 0 or more, got -0.1."),
    (lambda: nn.l2(weft.zeros(2), float("nan")), "[l2] the factor must be 0 or more, got nan."),
    (lambda: nn.elastic(weft.zeros(2), 0.1, -1.0), "[elastic] the l2_factor must be 0 or more, got -1.0."),
    (lambda: nn.l1([1.0], 0.1), "[l1] a module or tensors are required, got float."),
    (lambda: nn.l2(weft.arange(3), 0.1), "[l2] a floating dtype is required, got int64."),
    (lambda: nn.max_norm(weft.zeros(2), 0.0), "[max_norm] the longest must be above 0, got 0.0."),
    (lambda: nn.max_norm(weft.zeros(2), 1.0, 1), "[max_norm] axis 1 does not exist in a tensor of 1 dimensions."),
]


@pytest.mark.parametrize(("call", "text"), ERRORS, ids=[text[:40] for _, text in ERRORS])
def test_what_is_refused(call, text):
    with pytest.raises(weft.UserError) as error:
        call()
    assert text in f"[{error.value.where}] {error.value.message}"
    counted()
