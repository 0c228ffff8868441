"""Checks for copies within a split, and for copies of training images in the other splits, which make results look better."""

from __future__ import annotations

from collections.abc import Sequence

from ..changes import DatasetChanges
from .copies import FoundCopies, Pair
from .image_facts import ImageFacts
from .report import CheckResult, DoctorFinding, Severity

SAME_PIXELS = "The same pixels"


def check_duplicates(facts: ImageFacts, classes: Sequence[str], copies: FoundCopies) -> CheckResult:
    """Images with the same pixels in one split. Where their labels differ, only a person can tell which is right."""
    findings = []
    for group in copies.groups:
        for split in dict.fromkeys(facts.places[row][0] for row in group):
            rows = [row for row in group if facts.places[row][0] == split]
            if len(rows) > 1:
                findings.append(_group(facts, classes, rows, split))
    extra = sum(len(finding.images) - 1 for finding in findings)
    text = "None found"
    if findings:
        text = f"{_many(extra, 'exact copy', 'exact copies')} in {_many(len(findings), 'group')}"
    return CheckResult("duplicates", "Duplicates", "warning" if findings else "ok", text, tuple(findings))


def check_near_duplicates(facts: ImageFacts, classes: Sequence[str], copies: FoundCopies) -> CheckResult:
    """Images of one split that are nearly the same: resized, brightened, slightly cropped or mirrored."""
    pairs = [pair for pair in copies.pairs if facts.places[pair.first][0] == facts.places[pair.second][0]]
    findings = [_pair("near-duplicates", facts, classes, pair) for pair in pairs]
    text = f"{_many(len(findings), 'pair')} of images that are almost the same" if findings else "None found"
    severity: Severity = "info" if findings else "ok"  # they teach little, but do no harm
    return CheckResult("near-duplicates", "Near duplicates", severity, text, tuple(findings))


def check_leaks(facts: ImageFacts, classes: Sequence[str], copies: FoundCopies) -> CheckResult:
    """Images of validation and test that are also, or nearly, in another split."""
    pairs = [
        Pair(group[0], other, 1.0, exact=True)
        for group in copies.groups
        for other in group[1:]
        if facts.places[other][0] != facts.places[group[0]][0]
    ]
    pairs += [pair for pair in copies.pairs if facts.places[pair.first][0] != facts.places[pair.second][0]]
    findings = [_pair("leaks", facts, classes, pair) for pair in pairs]
    leaked: dict[str, set[int]] = {}
    for pair in pairs:
        split, row = facts.places[pair.second]
        leaked.setdefault(split, set()).add(row)
    parts = [f"{_many(len(rows), 'image')} of {split}" for split, rows in leaked.items()]
    text = (
        f"{' and '.join(parts)} {'is' if sum(map(len, leaked.values())) == 1 else 'are'} also in another split"
        if parts
        else "None found"
    )
    return CheckResult("leaks", "Leak between splits", "warning" if findings else "ok", text, tuple(findings))


def _group(facts: ImageFacts, classes: Sequence[str], rows: list[int], split: str) -> DoctorFinding:
    names = _labels(facts, classes, rows)
    places = tuple(facts.places[row] for row in rows)
    if len(set(names)) > 1:
        text = f"{SAME_PIXELS}, with the labels {' and '.join(dict.fromkeys(names))}"
        return DoctorFinding("duplicates", "warning", places, text, 1.0, facts={"labels": names})
    remove = DatasetChanges(remove={split: [row for _, row in places[1:]]})
    return DoctorFinding("duplicates", "warning", places, SAME_PIXELS, 1.0, remove, {"labels": names})


def _pair(check: str, facts: ImageFacts, classes: Sequence[str], pair: Pair) -> DoctorFinding:
    names = _labels(facts, classes, [pair.first, pair.second])
    first, second = facts.places[pair.first], facts.places[pair.second]
    differ = len(set(names)) > 1
    text = SAME_PIXELS if pair.exact else "The mirrored image, almost" if pair.mirrored else "Almost the same image"
    if differ:
        text += f", with the labels {names[0]} and {names[1]}"
    safe = check == "leaks" or not differ
    remove = DatasetChanges(remove={second[0]: [second[1]]}) if safe else DatasetChanges()
    known = {"labels": names, "mirrored": pair.mirrored, "exact": pair.exact}
    severity: Severity = "warning" if check == "leaks" or differ else "info"
    return DoctorFinding(check, severity, (first, second), text, pair.alike, remove, known)


def _labels(facts: ImageFacts, classes: Sequence[str], rows: list[int]) -> list[str]:
    return [classes[facts.labels[row]] if facts.labels[row] >= 0 else "" for row in rows]


def _many(count: int, one: str, several: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else several or one + 's'}"
