"""The evaluation of a classifier or a regression from its stored predictions: everything that pages and reports show of it."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError
from ..io.files import replace_file
from ..io.json_values import json_value
from .calibration import calibration
from .predictions import Predictions
from .ranking_curves import RankingCurves, ranking_curves, thinned

FILE = "evaluation.json"
TOP_K = (1, 2, 3, 5, 10)
MAX_CURVES = 20  # classes whose curves are kept, those with the lowest average precision
CURVE_POINTS = 80
MAX_PAIRS = 50  # most frequent confusions
SCATTER_POINTS = 2000


def evaluate_classes(found: Predictions) -> dict[str, Any]:
    """Scores of all and of each class, calibration, curves, confusions; plain values, as evaluation.json holds them."""
    matrix = found.confusion()
    curves = [ranking_curves(found.probabilities[:, i], found.true == i) for i in range(len(found.classes))]
    classes = class_table(matrix, found.classes)
    for one, curve in zip(classes, curves, strict=True):
        one |= {"average_precision": curve and curve.average_precision, "auc": curve and curve.auc}
    return {
        "task": "classify", "split": found.split, "examples": len(found.true), "names": found.classes,
        **overall_scores(found, classes), "classes": classes, "calibration": asdict(calibration(found.probabilities, found.true)),
        "curves": _curves(found, curves), "confusions": frequent_confusions(matrix, found.classes),
    }  # fmt: skip


def evaluate_labels(scores: Iterable[Sequence[Any]], examples: int, split: str = "") -> dict[str, Any]:
    """Precision, recall and F1 of each class, and their means, where an example may have several."""
    names = ("precision", "recall", "f1")
    classes = [dict(zip(("name", "examples", *names), row, strict=True)) for row in scores]
    means = {f"mean_{name}": _mean([one[name] for one in classes]) for name in names}
    return {"task": "labels", "split": split, "examples": examples, **means, "classes": classes}


def overall_scores(found: Predictions, classes: list[dict[str, Any]]) -> dict[str, Any]:
    """Accuracy with its 95 % interval, top-k, log loss, and means over the classes that have examples."""
    count, accuracy = len(found.true), float(found.right.mean()) if len(found.true) else math.nan
    own = found.probabilities[np.arange(count), found.true]
    before = (
        np.arange(len(found.classes)) < found.true[:, None]
    )  # of equal probabilities the first class counts, as in argmax
    rank = ((found.probabilities > own[:, None]) | (before & (found.probabilities == own[:, None]))).sum(axis=1)
    low, high = wilson(int(found.right.sum()), count)
    present = [one for one in classes if one["examples"]]
    means = {f"mean_{name}": _mean([one[name] for one in present]) for name in ("precision", "recall", "f1", "average_precision", "auc")}  # fmt: skip
    return {
        "accuracy": accuracy, "accuracy_low": low, "accuracy_high": high,
        "top": {str(k): float((rank < k).mean()) for k in TOP_K if k < len(found.classes)},
        "log_loss": float(-np.log(np.maximum(own, 1e-30)).mean()), **means,
    }  # fmt: skip


def wilson(right: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson 1927).

    >>> low, high = wilson(9, 10)
    >>> round(low, 3), round(high, 3)
    (0.596, 0.982)
    """
    if not count:
        return 0.0, 1.0
    share, spread = right / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def class_table(matrix: np.ndarray, names: list[str]) -> list[dict[str, Any]]:
    """Precision, recall, F1 and number of examples of each class; None where a ratio has no denominator.

    >>> [round(one["f1"], 2) for one in class_table(np.array([[8, 2], [1, 9]]), ["a", "b"])]
    [0.84, 0.86]
    """
    true, taken, right = matrix.sum(1), matrix.sum(0), matrix.diagonal()
    wrong = matrix - np.diag(right)
    found = []
    for i, name in enumerate(names):
        precision = float(right[i] / taken[i]) if taken[i] else None
        recall = float(right[i] / true[i]) if true[i] else None
        f1 = float(2 * right[i] / (true[i] + taken[i])) if true[i] + taken[i] else None
        most = int(wrong[i].argmax()) if wrong[i].any() else None
        found.append({
            "name": name, "number": i, "examples": int(true[i]), "precision": precision, "recall": recall, "f1": f1,
            "taken_for": None if most is None else names[most], "taken_count": 0 if most is None else int(wrong[i, most]),
        })  # fmt: skip
    return found


def frequent_confusions(matrix: np.ndarray, names: list[str], most: int = MAX_PAIRS) -> list[dict[str, Any]]:
    """Pairs of a true and a predicted class, the most frequent first."""
    wrong = matrix - np.diag(matrix.diagonal())
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    pairs = [divmod(int(i), len(names)) for i in order if wrong.flat[i]]
    return [
        {"true": names[a], "predicted": names[b], "row": a, "column": b, "count": int(wrong[a, b])} for a, b in pairs
    ]


def _curves(found: Predictions, curves: list[RankingCurves | None]) -> dict[str, Any]:
    """Precision over recall and the ROC curve of all decisions together (micro) and of the classes with the lowest average precision."""
    known = sorted(
        ((c.average_precision, i, c) for i, c in enumerate(curves) if c is not None), key=lambda one: one[:2]
    )
    made: dict[str, Any] = {"classes": [_points(found.classes[i], c) for _, i, c in known[:MAX_CURVES]]}
    flags = np.zeros(found.probabilities.shape, bool)
    flags[np.arange(len(found.true)), found.true] = True
    every = ranking_curves(found.probabilities.ravel(), flags.ravel())
    return made | {"micro": None if every is None else _points("all decisions", every)}


def _points(name: str, curve: RankingCurves) -> dict[str, Any]:
    return {
        "name": name, "average_precision": curve.average_precision, "auc": curve.auc,
        "precision_recall": thinned(curve.recall, curve.precision, CURVE_POINTS),
        "roc": thinned(curve.false_positives, curve.recall, CURVE_POINTS),
    }  # fmt: skip


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


# --- regression ---------------------------------------------------------------------------------------------------------------


def evaluate_numbers(true: np.ndarray, predicted: np.ndarray, split: str = "") -> dict[str, Any]:
    """Errors of each output of a regression, a scatter of predicted over true values, and the distribution of residuals."""
    outputs = [_output(true[:, i], predicted[:, i]) for i in range(true.shape[1])]
    return {"task": "regress", "split": split, "examples": len(true), "outputs": outputs}


def _output(true: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    residual = (predicted - true).astype(np.float64)
    spread = float(((true - true.mean()) ** 2).sum())
    keep = np.unique(np.linspace(0, len(true) - 1, min(len(true), SCATTER_POINTS)).astype(np.int64))
    counts, edges = np.histogram(residual, bins=min(30, max(5, int(math.sqrt(len(true))))))
    return {
        "mae": float(np.abs(residual).mean()), "rmse": float(math.sqrt((residual**2).mean())), "bias": float(residual.mean()),
        "r2": 1.0 - float((residual**2).sum()) / spread if spread else None,
        "scatter": [(float(a), float(b)) for a, b in zip(true[keep], predicted[keep], strict=True)],
        "residuals": {"counts": counts.tolist(), "edges": edges.tolist()},
    }  # fmt: skip


def read_numbers(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """True and predicted values of predictions.csv."""
    try:
        head, *rows = csv.reader(path.read_text("utf-8").splitlines())
        values, half = np.array(rows, np.float64).reshape(len(rows), len(head)), len(head) // 2
    except (OSError, ValueError) as error:
        raise RunError("report", f"{path} cannot be read: {error}.") from None
    return values[:, :half], values[:, half:]


# --- the file -----------------------------------------------------------------------------------------------------------------


def write_evaluation(folder: Path, found: Mapping[str, Any]) -> None:
    """Write evaluation.json."""
    replace_file(folder / FILE, [json.dumps(json_value(dict(found))).encode()])


def read_evaluation(folder: Path) -> dict[str, Any] | None:
    """The content of evaluation.json; None for a run without one."""
    try:
        found = json.loads((folder / FILE).read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError("report", f"{folder / FILE} cannot be read: {error}.") from None
    return found if isinstance(found, dict) else None
