"""The verb `eval`: evaluate a trained network on the data of its run, or on other data with the same classes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import data
from ..data.label_kinds import kind_of
from ..errors import UserError
from ..io.json_values import json_value
from ..jobs.device import on
from ..jobs.ensembles.members import seen_note
from ..jobs.job import Job, held_out, job_of, job_of_run
from ..jobs.networks import about
from ..jobs.schema import Setting, flag
from ..jobs.settings import DEVICE
from ..jobs.stored import run_of, settings_of
from ..report.text_format import listed
from ..text.tokenizer import CharTokenizer
from ..train.results import evaluated
from .arguments import read
from .table import number_text, pairs, table


def evaluate(words: Sequence[str]) -> None:
    """Evaluate a trained network on held-out examples: weft eval RUN.

    On the test split if there is one, else on validation; split= names another. data= measures on other data: its classes must
    be among those of the run.
    """
    known = {
        "split": Setting(
            str, None, "split to evaluate on; default: test, else validation", choices=("train", "validation", "test")
        ),
        "data": Setting(str, None, "other data with the same classes"),
        "device": DEVICE,
        "json": Setting(flag, False, "print JSON, for programs"),
    }
    given = read("eval", words, known, 1)
    folder = run_of("eval", given.plain)
    settings = settings_of("eval", folder)
    with on(given["device"]):
        learned = job_of_run(settings, folder)
        job = job_of("eval", {**settings, **_as_stored(learned, given["data"])})
        split, found_examples = held_out(job.splits, given["split"])
        examples, notes = _as_learned(found_examples, learned.train, job.settings["data"])
        if given["data"] is None:
            notes += seen_note(folder, split)
        _, network = learned.trained(folder)
        found = evaluated(network, job.checks(examples), learned.loss())
    facts = {
        "run": str(folder),
        "data": job.settings["data"],
        "split": split,
        "examples": len(examples),
        **found.numbers,
    }
    scores = found.report(split)
    if given["json"]:
        print(json.dumps(json_value({**facts, "classes": found.classes, "notes": notes, "report": scores})))
        return
    print(pairs({name: number_text(name, value) for name, value in (facts | _overall(scores)).items()}))
    if scores is not None and "classes" in scores:
        rows = [_class_row(one) for one in scores["classes"] if one["examples"]]
        titles = ["class", "examples", "precision", "recall", "F1", "average precision", "most taken for"]
        print("\n" + table(titles, rows, left=["class", "most taken for"]))
    elif found.classes:
        rows = [[name, f"{100 * share:.2f} %"] for name, share in found.classes.items() if examples.counts()[name]]
        print("\n" + table(["class", "recall"], rows, left=["class"]))
    print("".join(f"\n{note}" for note in notes), end="\n" if notes else "")


def _overall(scores: dict[str, Any] | None) -> dict[str, Any]:
    """Numbers of the report besides loss and accuracy."""
    if scores is None or "classes" not in scores:
        return {} if scores is None else {name: scores["outputs"][0][name] for name in ("rmse", "r2", "bias")}
    known = scores["calibration"]
    top = {f"top {k} accuracy": share for k, share in scores["top"].items() if k != "1"}
    return {
        "accuracy, 95 % interval": f"{100 * scores['accuracy_low']:.2f} to {100 * scores['accuracy_high']:.2f} %", **top,
        "mean F1": scores["mean_f1"], "mean average precision": scores["mean_average_precision"], "mean ROC AUC": scores["mean_auc"],
        "calibration error": f"{100 * known['error']:.2f} %, {100 * known['corrected_error']:.2f} % with temperature {known['temperature']:.2f}",
    }  # fmt: skip


def _class_row(one: dict[str, Any]) -> list[str]:
    shares = ["-" if one[name] is None else f"{100 * one[name]:.2f} %" for name in ("precision", "recall", "f1")]
    area = "-" if one["average_precision"] is None else f"{one['average_precision']:.4f}"
    return [
        one["name"],
        str(one["examples"]),
        *shares,
        area,
        f"{one['taken_for']}, {one['taken_count']}" if one["taken_for"] else "",
    ]


# --- other data ---------------------------------------------------------------------------------------------------------------


def _as_stored(learned: Job, other: str | None) -> dict[str, Any]:
    """Settings that convert other image files as the run converted its own."""
    if other is None:
        return {}
    if isinstance(learned.train, data.Text):
        return {"data": other, "tokenizer": "characters"}  # they become the run's own tokens below
    if not learned.is_image_source:
        return {"data": other}
    channels, height, width = learned.train.shape
    return {"data": other, "size": (height, width), "colour": "gray" if channels == 1 else "rgb"}


def _as_learned(given: data.Dataset, learned: data.Dataset, what: str) -> tuple[data.Dataset, list[str]]:
    """The examples with the class indices of the network, and notes on missing classes."""
    if isinstance(given, data.Text) and isinstance(learned, data.Text):
        return _text_as_learned(given, learned, what), []
    if isinstance(given, data.Text) != isinstance(learned, data.Text) or kind_of(given.labels[:1]) != kind_of(
        learned.labels[:1]
    ):
        raise UserError(
            "weft eval",
            f"the run learned from {about(learned, count=False)}, and {what} is different: {about(given, count=False)}.",
        )
    if given.shape != learned.shape:
        wanted, got = (" x ".join(map(str, dataset.shape)) for dataset in (learned, given))
        raise UserError("weft eval", f"the run learned from inputs of {wanted}, and {what} has inputs of {got}.")
    extra = [name for name in given.classes if name not in learned.classes]
    missing = [name for name in learned.classes if name not in given.classes]
    if extra:
        lacks = f", and lacks {listed(missing)}" if missing else ""
        raise UserError(
            "weft eval",
            f"the run tells {listed(learned.classes)} apart. {what} has other classes, {listed(extra)}{lacks}: "
            "the results would be meaningless. Train on it, or remove these examples.",
        )
    notes = [f"{what} has no examples of {listed(missing)}"] if missing else []
    return (given, notes) if given.classes == learned.classes else (_Renumbered(given, learned.classes), notes)


def _text_as_learned(given: data.Text, learned: data.Text, what: str) -> data.Text:
    extra = sorted(set(given.vocabulary) - set(learned.vocabulary))
    if extra and isinstance(learned.tokenizer, CharTokenizer):
        raise UserError("weft eval", f"{what} has characters that the run never saw: {listed(list(map(repr, extra)))}.")
    return data.Text(learned.encode(given.decode(given.ids)), learned.tokenizer, given.length, given.name)


class _Renumbered(data.Dataset):
    """The same examples with other class indices."""

    def __init__(self, base: data.Dataset, classes: Sequence[str]) -> None:
        numbers = np.array([list(classes).index(name) for name in base.classes], np.int64)
        labels = numbers[base.labels] if base.labels.ndim == 1 else np.zeros((len(base), len(classes)), bool)
        if labels.ndim == 2:  # a column for each class
            labels[:, numbers] = base.labels
        super().__init__(labels, classes, base.name, base.statistics)
        self._base = base

    @property
    def shape(self) -> tuple[int, ...]:
        return self._base.shape

    def inputs(self, indices: Any) -> np.ndarray:
        return self._base.inputs(indices)
