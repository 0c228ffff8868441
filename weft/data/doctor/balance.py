"""Class imbalance, and classes with few images."""

from __future__ import annotations

from collections.abc import Mapping

from .report import CheckResult, DoctorFinding

TIMES, FEW = 3.0, 10  # the largest class may be this many times the smallest; images for training that a class needs


def check_balance(counts: Mapping[str, Mapping[str, int]]) -> CheckResult:
    """`counts` are images by split and class. Nothing can be suggested but to add images."""
    train = {name: count for name, count in counts.get("train", {}).items() if count}
    if len(train) < 2:
        return CheckResult("balance", "Imbalance", "ok", "Needs two classes or more")
    most = max(train, key=lambda name: train[name])
    findings = []
    for name, count in sorted(train.items(), key=lambda one: one[1]):
        times = train[most] / count
        if count < FEW:
            findings.append(_finding(name, count, f"{name} has only {count} images in train"))
        elif times >= TIMES:
            findings.append(_finding(name, count, f"{name} has {times:.1f} times fewer images than {most}"))
    text = (
        findings[0].text
        if findings
        else f"{most} has {train[most] / min(train.values()):.1f} times the images of the smallest class"
    )
    if not findings and train[most] < 1.1 * min(train.values()):
        text = "All classes have about the same number of images"
    if len(findings) > 1:
        text += f", and {len(findings) - 1} more"
    return CheckResult("balance", "Imbalance", "warning" if findings else "ok", text, tuple(findings))


def _finding(name: str, count: int, text: str) -> DoctorFinding:
    return DoctorFinding("balance", "warning", (), text, facts={"class": name, "images": count})
