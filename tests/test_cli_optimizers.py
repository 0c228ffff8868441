"""Checks what settings say about optimizers, schedules, smoothing, mixing and averaging, and the names of runs."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft import data, nn, train
from weft.cli import main
from weft.errors import UserError
from weft.io import load
from weft.jobs.optimizers import optimizer_settings
from weft.jobs.rate_schedules import TAKES, check_schedule, schedule
from weft.jobs.settings import SETTINGS

QUICK = ["train", "digits", "model=logistic_regression", "epochs=1"]


def settings(**given: Any) -> dict[str, Any]:
    return {name: setting.default for name, setting in SETTINGS.items()} | given


def test_sgd_has_momentum_unless_told_otherwise() -> None:
    assert optimizer_settings(settings(optimizer="sgd"))["momentum"] == 0.9
    assert optimizer_settings(settings(optimizer="sgd", momentum=0.0))["momentum"] == 0.0
    assert "momentum" not in optimizer_settings(settings(optimizer="adam"))


def test_an_optimizer_is_given_its_own_settings() -> None:
    found = optimizer_settings(settings(optimizer="adamw", betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, average=0.99))
    assert found == {
        "b1": 0.8,
        "b2": 0.95,
        "eps": 1e-6,
        "weight_decay": 0.1,
        "average": 0.99,
        "accumulate": 1,
        "zero": 0,
        "local_steps": 1,
    }
    assert optimizer_settings(settings(optimizer="sgd", nesterov=True))["nesterov"] is True
    with pytest.raises(UserError, match="adam takes betas, eps, weight_decay, got momentum"):
        optimizer_settings(settings(momentum=0.5))
    with pytest.raises(UserError, match="sgd takes momentum, nesterov, weight_decay, got betas"):
        optimizer_settings(settings(optimizer="sgd", betas=(0.9, 0.99)))


@pytest.mark.parametrize("name", ["one_cycle", "cosine", "linear"])
def test_warmup_and_final_rate(name: str) -> None:
    rate = schedule(settings(schedule=name, warmup=2.0, final_rate=0.01), 1.0, 100, 10)
    values = [float(rate(t).item()) for t in range(101)]
    assert int(np.argmax(values)) == 20
    assert values[20] == pytest.approx(1.0)
    assert values[-1] == pytest.approx(0.01)
    assert all(a <= b for a, b in itertools.pairwise(values[:21]))


def test_schedules_without_further_settings() -> None:
    assert schedule(settings(schedule="constant"), 0.5, 100, 10) == 0.5
    assert float(schedule(settings(schedule="constant", warmup=1.0), 0.5, 100, 10)(5).item()) == pytest.approx(0.25)
    assert float(schedule(settings(), 1.0, 100, 10)(30).item()) == pytest.approx(1.0)
    assert float(schedule(settings(warmup=0.0), 1.0, 100, 10)(0).item()) == pytest.approx(1.0)


EXPECTED = {
    "step": [1, 1, 0.1, 0.01, 0.01],
    "exponential": [1, 0.95**25, 0.95**50, 0.95**75, 0.95**99],
    "polynomial": [1, 0.75**2, 0.5**2, 0.25**2, 0.01**2],
    "inverse": [1, 3.5**-0.5, 6**-0.5, 8.5**-0.5, 10.9**-0.5],
    "sigmoid": [1 / (1 + np.exp(-5)), 1 / (1 + np.exp(-2.5)), 0.5, 1 / (1 + np.exp(2.5)), 1 / (1 + np.exp(4.9))],
    "restarts": [1, *((1 + np.cos(np.pi * np.array([11 / 28, 8 / 58, 33 / 58, 57 / 58]))) / 2)],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_further_schedules(name: str) -> None:
    """Their defaults are shares of the training, as in DIGITS."""
    rate = schedule(settings(schedule=name), 1.0, 100, 10)
    for t, value in zip((0, 25, 50, 75, 99), EXPECTED[name], strict=True):
        assert float(rate(t).item()) == pytest.approx(value, rel=1e-3), t


def test_milestones_are_epochs() -> None:
    given = {"milestones": (3.0, 6.0), "warmup": 1.0}
    rate = schedule(settings(schedule="step", gamma=0.5, **given), 1.0, 100, 10)
    assert [round(float(rate(t).item()), 6) for t in (10, 29, 30, 59, 60, 99)] == [1, 1, 0.5, 0.5, 0.25, 0.25]
    rate = schedule(settings(schedule="restarts", final_rate=0.1, **given), 1.0, 100, 10)
    values = [float(rate(t).item()) for t in range(100)]
    assert [values[t] for t in (10, 30, 60)] == pytest.approx([1, 1, 1])
    assert [values[t] for t in (29, 59, 99)] == pytest.approx([0.1, 0.1, 0.1], abs=0.01)
    rate = schedule(settings(schedule="exponential", gamma=0.5), 1.0, 100, 10)
    assert float(rate(10).item()) == pytest.approx(0.5)
    rate = schedule(settings(schedule="step", milestones=(1.0, 2.0)), 1.0, 3, 500)  # fewer steps than milestones
    assert float(rate(0).item()) == 1


def test_every_schedule_has_its_settings() -> None:
    assert SETTINGS["schedule"].choices == tuple(TAKES)
    values = {"final_rate": 0.1, "milestones": (2.0,), "gamma": 0.5, "power": 2.0}
    for name, taken in TAKES.items():
        for setting, value in values.items():
            if setting in taken:
                check_schedule(settings(schedule=name, **{setting: value}))
                schedule(settings(schedule=name, **{setting: value}), 1.0, 100, 10)
            else:
                with pytest.raises(UserError, match=f"{setting} requires schedule=.* got schedule={name}"):
                    check_schedule(settings(schedule=name, **{setting: value}))
    for wrong in ((0.0,), (3.0, 2.0), (10.0,), (-1.0, 2.0)):
        with pytest.raises(UserError, match="milestones must be epochs that grow"):
            check_schedule(settings(schedule="step", milestones=wrong))


def test_wrong_combinations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, message in (
        (["warmup=1"], "warmup is shorter than the 1 epochs"),
        (["final_rate=0.1", "schedule=constant"], "final_rate requires schedule="),
        (["mixup=1", "cutmix=1"], "one of mixup and cutmix is required"),
        (["label_smoothing=0.1", "loss=hinge"], "label_smoothing requires the loss cross_entropy"),
    ):
        assert main([*QUICK, *words]) == 2
        assert message in capsys.readouterr().err
    np.savez(tmp_path / "line.npz", x=np.zeros((40, 4), np.float32), y=np.zeros((40, 1), np.float32))
    assert main(["train", "line.npz", "mixup=0.2"]) == 2
    assert "mixup requires images" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


# --- what they do -----------------------------------------------------------------------------------------------------------------


def points() -> data.Arrays:
    draw = np.random.default_rng(0)
    return data.Arrays(draw.normal(size=(64, 1, 4, 4)).astype(np.float32), np.arange(64) % 2)


def network() -> nn.Module:
    import weft

    weft.seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))


def test_smoothing_and_mixing_change_training_but_not_validation() -> None:
    plain = train.fit(network(), points(), points(), epochs=1, rate=0.0).best
    smooth = train.fit(network(), points(), points(), epochs=1, rate=0.0, label_smoothing=0.5).best
    mixed = train.fit(network(), points(), points(), epochs=1, rate=0.0, mix=data.MixUp(1.0, 2)).best
    for other in (smooth, mixed):
        assert other["train_loss"] != pytest.approx(plain["train_loss"], rel=1e-3)
        assert other["validation_loss"] == pytest.approx(plain["validation_loss"])


def test_averaged_weights_are_validated_and_saved(tmp_path: Path) -> None:
    model = network()
    before = [p.numpy().copy() for p in model.parameters()]
    settings: dict[str, Any] = {"epochs": 1, "batch": 64, "rate": 0.5, "optimizer": "sgd", "average": 0.75}
    found = train.fit(model, points(), points(), **settings, folder=tmp_path / "run")
    saved = load(tmp_path / "run" / "weights" / "last.safetensors")
    for (name, now), old in zip(model.named_parameters().items(), before, strict=True):
        np.testing.assert_allclose(saved[name].numpy(), 0.75 * old + 0.25 * now.numpy(), rtol=1e-5, atol=1e-6)
        assert not np.array_equal(now.numpy(), old)
    model.load(saved)
    loader = data.Loader(points(), 64, shuffle=False)
    numbers = train.evaluated(model.eval(), loader).numbers
    assert numbers["loss"] == pytest.approx(found.best["validation_loss"], rel=1e-5)


def test_a_network_is_trained_with_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "optimizer=sgd",
        "nesterov=true",
        "warmup=0.2",
        "final_rate=0.001",
        "label_smoothing=0.1",
        "cutmix=1",
        "average=0.9",
    ]
    assert main([*QUICK, *words, "name=full"]) == 0
    args = (tmp_path / "runs" / "classify" / "full" / "args.yaml").read_text()
    assert "cutmix: 1.0" in args
    assert main(["eval", "full", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["accuracy"] > 0.5


# --- names ------------------------------------------------------------------------------------------------------------------------


def test_a_run_keeps_the_name_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*QUICK, "name=full"]) == 0
    run = tmp_path / "runs" / "classify" / "full"
    first = (run / "env.json").read_text()
    capsys.readouterr()
    assert main([*QUICK, "name=full"]) == 2
    assert "Give another name, or exist_ok=true to replace it." in capsys.readouterr().err
    assert (run / "env.json").read_text() == first
    assert main(["resume", "full", "epochs=2"]) == 0
    assert main([*QUICK, "name=full", "exist_ok=true"]) == 0
    assert len((run / "metrics.csv").read_text().splitlines()) == 2
    assert [p.name for p in run.parent.iterdir()] == ["full"]
