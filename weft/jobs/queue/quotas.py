"""The limits of each user of a queue: `quotas.json` in its folder. The programs that manage accounts write it (the studio, `weft user`); every process
that submits or starts jobs respects it. Jobs without an owner, and those of people who are not in it, have no limits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path

from ...errors import UserError
from ...io.files import replace_file
from ...records import dataclass
from .needs import CPU, GPU, GROUP

FILE = "quotas.json"
SLOT_NAMES = {GPU: "GPU", CPU: "CPU"}


@dataclass(frozen=True)
class JobQuota:
    """The most jobs of one person; None is no limit. Those on CPU slots and those on task slots are counted apart."""

    gpu_jobs: int | None = None
    cpu_jobs: int | None = None
    waiting_jobs: int | None = None

    def most(self, slot: str) -> int | None:
        """How many jobs run at the same time on slots of a kind: gpu, cpu or task. Of a group its trainings count, not the group."""
        return {GPU: self.gpu_jobs, GROUP: None}.get(slot, self.cpu_jobs)

    def why_full(self, owner: str, slot: str) -> str:
        """Why no further job starts.

        >>> JobQuota(gpu_jobs=1).why_full("anna", "gpu")
        'anna runs 1 GPU job already, the most by their quota'
        """
        most, kind = self.most(slot), SLOT_NAMES.get(slot, "task")
        if not most:
            return f"{owner} may run no {kind} jobs by their quota"
        return f"{owner} runs {most} {kind} job{'s' if most > 1 else ''} already, the most by their quota"

    def check(self, owner: str, slot: str, waiting: int, more: int = 1) -> None:
        """Refuse jobs that would never start, and more than may wait."""
        if self.most(slot) == 0:
            raise UserError(
                "jobs", f"a quota of 1 job or more is required: {self.why_full(owner, slot)}. Ask an administrator."
            )
        if self.waiting_jobs is not None and waiting + more > self.waiting_jobs:
            raise UserError(
                "jobs",
                f"at most {self.waiting_jobs} waiting jobs are allowed by the quota of {owner}, got {more} more than the {waiting} that wait. "
                "Wait until some have started, or cancel some.",
            )


def write_quotas(folder: Path, quotas: Mapping[str, JobQuota]) -> None:
    """Record the quotas of all people, if they have changed. Without any there is no file."""
    limited = {name: one for name, one in quotas.items() if one != JobQuota()}
    if limited != read_quotas(folder):
        folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps({name: asdict(one) for name, one in limited.items()}, indent=1)
        replace_file(folder / FILE, [content.encode()], "jobs")


def read_quotas(folder: Path) -> dict[str, JobQuota]:
    """The quotas of people who have one. A damaged file counts as missing: the studio writes it again within seconds."""
    try:
        found = json.loads((folder / FILE).read_text("utf-8"))
        known = {field.name for field in fields(JobQuota)}
        whole = all(
            one.keys() == known and all(n is None or (type(n) is int and n >= 0) for n in one.values())
            for one in found.values()
        )
        return {str(name): JobQuota(**one) for name, one in found.items()} if whole else {}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
