"""Poor images: files that could not be read, blank images, images with hardly any contrast, and those enlarged from tiny ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..changes import DatasetChanges
from .image_facts import BLANK, ImageFacts
from .outliers import robust_scores
from .report import CheckResult, DoctorFinding, Severity

LOW_CONTRAST = 6.0  # spread of the gray values, of 255
_SOFT, _SHARP_FROM = -5.0, 32  # robust score of sharpness, and the side from which it can be judged


def check_quality(
    facts: ImageFacts, classes: Sequence[str], failed: Sequence[tuple[str, str]], side: int
) -> CheckResult:
    """`failed` are the files that could not be read when the dataset was made, with the reasons."""
    soft = robust_scores(np.log(np.maximum(facts.sharpness, 1e-4))) if side >= _SHARP_FROM else np.zeros(len(facts))
    findings = []
    for row in np.argsort(facts.spread, kind="stable").tolist():
        text = _problem(float(facts.spread[row]), float(soft[row]))
        if text:
            split, number = facts.places[row]
            label = classes[facts.labels[row]] if facts.labels[row] >= 0 else ""
            changes = DatasetChanges(remove={split: [number]})
            findings.append(
                DoctorFinding("quality", "warning", ((split, number),), text, None, changes, {"labels": [label]})
            )
    broken = [DoctorFinding("quality", "info", (), f"{name} {reason}", facts={"file": name}) for name, reason in failed]
    parts = [f"{len(findings):,} poor"] if findings else []
    parts += [f"{len(broken):,} could not be read"] if broken else []
    severity: Severity = "warning" if findings else "info" if broken else "ok"
    text = ", ".join(parts) or "None found"
    return CheckResult("quality", "Broken or tiny images", severity, text, (*findings, *broken))


def _problem(spread: float, soft: float) -> str:
    if spread < BLANK:
        return "Blank: all pixels have about the same value"
    if spread < LOW_CONTRAST:
        return f"Hardly any contrast: the gray values deviate by {spread:.1f} of 255"
    return "Without detail: enlarged from a tiny image, or out of focus" if soft < _SOFT else ""
