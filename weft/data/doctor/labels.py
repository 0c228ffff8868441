"""Likely wrong labels, by confident learning: images that a network, trained without them, takes for another class with
at least the confidence it usually has in that class (Northcutt et al., 2021)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from ..changes import DatasetChanges
from .image_facts import ImageFacts
from .probe import folds_of, out_of_fold, principal_components
from .report import CheckResult, DoctorFinding

FOLDS, ROUNDS = 5, 2
FEWEST = 10  # images of each of two classes, below which nothing can be learned
CONFIDENT = 0.8  # probability that always suffices
RIGHT = 0.75  # share of labels that the network must agree with before it is believed about the others
TITLE = "Likely wrong labels"


def check_labels(
    facts: ImageFacts, classes: Sequence[str], usable: np.ndarray, progress: Callable[[int, int], None]
) -> CheckResult:
    """Images that are taken for another class; `usable` are those that show something."""
    if (facts.labels < 0).any():
        return CheckResult("labels", TITLE, "ok", "Needs one class for each image")
    counts = np.bincount(facts.labels[usable]) if len(classes) and usable.any() else np.zeros(0, int)
    if (counts >= FEWEST).sum() < 2:
        return CheckResult("labels", TITLE, "ok", f"Needs two classes with {FEWEST} images or more")
    chosen = np.flatnonzero(usable)
    _, groups = np.unique([facts.digests[row] for row in chosen], return_inverse=True)
    rows, suggested, confidence, right = wrong_labels(facts.features[chosen], facts.labels[chosen], groups, progress)
    if right < RIGHT:
        text = (
            f"Cannot tell: only {100 * right:.0f} % of the images are recognized. Use the features of a trained network"
        )
        return CheckResult("labels", TITLE, "info", text)
    findings = []
    for row, label, sure in zip(chosen[rows].tolist(), suggested.tolist(), confidence.tolist(), strict=True):
        split, number = facts.places[row]
        given, better = classes[facts.labels[row]], classes[label]
        text = f"Labelled {given}, looks like {better}"
        known = {"labels": [given], "suggested": better}
        relabel = DatasetChanges(relabel={split: {number: better}})
        findings.append(DoctorFinding("labels", "warning", ((split, number),), text, sure, relabel, known))
    return CheckResult("labels", TITLE, "warning" if findings else "ok", _said(findings), tuple(findings))


def _said(findings: Sequence[DoctorFinding]) -> str:
    if not findings:
        return "None found"
    pairs = Counter(tuple(sorted((f.facts["labels"][0], f.facts["suggested"]))) for f in findings)
    (one, other), most = pairs.most_common(1)[0]
    text = f"{len(findings):,} {'image' if len(findings) == 1 else 'images'}"
    return f"{text}, mostly {one} and {other}" if most > len(findings) / 4 else text


def wrong_labels(
    features: np.ndarray, labels: np.ndarray, groups: np.ndarray, progress: Callable[[int, int], None]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """The images whose label is likely wrong, the suggested class of each, and its probability, the surest first; and the
    share of all images that are taken for the class of their label.

    In a second round the network is not trained on those that the first found: they would teach it their labels.
    """
    inputs, folds = principal_components(features), folds_of(labels, groups, FOLDS)
    trusted = np.ones(len(labels), bool)
    for number in range(ROUNDS):
        probabilities = out_of_fold(inputs, labels, folds, trusted, _part_of(progress, number))
        rows, suggested = confident_errors(probabilities, labels)
        trusted = np.ones(len(labels), bool)
        trusted[rows] = False
    confidence = probabilities[rows, suggested]
    order = np.argsort(-(confidence - probabilities[rows, labels[rows]]), kind="stable")
    right = float((probabilities.argmax(1) == labels).mean())
    return rows[order], suggested[order], confidence[order], right


def _part_of(progress: Callable[[int, int], None], number: int) -> Callable[[int, int], None]:
    """Progress of one round, as a part of all rounds."""
    return lambda done, total: progress(number * total + done, ROUNDS * total)


def confident_errors(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows that are confidently of another class than their label, and that class.

    A class is confident from the mean probability that images with this label have of it, or from 0.8.

    >>> p = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.95, 0.05]])
    >>> confident_errors(p, np.array([0, 0, 1, 1]))
    (array([3]), array([0]))
    """
    classes = probabilities.shape[1]
    usual = [probabilities[labels == k, k].mean() if (labels == k).any() else 1.0 for k in range(classes)]
    confident = np.where(probabilities >= np.minimum(usual, CONFIDENT), probabilities, -1.0)
    suggested = confident.argmax(1)
    own = probabilities[np.arange(len(labels)), labels]
    best = confident[np.arange(len(labels)), suggested]
    rows = np.flatnonzero((best > own) & (suggested != labels))
    return rows, suggested[rows]
