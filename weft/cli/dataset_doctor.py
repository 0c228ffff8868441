"""`weft dataset doctor`: finds problems in a dataset, and fixes them in a new version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from ..data.dataset_folder import open_dataset_folder
from ..data.doctor.duplicates import SAME_PIXELS
from ..data.doctor.examine import CHECKS, known_checks
from ..data.doctor.report import DoctorFinding, DoctorReport
from ..data.image_names import read_names
from ..errors import UserError
from ..jobs.datasets.doctor import examine_folder
from ..jobs.schema import Setting, flag, whole
from ..report.text_format import counted
from .arguments import read
from .contents import shown
from .dataset_versions import write_version
from .display import Display
from .progress import when_terminated
from .table import as_json, table


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


DOCTOR = {
    "fix": Setting(_names, None, f"checks whose suggestions become a new version: {', '.join(CHECKS)}"),
    "features": Setting(str, None, "run whose network tells images apart; simple descriptors if none"),
    "show": Setting(whole, 5, "findings of each check that are listed"),
    "again": Setting(flag, False, "check again, though there is a report"),
    "json": Setting(flag, False, "print JSON, for programs"),
}


def doctor(words: Sequence[str]) -> None:
    """Look for copies, leaks, wrong labels, outliers and poor images: weft dataset doctor FOLDER fix=duplicates,leaks.

    The report is kept as doctor.json in the folder. With fix=, the suggestions of these checks make a new version.
    """
    given = read("dataset doctor", words, DOCTOR, 1, doctor.__doc__)
    if not given.plain:
        raise UserError("weft dataset doctor", "the folder of a dataset is required, got none.")
    folder, fix = Path(given.plain[0]), known_checks(given["fix"] or ())
    with Display() as display, when_terminated("the finished checks are kept; the same command continues from there"):
        report = examine_folder(folder, given["features"], given["again"], display.bar)
    changes = report.changes(fix)
    if not given["json"]:
        print(page(report, folder, given["show"]))
    elif not fix:
        print(as_json(report.as_json()))
    if fix and changes:
        write_version(folder, changes, given["json"])
    elif fix:
        print(f"\n{', '.join(fix)} {'suggests' if len(fix) == 1 else 'suggest'} no change; no version was written")


def page(report: DoctorReport, folder: Path, most: int) -> str:
    """The report as text: a line for each check, then the first findings of each."""
    rows = [[r.severity, r.check, str(len(r.findings) or ""), r.text] for r in report.results]
    lines = [
        f"{folder}: {counted(report.warnings, 'warning')}",
        "",
        table(["", "check", "found", "what"], rows, ["", "check", "what"]),
    ]
    parts = open_dataset_folder(folder)._asdict()
    names = {split: read_names(folder / split, len(part)) for split, part in parts.items() if part is not None}
    for result in report.results:
        if result.findings and most:
            lines += ["", result.title, *(f"  {_line(finding, names)}" for finding in result.findings[:most])]
            more = len(result.findings) - most
            lines += [f"  and {more} more, in {shown(str(folder / 'doctor.json'))}"] if more > 0 else []
    fixable = [result.check for result in report.results if any(f.suggested for f in result.findings)]
    if fixable:
        lines += ["", f"fix these in a new version: weft dataset doctor {quote(str(folder))} fix={','.join(fixable)}"]
    return "\n".join(lines)


def _line(finding: DoctorFinding, names: dict[str, list[str]]) -> str:
    images = " = ".join(f"{split}:{row} {shown(names[split][row])}" for split, row in finding.images)
    score = "" if finding.score is None or finding.text == SAME_PIXELS else f" ({100 * finding.score:.1f} %)"
    return f"{images}: {finding.text}{score}" if images else shown(finding.text)
