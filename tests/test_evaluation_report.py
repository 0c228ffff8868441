"""Checks the numbers of an evaluation and of a comparison against plain computations of their definitions."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from weft import metrics
from weft.errors import RunError
from weft.report import predictions as stored
from weft.report.agreement import agreement, comparable, mcnemar
from weft.report.calibration import best_temperature, calibration, softened
from weft.report.decimation import decimated, decimated_points
from weft.report.evaluation import (
    class_table,
    evaluate_classes,
    evaluate_numbers,
    frequent_confusions,
    read_evaluation,
    wilson,
    write_evaluation,
)
from weft.report.importance import FOREST_RUNS, correlation_ratio, importances
from weft.report.predictions import Predictions, read_predictions, write_predictions
from weft.report.ranking_curves import ranking_curves, thinned

CLASSES = ["cat", "dog", "owl"]


def some_predictions(count: int = 400, seed: int = 0, sharpness: float = 2.0) -> Predictions:
    """Predictions that are often right, with ties between scores."""
    random = np.random.default_rng(seed)
    true = random.integers(0, 3, count)
    logits = sharpness * (np.eye(3)[true] + random.normal(size=(count, 3))).round(1)
    shares = np.exp(stored.log_softmax(logits.astype(np.float32)))
    return Predictions(shares, true, CLASSES, "validation", "same")


# --- files --------------------------------------------------------------------------------------------------------------------


def test_stored_predictions_come_back(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    logits, true = 8 * random.normal(size=(50, 3)).astype(np.float32), random.integers(0, 3, 50)
    write_predictions(tmp_path, logits, true, CLASSES, "test", "abc")
    found = read_predictions(tmp_path)
    assert found is not None
    wanted = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(found.probabilities, wanted, rtol=6e-3, atol=1e-7)
    assert (found.true.tolist(), found.classes, found.split, found.examples) == (true.tolist(), CLASSES, "test", "abc")
    np.testing.assert_array_equal(found.predicted, logits.argmax(1))


def test_float16_keeps_confident_predictions_apart(tmp_path: Path) -> None:
    write_predictions(tmp_path, np.array([[12.0, 0.0], [14.0, 0.0]], np.float32), np.zeros(2, int), ["a", "b"], "", "")
    found = read_predictions(tmp_path)
    assert found is not None
    assert found.probabilities[0, 1] > found.probabilities[1, 1] > 0


def test_large_sets_keep_the_largest_probabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "MAX_VALUES", 100)
    monkeypatch.setattr(stored, "TOP", 4)
    logits = np.random.default_rng(0).normal(size=(30, 40)).astype(np.float32) * 3
    names = [str(i) for i in range(40)]
    write_predictions(tmp_path, logits, np.zeros(30, int), names, "", "")
    found = read_predictions(tmp_path)
    assert found is not None
    wanted = np.exp(stored.log_softmax(logits))
    np.testing.assert_array_equal(found.predicted, wanted.argmax(1))
    np.testing.assert_allclose(found.probabilities.max(1), wanted.max(1), rtol=6e-3)
    np.testing.assert_allclose(found.probabilities.sum(1), 1, rtol=1e-5)


def test_damaged_predictions_are_rejected(tmp_path: Path) -> None:
    (tmp_path / stored.FILE).write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(RunError, match="cannot be read"):
        read_predictions(tmp_path)
    stored.write_npz(tmp_path / stored.FILE, true=np.zeros(3))
    with pytest.raises(RunError, match="damaged"):
        read_predictions(tmp_path)
    assert read_predictions(tmp_path / "elsewhere") is None


# --- scores -------------------------------------------------------------------------------------------------------------------


def test_scores_of_classes_follow_their_definitions() -> None:
    found = some_predictions()
    result = evaluate_classes(found)
    logits, true = found.probabilities, found.true
    assert result["accuracy"] == pytest.approx(float(metrics.accuracy(logits, true).item()))
    for i, one in enumerate(result["classes"]):
        taken, own = found.predicted == i, true == i
        assert one["precision"] == pytest.approx((taken & own).sum() / taken.sum())
        assert one["recall"] == pytest.approx((taken & own).sum() / own.sum())
        assert one["f1"] == pytest.approx(2 / (1 / one["precision"] + 1 / one["recall"]))
        assert one["average_precision"] == pytest.approx(metrics.average_precision(logits[:, i], own).item())
        assert one["auc"] == pytest.approx(metrics.roc_auc(logits[:, i], own).item())
    assert result["mean_f1"] == pytest.approx(np.mean([one["f1"] for one in result["classes"]]))
    ranks = (-logits).argsort(1, kind="stable")
    assert result["top"]["2"] == pytest.approx((ranks[:, :2] == true[:, None]).any(1).mean())
    assert result["top"]["1"] == result["accuracy"]
    assert list(result["top"]) == ["1", "2"]
    micro = result["curves"]["micro"]
    flags = np.eye(3, dtype=bool)[true]
    assert micro["average_precision"] == pytest.approx(metrics.average_precision(logits.ravel(), flags.ravel()).item())


def test_a_class_without_examples_has_no_scores() -> None:
    table = class_table(np.array([[3, 1, 0], [0, 2, 0], [0, 0, 0]]), CLASSES)
    assert (table[2]["precision"], table[2]["recall"], table[2]["f1"]) == (None, None, None)
    assert (table[0]["taken_for"], table[0]["taken_count"], table[1]["taken_for"]) == ("dog", 1, None)
    assert ranking_curves(np.ones(3), np.zeros(3, bool)) is None


def test_curves_equal_a_count_at_every_threshold() -> None:
    random = np.random.default_rng(3)
    scores, positive = random.integers(0, 12, 200) / 12, random.random(200) < 0.3
    found = ranking_curves(scores, positive)
    assert found is not None
    for at, threshold in enumerate(sorted(set(scores.tolist()), reverse=True)):
        taken = scores >= threshold
        assert found.recall[at] == pytest.approx((taken & positive).sum() / positive.sum())
        assert found.precision[at] == pytest.approx((taken & positive).sum() / taken.sum())
        assert found.false_positives[at] == pytest.approx((taken & ~positive).sum() / (~positive).sum())
    points = thinned(np.linspace(0, 1, 1000), np.linspace(1, 0, 1000), 50)
    assert (len(points), points[0], points[-1]) == (50, (0, 1), (1, 0))


def test_confusions_are_listed_by_frequency() -> None:
    found = frequent_confusions(np.array([[9, 1, 0], [4, 5, 0], [0, 2, 7]]), CLASSES)
    assert [(one["true"], one["predicted"], one["count"]) for one in found] == [
        ("dog", "cat", 4), ("owl", "dog", 2), ("cat", "dog", 1),
    ]  # fmt: skip


def test_wilson_interval_solves_its_equation() -> None:
    z = 1.959964
    for right, count in ((0, 20), (13, 20), (950, 1000)):
        for edge in wilson(right, count):
            if 0 < edge < 1:
                assert abs(right / count - edge) == pytest.approx(z * math.sqrt(edge * (1 - edge) / count), rel=1e-6)


def test_an_evaluation_is_kept_as_a_file(tmp_path: Path) -> None:
    assert read_evaluation(tmp_path) is None
    write_evaluation(tmp_path, evaluate_classes(some_predictions(40)))
    found = read_evaluation(tmp_path)
    assert found is not None
    assert found["examples"] == 40
    (tmp_path / "evaluation.json").write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        read_evaluation(tmp_path)


def test_errors_of_a_regression() -> None:
    random = np.random.default_rng(0)
    true = random.normal(size=(300, 2))
    predicted = true + [[0.5, 0.0]] + 0.1 * random.normal(size=(300, 2))
    first, second = evaluate_numbers(true, predicted)["outputs"]
    assert first["bias"] == pytest.approx((predicted - true)[:, 0].mean())
    assert first["rmse"] == pytest.approx(float(metrics.rmse(predicted[:, 0], true[:, 0]).item()), rel=1e-5)
    assert second["r2"] == pytest.approx(float(metrics.r2(predicted[:, 1], true[:, 1]).item()), rel=1e-4)
    assert sum(first["residuals"]["counts"]) == 300


# --- calibration --------------------------------------------------------------------------------------------------------------


def test_calibration_error_is_that_of_the_metric() -> None:
    found = some_predictions(sharpness=5.0)
    wanted = float(metrics.calibration_error(found.probabilities, found.true, bins=10).item())
    assert calibration(found.probabilities, found.true).error == pytest.approx(wanted, rel=1e-5)


def test_the_temperature_undoes_a_scaling_of_the_logits() -> None:
    random = np.random.default_rng(5)
    logits = 2 * random.normal(size=(4000, 4))
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    true = (shares.cumsum(1) < random.random((4000, 1))).sum(1)  # drawn from these probabilities: they are calibrated
    assert best_temperature(logits, true) == pytest.approx(1.0, abs=0.06)
    assert best_temperature(3 * logits, true) == pytest.approx(3.0, abs=0.18)
    found = calibration(softened(logits, 1 / 3), true)
    assert found.corrected_error < 0.02 < found.error
    losses = {t: -np.log(softened(3 * logits, t)[np.arange(4000), true]).mean() for t in np.linspace(2, 4, 41)}
    assert best_temperature(3 * logits, true) == pytest.approx(min(losses, key=losses.__getitem__), abs=0.05)


# --- several networks ---------------------------------------------------------------------------------------------------------


def test_mcnemar_equals_the_sum_over_all_outcomes() -> None:
    for first, second in ((0, 0), (3, 1), (5, 5), (9, 2)):
        total = first + second
        extreme = sum(
            abs(sum(throw) - total / 2) >= abs(first - total / 2) for throw in itertools.product((0, 1), repeat=total)
        )
        a = np.array([True] * first + [False] * second + [True] * 4)
        b = np.array([False] * first + [True] * second + [True] * 4)
        assert mcnemar(a, b).p_value == pytest.approx(extreme / 2**total)


def test_mcnemar_of_many_examples_is_that_of_few() -> None:
    right = np.arange(2400) % 2 == 0
    close = mcnemar(np.append(right, np.ones(100, bool)), np.append(~right, np.zeros(100, bool)))
    z = (100 - 1) / math.sqrt(2500)
    assert close.p_value == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.05)


def test_networks_that_disagree() -> None:
    one, two = some_predictions(seed=0), some_predictions(seed=0)
    shares = two.probabilities.copy()
    shares[:7] = np.roll(shares[:7], 1, axis=1)
    two = Predictions(shares, two.true, CLASSES, "validation", "same")
    found = agreement([one, two])
    assert sorted(found.disagree.tolist()) == list(range(7))
    assert found.equal[0, 1] == pytest.approx(1 - 7 / 400)
    assert comparable([one, two])
    assert not comparable([one, Predictions(shares, two.true, CLASSES, "validation", "others")])


# --- importance ---------------------------------------------------------------------------------------------------------------


def test_the_forest_finds_the_setting_that_matters() -> None:
    random = np.random.default_rng(0)
    settings = {
        "rate": random.choice([0.1, 0.03, 0.01, 0.003], 60).tolist(),
        "optimizer": random.choice(["adam", "sgd"], 60).tolist(),
        "seed": random.integers(0, 100, 60).tolist(),
    }
    metric = [
        -math.log10(r) * 0.1 + 0.02 * (o == "sgd") for r, o in zip(settings["rate"], settings["optimizer"], strict=True)
    ]
    found = importances(settings, metric + random.normal(0, 0.003, 60))
    assert found is not None
    assert (found.method, found.runs) == ("forest", 60)
    assert [one.name for one in found.settings] == ["rate", "optimizer", "seed"]
    assert found.settings[0].share > 0.8 > 0.05 > found.settings[2].share
    assert sum(one.share for one in found.settings) == pytest.approx(1)
    assert all(one.error is not None and one.error < 0.2 for one in found.settings)
    assert found.explained is not None
    assert found.explained > 0.8


def test_a_forest_of_noise_explains_nothing() -> None:
    random = np.random.default_rng(1)
    found = importances(
        {"rate": random.random(40).tolist(), "batch": random.random(40).tolist()}, random.normal(size=40)
    )
    assert found is not None
    assert found.explained is not None
    assert found.explained < 0.2


def test_few_runs_are_looked_at_one_setting_at_a_time() -> None:
    values = [0.9, 0.91, 0.92, 0.5, 0.51, 0.52]
    found = importances({"rate": [0.1] * 3 + [1.0] * 3, "seed": [0, 1, 2, 0, 1, 2], "epochs": [3] * 6}, values)
    assert found is not None
    assert len(values) < FOREST_RUNS
    assert [one.name for one in found.settings] == ["rate", "seed"]
    groups = np.array([0, 0, 0, 1, 1, 1])
    within = sum(((np.array(values)[groups == g] - np.array(values)[groups == g].mean()) ** 2).sum() for g in (0, 1))
    total = ((np.array(values) - np.mean(values)) ** 2).sum()
    assert found.settings[0].share == pytest.approx(1 - within / total)
    assert found.settings[0].p_value == pytest.approx(0.1, abs=0.04)  # 2 of the 20 ways to deal 3 of 6 values
    assert correlation_ratio(np.array([0, 1, 2]), np.array([1.0, 2.0, 4.0])) == pytest.approx(1)
    assert importances({"rate": [1, 1, 1]}, [1.0, 2.0, 3.0]) is None


# --- decimation ---------------------------------------------------------------------------------------------------------------


def test_decimation_keeps_ends_and_spikes() -> None:
    x = np.arange(100_000.0)
    y = np.sin(x / 5000)
    y[[777, 54_321]] = 9.0, -9.0
    xs, ys = decimated(x, y, 2000)
    assert len(xs) <= 2002
    assert (xs[0], xs[-1], ys.max(), ys.min()) == (0, 99_999, 9, -9)
    assert np.all(np.diff(xs) > 0)
    np.testing.assert_allclose(np.interp(x[::501], xs, ys), y[::501], atol=0.02)
    y[5:9] = math.nan
    assert np.nanmax(decimated(x, y, 2000)[1]) == 9
    assert decimated_points([(i, 0.0) for i in range(9)], 4)[-1] == (8, 0.0)
