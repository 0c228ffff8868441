"""Regression watch: changes are found and noise is not, on made-up times; the programs that are measured are only run."""

import json

import numpy as np
import pytest

import weft
from weft import nn
from weft.errors import UserError
from weft.insight import compare_steps
from weft.insight.regression import compare_times, student_t

LAYERS = [f"layers.{i}" for i in range(30)]


def noisy(
    seed: int, scale: dict[str, float] | None = None, rounds: int = 10, spikes: bool = True
) -> dict[str, list[float]]:
    """Times with 5 % of noise that all layers of a round share in part, and now and then another program's burst."""
    random = np.random.default_rng(seed)
    shared = np.exp(0.03 * random.standard_normal(rounds))
    found = {}
    for i, name in enumerate(LAYERS):
        own = np.exp(0.05 * random.standard_normal(rounds)) * np.where(random.random(rounds) < 0.03 * spikes, 4.0, 1.0)
        found[name] = list(1e-4 * (i + 1) * (scale or {}).get(name, 1.0) * shared * own)
    found["total"] = list(np.sum([found[name] for name in LAYERS], axis=0))
    return found


def test_equal_programs_raise_hardly_any_alarm() -> None:
    alarms = sum(bool(compare_times(noisy(2 * i), noisy(2 * i + 1)).changed) for i in range(50))
    assert alarms <= 2


def test_a_layer_that_became_slower_is_found_and_no_other() -> None:
    for seed in range(10):
        report = compare_times(noisy(seed, spikes=False), noisy(seed + 100, {"layers.7": 1.5}, spikes=False))
        assert [(one.name, one.verdict) for one in report.changed] == [("layers.7", "slower")]
        [one] = report.changed
        assert one.low < 1.5 < one.high
    report = compare_times(noisy(1, {"layers.7": 1.5}, spikes=False), noisy(2, spikes=False))
    assert [(one.name, one.verdict) for one in report.changed] == [("layers.7", "faster")]


def test_small_but_certain_changes_do_not_count() -> None:
    a = {"conv": [1.0, 1.001, 1.0, 1.001], "total": [1.0] * 4}
    b = {"conv": [1.02, 1.021, 1.02, 1.022], "total": [1.0] * 4}
    report = compare_times(a, b)
    assert report.layers[0].low > 1
    assert report.changed == ()


def test_layers_that_only_one_has_are_named() -> None:
    a = {"conv": [1.0] * 3, "old": [1.0] * 3, "total": [2.0] * 3}
    b = {"conv": [1.0] * 3, "new": [1.0] * 3, "total": [2.0] * 3}
    report = compare_times(a, b, names=("run-1", "run-2"))
    assert report.only == (("old",), ("new",))
    assert "A: run-1; only it has old" in str(report)
    assert "no layer changed beyond noise" in str(report)
    assert json.loads(json.dumps(report.to_dict()))["changed"] == []


def test_two_rounds_are_too_few() -> None:
    with pytest.raises(UserError, match="3 rounds or more are required to tell changes from noise, got 2"):
        compare_times({"total": [1.0, 1.0]}, {"total": [1.0, 1.0]})


@pytest.mark.parametrize(
    ("freedom", "chance", "value"), [(1, 0.01, 63.657), (4, 0.001, 8.610), (30, 0.05, 2.042), (9, 1e-4, 6.594)]
)
def test_quantiles_of_students_t(freedom: int, chance: float, value: float) -> None:
    assert student_t(freedom, chance) == pytest.approx(value, rel=2e-3)


def test_measured_programs_are_compared_by_layer() -> None:
    def step(width: int):
        model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, width))
        return weft.jit(model), (weft.ones((4, 16)),)

    report = compare_steps(step(16), step(2048), rounds=3)
    assert {"layers.0", "layers.2"} <= {one.name for one in report.layers}
    assert report.total.before > 0
    large = next(one for one in report.layers if one.name == "layers.2")
    assert large.ratio > 1, "128 times as much work"


def test_a_layer_that_is_too_short_to_be_listed_in_every_round_is_left_out() -> None:
    a = {"conv": [1.0] * 4, "optimizer": [1e-6], "total": [1.0] * 4}
    report = compare_times(a, {**a, "optimizer": [1e-6] * 4})
    assert [one.name for one in report.layers] == ["conv"]
    assert report.rounds == 4


def test_an_int8_network_is_compared_with_the_layers_that_it_wraps() -> None:
    weft.seed(0)
    x = weft.random.normal((8, 32))
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    before = weft.jit(model)
    before(x)
    small = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    weft.compress.int8(small, x.numpy())
    after = weft.jit(weft.compress.to_int8(small))
    for steps in (((before, (x,)), (after, (x,))), ((after, (x,)), (before, (x,)))):
        report = compare_steps(*steps, rounds=3)
        assert {"layers.0", "layers.2"} <= {one.name for one in report.layers}
