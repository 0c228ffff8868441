"""What people decide about the doctor's findings. Decisions are kept beside the report until they are saved as a new version."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from ...errors import RunError, UserError
from ...io.files import replace_file
from ...records import dataclass
from ..changes import DatasetChanges, merged
from .report import DoctorFinding, DoctorReport

FILE = "doctor-decisions.json"
KEEP, REMOVE, MOVE, RELABEL = "keep", "remove", "move", "relabel"
WORDS = {KEEP: "Kept", REMOVE: "Remove", MOVE: "Move", RELABEL: "Relabel"}


@dataclass(frozen=True)
class Decisions:
    """Decisions by the id of their finding: keep, remove, move, or relabel:CLASS.

    remove takes away all images of a finding but the one to keep, or its only one; move brings them to the split of the one
    to keep.
    """

    made: Mapping[str, str] = field(default_factory=dict)

    def of(self, finding: DoctorFinding) -> str:
        """The decision on a finding, or nothing."""
        return self.made.get(finding.id, "")

    def changes(self, report: DoctorReport) -> DatasetChanges:
        """The changes that all decisions make together."""
        return merged(
            changes_of(finding, self.of(finding))
            for result in report.results
            for finding in result.findings
            if self.of(finding)
        )

    def with_made(self, report: DoctorReport, given: Mapping[str, str | None]) -> Decisions:
        """These decisions and the given ones, of which None takes one back."""
        known = {finding.id: finding for result in report.results for finding in result.findings}
        made = dict(self.made)
        for name, action in given.items():
            if name not in known:
                raise UserError("dataset doctor", f"there is no finding {name}.")
            if action is None:
                made.pop(name, None)
            else:
                changes_of(known[name], action)  # rejects what cannot be done
                made[name] = action
        return Decisions({name: action for name, action in made.items() if name in known})


def actions_of(finding: DoctorFinding) -> tuple[str, ...]:
    """What can be decided about a finding."""
    if not finding.images:
        return ()
    if finding.check == "leaks":
        return REMOVE, MOVE, KEEP
    return (RELABEL, REMOVE, KEEP) if finding.check == "labels" else (REMOVE, KEEP)


def changes_of(finding: DoctorFinding, action: str) -> DatasetChanges:
    """The changes that an action makes."""
    name, _, new = action.partition(":")
    if name not in actions_of(finding):
        can = ", ".join(actions_of(finding)) or "nothing"
        raise UserError("dataset doctor", f"about {finding.id} one can decide {can}, got {action!r}.")
    places = finding.images[1:] or finding.images
    rows: dict[str, list[int]] = {}
    for split, row in places:
        rows.setdefault(split, []).append(row)
    if name == REMOVE:
        return DatasetChanges(remove=rows)
    if name == MOVE:
        target = finding.images[0][0]
        return DatasetChanges(move={split: dict.fromkeys(numbers, target) for split, numbers in rows.items()})
    if name == RELABEL:
        return DatasetChanges(
            relabel={s: dict.fromkeys(numbers, new or finding.facts["suggested"]) for s, numbers in rows.items()}
        )
    return DatasetChanges()


def load_decisions(folder: Path, digest: str) -> Decisions:
    """The decisions on the report of a dataset."""
    try:
        found = json.loads((folder / FILE).read_bytes())
        if found["digest"] != digest:
            return Decisions()
        return Decisions({str(name): str(action) for name, action in found["decisions"].items()})
    except FileNotFoundError:
        return Decisions()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError("dataset doctor", f"{folder / FILE} is damaged: {error}. Delete it.") from None


def decide(folder: Path, report: DoctorReport, given: Mapping[str, str | None]) -> Decisions:
    """Add decisions to those that are kept."""
    with (folder / ".doctor.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed: two people may decide at the same time
        made = load_decisions(folder, report.digest).with_made(report, given)
        content = {"digest": report.digest, "decisions": dict(made.made)}
        replace_file(folder / FILE, [(json.dumps(content, indent=1) + "\n").encode()], "dataset doctor")
    return made
