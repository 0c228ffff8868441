"""A run of the fuzzer: seed after seed until the time is up, findings shrunk and written down."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from pathlib import Path

from ...records import dataclass
from ..counter import checks_run
from .check import Finding, Unfit, check
from .generate import random_program
from .networks import random_network
from .program import FuzzProgram, script
from .shrink import shrink

GENERATORS: dict[str, Callable[[int], FuzzProgram]] = {"programs": random_program, "networks": random_network}

# What a seed is checked by: (seed, device) -> a finding or None. Others are entered here, by files named with --load.
KINDS: dict[str, Callable[[int, str], Finding | None]] = {
    "programs": lambda seed, device: check(random_program(seed), device),
    "networks": lambda seed, device: check(random_network(seed), device),
}


def ended(kind: str, seed: int, detail: str) -> Finding:
    """The finding that the process ended while it checked a seed. Its program is not shrunk: that would end this process, too."""
    generate = GENERATORS.get(kind)
    source = "" if generate is None else script(generate(seed), "jit")
    return Finding(None, "process", "ended", detail, source)


@dataclass
class Session:
    """Findings and figures of a run."""

    kind: str
    device: str
    folder: Path
    shrink_seconds: float = 60.0
    report: Callable[[str], None] = print
    seeds: int = 0
    unfit: int = 0
    start: float = field(default_factory=time.monotonic)
    cpu: float = field(default_factory=time.process_time)
    samples: int = field(default_factory=checks_run)
    findings: Counter[str] = field(default_factory=Counter)

    def run(self, seed: int, seconds: float, most: int | None = None) -> int:
        """Check one seed after the other for so long; the number of findings."""
        while time.monotonic() - self.start < seconds and (most is None or self.seeds < most):
            self.one(seed + self.seeds)
        return self.findings.total()

    def one(self, seed: int) -> Finding | None:
        """Check one seed."""
        self.seeds += 1
        try:
            found = KINDS[self.kind](seed, self.device)
        except Unfit:
            self.unfit += 1
            return None
        if found is not None:
            self.note(seed, found)
        return found

    def note(self, seed: int, found: Finding) -> Path:
        """Shrink a finding and write it down."""
        self.findings[f"{found.mode}: {found.what}"] += 1
        self.report(f"seed {seed}: {found.mode}: {found.what}: {found.detail}")
        if found.program is not None:
            found = smallest(found, self.device, self.shrink_seconds)
        path = self.folder / f"{self.kind}-{seed}.py"
        path.write_text(f"{_heading(self.kind, seed, found)}{found.text()}")
        self.report(f"  a short program that shows it: {path}")
        return path

    def figures(self) -> str:
        """What was done, for people."""
        kinds = "".join(f"\n  {count} x {name}" for name, count in self.findings.most_common())
        return (
            f"{self.seeds} {self.kind} ({self.unfit} left out), {checks_run() - self.samples} values compared, {self.findings.total()} findings, "
            f"{time.monotonic() - self.start:.0f} s, {time.process_time() - self.cpu:.0f} s of CPU{kinds}"
        )


def _heading(kind: str, seed: int, found: Finding) -> str:
    again = f"python -m weft.testing.fuzz --kind {kind} --seed {seed} --count 1"
    return f"# {found.mode}: {found.what}: {found.detail}\n# Again: {again}\n"


def smallest(found: Finding, device: str, seconds: float) -> Finding:
    """The same finding in a smaller program."""
    latest = found

    def fails(program: FuzzProgram) -> bool:
        nonlocal latest
        try:
            again = check(program, device, only=found.mode)
        except Unfit:
            return False
        if again is None or again.kind != found.kind:
            return False
        latest = again
        return True

    assert found.program is not None
    shrink(found.program, fails, seconds)
    return latest
