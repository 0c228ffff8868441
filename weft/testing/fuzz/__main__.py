"""`python -m weft.testing.fuzz`: the command line of the fuzzer.

Programs run in a process of their own: one that crashes or hangs is a finding, and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...knobs import knobs
from .session import KINDS, Session, ended

PATIENCE = 300.0  # seconds that a program, with its shrinking, may take


def main(words: list[str] | None = None) -> int:
    """Run for a while; 1 if something was found."""
    options = _parser().parse_args(words)
    for file in options.load:
        runpy.run_path(file)
    if options.kind not in KINDS:
        print(
            f"[fuzz] a kind out of {', '.join(KINDS)} is required, got {options.kind!r}. Name its file with --load.",
            file=sys.stderr,
        )
        return 2
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.worker:
        return _work(options)
    print(f"fuzz: {options.kind} on {options.device}, from seed {options.seed} on", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        environment = {"WEFT_CACHE": cache, **os.environ}  # so many programs would push others out of the user's cache
        return _watch(options, environment)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m weft.testing.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the first seed; without it, the time")
    parser.add_argument("--count", type=int, default=None, help="the number of seeds, at most")
    parser.add_argument("--kind", default="programs", help="programs, networks, or what a loaded file adds")
    parser.add_argument("--device", default=knobs.device, help="the device to check; without it, the default device")
    parser.add_argument("--folder", type=Path, default=Path("fuzz-findings"), help="where the programs of findings go")
    parser.add_argument("--load", action="append", default=[], help="a Python file that adds kinds or ops of its own")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


def _work(options: argparse.Namespace) -> int:
    """Check seeds, and tell the watching process line by line."""
    session = Session(options.kind, options.device, options.folder, report=lambda text: _tell(say=text))
    while time.monotonic() - session.start < options.seconds and session.seeds != options.count:
        seed = options.seed + session.seeds
        _tell(begin=seed)
        session.one(seed)
        _tell(figures=session.figures(), findings=session.findings.total())
    return 0


def _tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def _watch(options: argparse.Namespace, environment: dict[str, str]) -> int:
    """Start workers until the time is up; a worker that ends early has met a program that ended it."""
    end, seed, findings = time.monotonic() + options.seconds, options.seed, 0
    while time.monotonic() < end and (options.count is None or seed < options.seed + options.count):
        left = [] if options.count is None else ["--count", str(options.seed + options.count - seed)]
        words = ["--seconds", str(end - time.monotonic()), "--seed", str(seed), *left]
        words += ["--kind", options.kind, "--device", options.device, "--folder", str(options.folder), "--worker"]
        command = [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "weft.testing.fuzz",
            *words,
            *(w for f in options.load for w in ("--load", f)),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as worker:
            figures = ""
            found = 0
            for facts in _lines(worker):
                seed = facts.get("begin", seed)
                figures, found = facts.get("figures", figures), facts.get("findings", found)
                if "say" in facts:
                    print(facts["say"], flush=True)
            findings += found
            print(f"fuzz: {figures}", flush=True)
            if worker.wait() != 0:
                findings += 1
                detail = f"exit code {worker.returncode} (a crash, or {PATIENCE:.0f} s without an answer)"
                Session(options.kind, options.device, options.folder).note(seed, ended(options.kind, seed, detail))
        seed += 1
    return int(findings > 0)


def _lines(worker: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """What a worker tells, until it ends or says nothing for too long."""
    assert worker.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(worker.stdout, selectors.EVENT_READ)
        while selector.select(PATIENCE):
            line = worker.stdout.readline()
            if not line:
                return
            yield json.loads(line)
    worker.kill()


if __name__ == "__main__":
    sys.exit(main())
