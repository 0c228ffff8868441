"""Rows beside a busy process: what a contestant's threads lose that wait for one whose core another program has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from . import products, training
from .measure import Case

GOAL = 1.0
BUSY = 1  # processes that compute all the time
_LOOP = "import sys\nprint('ready', flush=True)\nwhile True:\n    sum(range(100_000))"

PRODUCTS = {f"{n} square" for n in (512, 1024, 2048)}
STEPS = {"MLP 784-300-100-10, batch 512", "CIFAR CNN, batch 64"}


def cases(quick: bool) -> Iterator[Case]:
    """Some products and training steps once more; their times say little, only the ratios do."""
    every = (*products.cases(), *training.cases(quick))
    for case in (c for c in every if c.name in PRODUCTS | STEPS):
        yield replace(case, group=f"{case.group} beside a busy process", layers=(), goal=GOAL, beside=busy)


@contextmanager
def busy() -> Iterator[None]:
    """Processes on the cores of this one, which they inherit, that never wait for anything."""
    command = [sys.executable, "-c", _LOOP]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(BUSY)]
    try:
        for one in started:
            assert one.stdout is not None
            one.stdout.readline()
        yield
    finally:
        for one in started:
            one.kill()
            one.communicate()
