"""Pruning methods, distillation and low rank, against NumPy; masks that change while training resume exactly."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, optim, train
from weft.compress import (
    Mask,
    bake,
    densities,
    distilling,
    dynamic_surgery,
    fix_masks,
    low_rank,
    movement_prune,
    parametrization_of,
    prune,
    prune_and_retrain,
    prune_gradually,
    sensitivity,
    share,
    snip,
    weights_of,
)  # fmt: skip

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(48, 6)).astype(np.float32), RNG.integers(0, 3, 48)


def network(seed: int = 0) -> nn.Sequential:
    weft.random.seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    return float(-log_softmax(logits)[np.arange(len(labels)), labels].mean())


def log_softmax(logits: np.ndarray) -> np.ndarray:
    raised = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(raised - np.log(np.exp(raised).sum(axis=-1, keepdims=True)))


def forward(weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """The network above without biases, which are zero."""
    return np.asarray(np.maximum(x @ weights["layers.0.weight"].T, 0) @ weights["layers.2.weight"].T)


def trained(model: nn.Module, steps: int, rate: float = 0.05) -> list[dict[str, float]]:
    """The densities after each step of a compiled training."""
    optimizer = optim.sgd(model, rate=rate)

    @weft.jit
    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    found = []
    for _ in range(steps):
        step(X, Y)
        found.append(densities(model))
    return found


# --- sensitivity -------------------------------------------------------------------------------------------------------------


def test_the_sensitivity_of_each_layer_is_that_of_numpy() -> None:
    model = network()
    tensors = model.named_tensors()
    values = {path: one.value for path, one in weights_of(model).items()}
    traced = []

    def loss(prediction: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        traced.append(prediction)
        return weft.cross_entropy(prediction, y)

    table = sensitivity(model, [(X[:24], Y[:24]), (X[24:], Y[24:])], (0.5, 0.25), loss=loss)
    assert len(traced) == 1, "five measurements, one compilation"
    assert table.whole["loss"] == pytest.approx(cross_entropy(forward(values, X), Y), rel=1e-5)
    for path, row in table.rows.items():
        for density, scores in row.items():
            kept = values[path].copy()
            kept[np.abs(kept) < np.sort(np.abs(kept).ravel())[-round(density * kept.size)]] = 0
            logits = forward(values | {path: kept}, X)
            assert scores["loss"] == pytest.approx(cross_entropy(logits, Y), rel=1e-5)
            assert scores["accuracy"] == pytest.approx((logits.argmax(axis=1) == Y).mean())
    after = model.named_tensors()
    assert all(after[path] is tensor for path, tensor in tensors.items()), "the network is what it was"
    assert model.training
    assert str(table).splitlines()[0].split() == ["accuracy", "1", "0.5", "0.25"]


def test_densities_are_chosen_for_a_total() -> None:
    model = network()
    model[0].weight.assign(model[0].weight.numpy() * np.where(RNG.random((8, 6)) < 0.3, 1.0, 0.01).astype(np.float32))
    table = sensitivity(model, [(X, Y)], (0.6, 0.3, 0.1))
    chosen = table.choose(0.4)
    counts = {path: one.value.size for path, one in weights_of(model).items()}
    assert sum(counts[p] * d for p, d in chosen.items()) / sum(counts.values()) == pytest.approx(0.4, abs=0.02)
    assert chosen["layers.0.weight"] < chosen["layers.2.weight"], "a layer of many small weights needs fewer"
    assert prune(model, chosen)["layers.0.weight"] == pytest.approx(chosen["layers.0.weight"], abs=0.02)
    for wanted in (0.05, 1.2):
        with pytest.raises(weft.UserError, match=r"a density from 0\.1 .* to 1 is required"):
            table.choose(wanted)
    with pytest.raises(weft.UserError, match="densities above 0"):
        sensitivity(model, [(X, Y)], (0.0,))
    with pytest.raises(weft.UserError, match="got none. Give a list"):
        sensitivity(model, [])


# --- masks by gradients and in the compiled step -------------------------------------------------------------------------------


def test_snip_keeps_what_the_loss_depends_on() -> None:
    model = network()
    values = {path: one.value.astype(np.float64) for path, one in weights_of(model).items()}
    hidden = np.maximum(X @ values["layers.0.weight"].T, 0)
    error = np.exp(log_softmax(hidden @ values["layers.2.weight"].T))
    error[np.arange(len(Y)), Y] -= 1
    error /= len(Y)
    gradients = {
        "layers.0.weight": ((error @ values["layers.2.weight"]) * (hidden > 0)).T @ X,
        "layers.2.weight": error.T @ hidden,
    }
    scores = np.concatenate([np.abs(values[p] * gradients[p]).ravel() for p in values])
    assert sum(snip(model, 0.25, X, Y).values()) < 2
    kept = np.concatenate([(one.value != 0).ravel() for one in weights_of(model).values()])
    assert kept.sum() == 18
    assert scores[kept].min() > scores[~kept].max()
    share(model, 2)
    with pytest.raises(weft.UserError, match="a Codebook"):
        snip(model, 0.2, X, Y)


def test_gradual_masks_follow_the_schedule_in_the_compiled_step() -> None:
    model = network()
    prune_gradually(model, {"layers.0": 0.25}, steps=6, every=2)
    found = [row["layers.0.weight"] for row in trained(model, 8)]
    cubic = {step: round(48 * (0.25 + 0.75 * (1 - step / 6) ** 3)) / 48 for step in (0, 2, 4, 6)}
    assert found == [cubic[0], cubic[0], cubic[2], cubic[2], cubic[4], cubic[4], cubic[6], cubic[6]]
    assert densities(model)["layers.2.weight"] == 1.0
    with pytest.raises(weft.UserError, match="which is a GradualMask.*fix_masks"):
        prune(model, 0.1)
    fix_masks(model)
    assert type(parametrization_of(model[0], "weight")) is Mask
    assert densities(model)["layers.0.weight"] == 0.25


def test_masks_of_a_network_in_evaluation_mode_do_not_change() -> None:
    model = network().eval()
    movement_prune(model, 0.25, steps=0)
    assert trained(model, 2)[-1]["layers.0.weight"] == 1.0
    assert not parametrization_of(model[0], "weight").scores.numpy().any(), "scores have no gradient"


def test_gradual_masks_keep_the_largest_and_nothing_comes_back() -> None:
    model = network()
    prune(model, 0.5)
    before = {path: one.value for path, one in weights_of(model).items()}
    prune_gradually(model, 0.25, steps=0)
    trained(model, 1, rate=0.0)
    for path, one in weights_of(model).items():
        kept = one.value != 0
        assert kept.mean() == 0.25
        assert np.abs(before[path][kept]).min() >= np.abs(before[path][~kept]).max()
    with pytest.raises(weft.UserError, match=r"a density of at most 0\.25 is required"):
        prune_gradually(model, 0.3, steps=5)


def test_movement_scores_are_the_sum_of_weight_times_gradient() -> None:
    model, plain = network(), network()
    movement_prune(model, 0.25, steps=3, first=3)
    scores, rate = np.zeros((8, 6)), 0.05
    optimizer = optim.sgd(plain, rate=rate)
    for _ in range(3):
        (gradient,) = weft.gradients(weft.cross_entropy(plain(X), Y), [plain[0].weight])
        scores -= rate * gradient.numpy() * plain[0].weight.numpy()
        optimizer.minimize(weft.cross_entropy(plain(X), Y))
    assert trained(model, 3)[-1] == {"layers.0.weight": 1.0, "layers.2.weight": 1.0}
    made = parametrization_of(model[0], "weight")
    np.testing.assert_allclose(made.scores.numpy(), scores, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(made.original.numpy(), plain[0].weight.numpy(), rtol=1e-5, atol=1e-6)
    frozen = made.scores.numpy()
    trained(model, 1)  # the step in which the mask changes
    keep = made.mask.numpy()
    assert keep.sum() == 12
    assert frozen[keep].min() > frozen[~keep].max()
    np.testing.assert_array_equal(model.eval()[0].weight.numpy(), np.where(keep, made.original.numpy(), 0))


def test_surgery_trains_pruned_weights_and_lets_them_come_back() -> None:
    model = network()
    dynamic_surgery(model, 0.25, steps=30, first=0, margin=0.0)
    made = parametrization_of(model[0], "weight")
    seen, previous, came_back = set(), np.ones((8, 6), np.bool_), 0
    for _ in range(4):
        before = made.original.numpy()
        trained(model, 10, rate=0.5)
        mask = made.mask.numpy()
        came_back += int((mask & ~previous).sum())
        assert (before != made.original.numpy())[~mask].any(), "pruned weights are trained"
        previous = mask
        seen.add(float(mask.mean()))
    assert min(seen) == 0.25
    assert came_back > 0
    with pytest.raises(weft.UserError, match="a margin from 0"):
        dynamic_surgery(model, 0.1, steps=3, margin=1.0)
    with pytest.raises(weft.UserError, match="0 <= first <= steps"):
        movement_prune(network(), 0.1, steps=3, first=4)


def masked() -> nn.Sequential:
    """A network with a mask of each kind."""
    weft.random.seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8, activation="relu"), nn.Linear(8, 8), nn.Linear(8, 3))
    prune(model, {"layers.0": 0.3})
    prune_gradually(model, {"layers.1": 0.3}, steps=12)
    movement_prune(model, {"layers.2": 0.3}, steps=12, every=2)
    dynamic_surgery(model, {"layers.3": 0.3}, steps=12)
    return model


class Killed(BaseException):
    """Stands for SIGKILL: nothing in fit catches it."""


def killed_after(steps: int) -> Callable[[train.Now], None]:
    left = [steps]

    def on_step(now: train.Now) -> None:
        left[0] -= 1
        if not left[0]:
            raise Killed

    return on_step


def bits(model: nn.Module) -> dict[str, bytes]:
    return {path: tensor.numpy().tobytes() for path, tensor in model.named_tensors().items()}


def test_a_killed_training_with_masks_resumes_with_the_same_bits(tmp_path: Path) -> None:
    def fitted(folder: str, **settings: Any) -> nn.Module:
        model = masked()
        train.fit(model, (X, Y), batch=12, epochs=4, folder=tmp_path / folder, save_seconds=0.0, **settings)
        return model

    whole = fitted("whole")
    with pytest.raises(Killed):
        fitted("cut", on_step=killed_after(7))
    assert bits(fitted("cut", resume=True)) == bits(whole)
    assert all(value == pytest.approx(0.3, abs=0.03) for value in densities(whole).values())


def test_rounds_of_pruning_and_training_resume_with_the_same_bits(tmp_path: Path) -> None:
    rounds: list[tuple[int, float]] = []

    def pruned(folder: str, resume: bool = False, **settings: Any) -> nn.Module:
        model = network()
        retrain = partial(train.fit, model, (X, Y), batch=12, epochs=2, save_seconds=0.0, **settings)
        results = prune_and_retrain(
            model, {"layers.0": 0.1, "layers.2": 0.5}, retrain, rounds=2, folder=tmp_path / folder, resume=resume,
            on_round=lambda number, found, _: rounds.append((number, found["layers.0.weight"])),
        )  # fmt: skip
        assert len(results) == 2
        return model

    whole = pruned("whole")
    assert [number for number, _ in rounds] == [1, 2]
    assert rounds[-1][1] == pytest.approx(0.1, abs=0.02)
    assert rounds[0][1] > rounds[1][1]
    with pytest.raises(Killed):
        pruned("cut", on_step=killed_after(13))  # in the second round
    assert bits(pruned("cut", resume=True)) == bits(whole)
    with pytest.raises(weft.UserError, match="resume=True needs the folder"):
        prune_and_retrain(whole, 0.1, lambda: None, resume=True)


# --- distillation ------------------------------------------------------------------------------------------------------------


def test_the_loss_of_a_student_is_that_of_numpy() -> None:
    teacher, student = network(1), network(2)
    with distilling(student, teacher, temperature=3.0, weight=0.7) as loss:
        found = loss(student(X), weft.asarray(Y)).item()
        plain = loss(student.eval()(X), weft.asarray(Y)).item()
    mine, other = log_softmax(student(X).numpy() / 3.0), log_softmax(teacher(X).numpy() / 3.0)
    soft = 9.0 * (np.exp(other) * (other - mine)).sum(axis=1).mean()
    hard = cross_entropy(student(X).numpy(), Y)
    assert found == pytest.approx(0.7 * soft + 0.3 * hard, rel=1e-5)
    assert plain == pytest.approx(hard, rel=1e-6), "validation knows no teacher"
    assert type(student) is nn.Sequential


def test_features_are_compared_by_normalized_maps() -> None:
    teacher = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Flatten(), nn.Linear(6 * 4, 3))
    student = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 4, 3))
    x = RNG.normal(size=(5, 1, 4, 4)).astype(np.float32)
    with distilling(student, teacher, weight=0.0, features={"layers.0": "layers.0"}, feature_weight=2.0) as loss:
        found = loss(student(x), weft.asarray(Y[:5])).item()
    maps = [(net[0](x).numpy() ** 2).mean(axis=1).reshape(5, -1) for net in (student, teacher)]
    a, b = (m / np.linalg.norm(m, axis=1, keepdims=True) for m in maps)
    hard = cross_entropy(student(x).numpy(), Y[:5])
    assert found == pytest.approx(hard + 2.0 * ((a - b) ** 2).sum(axis=1).mean(), rel=1e-4)
    with (
        pytest.raises(weft.UserError, match="no layer of the teacher"),
        distilling(student, teacher, features={"layers.0": "x"}),
    ):
        pass
    wrong = distilling(student, teacher, features={"layers.0": "layers.2"})
    with wrong, pytest.raises(weft.UserError, match="features of one size"):
        student(x)


def test_a_pruned_student_learns_from_a_teacher_in_fit() -> None:
    teacher, student = network(1), network(2)
    teacher[0].weight.assign(teacher[0].weight.numpy() * 3)
    labels = teacher(X).numpy().argmax(axis=1)
    prune(student, 0.8)
    before = bits(teacher)
    with distilling(student, teacher, temperature=2.0, weight=1.0) as loss:
        result = train.fit(student, (X, Y), (X, labels), batch=16, epochs=60, loss=loss, rate=0.05)
    assert bits(teacher) == before
    assert set(student.named_parameters()) == {
        "layers.0.bias", "layers.0.weight_parametrization.original", "layers.2.bias", "layers.2.weight_parametrization.original",
    }  # fmt: skip
    assert result.history[-1]["validation_accuracy"] > 0.9, (
        "the labels of training are random: what it knows, it has from the teacher"
    )
    for settings in ({"temperature": 0.0}, {"weight": 1.5}):
        with pytest.raises(weft.UserError, match="a temperature above 0"), distilling(student, teacher, **settings):
            pass


# --- low rank ----------------------------------------------------------------------------------------------------------------


def layers() -> nn.Sequential:
    weft.random.seed(3)
    return nn.Sequential(
        nn.Conv2d(4, 12, 3, stride=2, padding=1, activation="relu"), nn.Conv2d(12, 10, (3, 5), padding="same", dilation=(1, 2)),
        nn.Flatten(), nn.Linear(10 * 16, 20, activation="tanh"), nn.Linear(20, 3, bias=False),
    )  # fmt: skip


@pytest.mark.parametrize("conv", ["channel", "spatial"])
def test_the_two_layers_are_the_truncated_svd(conv: str) -> None:
    model = layers().eval()
    model[0].bias.assign(RNG.normal(size=12).astype(np.float32))
    x = RNG.normal(size=(2, 4, 8, 8)).astype(np.float32)
    model(x)
    exact = {path: one.value for path, one in weights_of(model).items()}
    found = low_rank(model, rank=4, conv=conv)
    assert set(found) == {"layers.0", "layers.1", "layers.3"}, "a 20 x 3 layer of rank 3 would be larger"
    plain = layers().eval()
    plain[0].bias.assign(model[0][1].bias.numpy())
    for path, row in found.items():
        value = exact[f"{path}.weight"].astype(float)
        matrix = value.reshape(len(value), -1)
        if conv == "spatial" and value.ndim == 4:
            matrix = value.transpose(0, 3, 1, 2).reshape(value.shape[0] * value.shape[3], -1)
        u, s, vt = np.linalg.svd(matrix, full_matrices=False)
        near = (u[:, :4] * s[:4]) @ vt[:4]
        assert row.error == pytest.approx(np.linalg.norm(matrix - near) / np.linalg.norm(matrix), rel=1e-6)
        assert (row.rank, row.before) == (4, value.size)
        parts = model.named_modules()[path]
        assert row.after == sum(part.weight.size for part in parts) < row.before
        if conv == "spatial" and value.ndim == 4:
            o, c, h, w = value.shape
            near = near.reshape(o, w, c, h).transpose(0, 2, 3, 1)
        plain.named_modules()[path].weight.assign(near.reshape(value.shape).astype(np.float32))
    np.testing.assert_allclose(model(x).numpy(), plain(x).numpy(), rtol=1e-4, atol=1e-5)


def test_ranks_follow_from_energy_or_from_a_target() -> None:
    model = layers()
    value = model[3].weight.numpy().astype(float)
    s = np.linalg.svd(value, compute_uv=False)
    wanted = int(np.argmax(np.cumsum(s**2) >= 0.6 * (s**2).sum())) + 1
    assert low_rank(model, energy={"layers.3": 0.6})["layers.3"].rank == wanted
    model = layers()
    total = sum(one.value.size for one in weights_of(model).values())
    found = low_rank(model, parameters=0.5)
    after = sum(one.value.size for one in weights_of(model).values())
    assert 0.44 * total < after <= 0.5 * total
    assert found
    for settings, message in (
        ({}, "one of rank, energy and parameters"), ({"rank": 2, "energy": 0.5}, "one of rank, energy and parameters"),
        ({"rank": 0}, "a rank of 1 or more"), ({"energy": 1.5}, "an energy above 0"), ({"parameters": 0.001}, "all ranks are 1"),
        ({"rank": 2, "conv": "other"}, "'channel' or 'spatial'"),
    ):  # fmt: skip
        with pytest.raises(weft.UserError, match=message):
            low_rank(layers(), **settings)
    with pytest.raises(weft.UserError, match="got layers.0.weight"):
        low_rank(nn.Sequential(nn.DepthwiseConv2d(4, 3), nn.Flatten(), nn.Linear(16, 16)), rank={"layers.0": 1})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_low_rank_layers_have_the_dtype_of_the_layer(dtype: str) -> None:
    model, plain = layers().eval(), layers().eval()
    x = RNG.normal(size=(2, 4, 8, 8)).astype(np.float32)
    plain(x)
    model(x)
    for one in (model.astype(dtype), plain):
        assert set(low_rank(one, rank=4)) == {"layers.0", "layers.1", "layers.3"}
    assert {tensor.dtype.name for tensor in model.named_parameters().values()} == {dtype}
    found, expected = model(weft.asarray(x, dtype=dtype)), plain(x).numpy()
    assert found.dtype.name == dtype
    np.testing.assert_allclose(found.numpy().astype(float), expected, atol=0.05 * np.abs(expected).max())


def test_low_rank_layers_are_pruned_and_pruned_layers_are_baked_first() -> None:
    model = layers()
    prune(model, 0.5)
    with pytest.raises(weft.UserError, match="Bake it first"):
        low_rank(model, rank=2)
    for one in weights_of(model).values():
        bake(one.layer, one.name)
    low_rank(model, rank=2)
    prune(model, 0.5)
    assert all(value == 0.5 for value in densities(model).values())
    symbol = nn.Input()
    with pytest.raises(weft.UserError, match=r"inside of nn\.Model"):
        low_rank(nn.Model(symbol, nn.Linear(8, 8)(symbol)), rank=1)
