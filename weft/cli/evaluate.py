"""The verb `eval`: evaluate a trained network on the data of its run, or on other data with the same classes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..io.json_values import json_value
from ..jobs.evaluations import SPLITS, evaluate_run
from ..jobs.schema import Setting, flag
from ..jobs.settings import DEVICE
from ..jobs.stored import run_of
from .arguments import read
from .table import number_text, pairs, table


def evaluate(words: Sequence[str]) -> None:
    """Evaluate a trained network on held-out examples: weft eval RUN.

    On the test split if there is one, else on validation; split= names another, checkpoint= other weights. data= measures on other
    data: its classes must be among those of the run. save=true keeps the evaluation in the run folder, where the studio shows it.
    """
    known = {
        "split": Setting(str, None, "split to evaluate on; default: test, else validation", choices=SPLITS),
        "checkpoint": Setting(str, "best", "weights of the run: best, last, or an epoch such as epoch-0007"),
        "data": Setting(str, None, "other data with the same classes"),
        "save": Setting(flag, False, "keep the evaluation in the run folder, for the studio"),
        "device": DEVICE,
        "json": Setting(flag, False, "print JSON, for programs"),
    }
    given = read("eval", words, known, 1)
    folder = run_of("eval", given.plain)
    made = evaluate_run(
        folder, given["split"], given["checkpoint"], given["device"], other=given["data"], save=given["save"]
    )
    split, found, notes = made.split, made.found, made.notes
    examples = found.dataset
    facts = {
        "run": str(folder), "data": made.data, "split": split, "checkpoint": given["checkpoint"], "examples": len(examples),
        **found.numbers,
    }  # fmt: skip
    scores = found.report(split)
    if given["json"]:
        print(json.dumps(json_value({**facts, "classes": found.classes, "notes": notes, "report": scores})))
        return
    print(pairs({name: number_text(name, value) for name, value in (facts | _overall(scores)).items()}))
    if scores is not None and scores.get("classes"):
        rows = [_class_row(one) for one in scores["classes"] if one["examples"]]
        titles = ["class", "examples", "precision", "recall", "F1", "average precision", "most confused with"]
        print("\n" + table(titles[: max(map(len, rows), default=0)], rows, left=["class", "most confused with"]))
    elif found.classes:
        rows = [[name, f"{100 * share:.2f} %"] for name, share in found.classes.items() if examples.counts()[name]]
        print("\n" + table(["class", "recall"], rows, left=["class"]))
    print("".join(f"\n{note}" for note in notes), end="\n" if notes else "")


def _overall(scores: dict[str, Any] | None) -> dict[str, Any]:
    """Numbers of the report besides loss and accuracy."""
    if scores is None:
        return {}
    if scores["task"] == "regress":
        return {name: scores["outputs"][0][name] for name in ("rmse", "r2", "bias")}
    if scores["task"] == "labels":
        return {f"mean {name}": scores[f"mean_{name.lower()}"] for name in ("precision", "recall", "F1")}
    known = scores["calibration"]
    top = {f"top {k} accuracy": share for k, share in scores["top"].items() if k != "1"}
    return {
        "accuracy, 95 % interval": f"{100 * scores['accuracy_low']:.2f} to {100 * scores['accuracy_high']:.2f} %", **top,
        "mean F1": scores["mean_f1"], "mean average precision": scores["mean_average_precision"], "mean ROC AUC": scores["mean_auc"],
        "calibration error": f"{100 * known['error']:.2f} %, {100 * known['corrected_error']:.2f} % with temperature {known['temperature']:.2f}",
    }  # fmt: skip


def _class_row(one: dict[str, Any]) -> list[str]:
    """The scores of a class; data with several classes per example has no confusions."""
    shares = ["-" if one[name] is None else f"{100 * one[name]:.2f} %" for name in ("precision", "recall", "f1")]
    scored = [one["name"], str(one["examples"]), *shares]
    if "average_precision" not in one:
        return scored
    area = "-" if one["average_precision"] is None else f"{one['average_precision']:.4f}"
    return [*scored, area, f"{one['taken_for']}, {one['taken_count']}" if one["taken_for"] else ""]
