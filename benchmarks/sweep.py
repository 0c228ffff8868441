"""A sweep that is killed twice: no trial may be lost or run twice, and its wall time should be that of the ideal packing.

    python benchmarks/sweep.py                      40 trials, 4 at a time: once without a kill, once killed twice
    python benchmarks/sweep.py --trials 12 --jobs 2

The first kill (SIGKILL) hits the process that searches, and its trials go on; the second one hits it and every trial. Each time the same command is given
again. The ideal packing starts each trial, as long as it took, in the order of the sweep when the first of so many slots is free. What the sweep adds to it is the
time between the end of a process and the start of the next one, and its own start. A sweep of one trial comes first, so that Python has the byte code of all packages, as
it has where weft was installed: compiling it takes as long as the rest of the start.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

from weft.errors import UserError
from weft.jobs.queue.job_queue import JobQueue
from weft.jobs.queue.record import JobRecord
from weft.jobs.queue.schedule import read_schedule
from weft.jobs.sweeps.record import find_sweep
from weft.locks import lock_holder

NAME = "measured"


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--trials", type=int, default=40)
    given.add_argument("--jobs", type=int, default=4)
    given.add_argument("--epochs", type=int, default=6)
    options = given.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "weft", "sweep", "digits", "rate=0.01,0.1", "epochs=1", "trials=1"]
        if started(command, Path(folder)).wait() != 0:
            sys.exit((Path(folder) / "output.txt").read_text())
    for kills in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            print(f"{options.trials} trials, {options.jobs} at a time, {'killed twice' if kills else 'not killed'}", flush=True)  # fmt: skip
            measure(Path(folder), options.trials, options.jobs, options.epochs, kills)


def measure(folder: Path, trials: int, jobs: int, epochs: int, kills: bool) -> None:
    words = ["digits", "model=mlp,lenet", "rate=log:1e-4..1e-1", "batch=32,64", f"trials={trials}", f"jobs={jobs}", f"epochs={epochs}", f"name={NAME}"]  # fmt: skip
    command = [sys.executable, "-m", "weft", "sweep", *words]
    start = time.monotonic()
    if kills:
        for share, everything in ((0.25, False), (0.6, True)):
            process = started(command, folder)
            while ended_trials(folder) < share * trials:
                time.sleep(0.05)
            kill(process, folder, everything)
    if started(command, folder).wait() != 0:
        sys.exit((folder / "output.txt").read_text())
    wall = time.monotonic() - start
    print_figures(folder, trials, jobs, wall, kills)


def started(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    keeps_byte_code = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True, env=keeps_byte_code)  # fmt: skip


def ended_trials(folder: Path) -> int:
    try:
        return sum(one.has_ended for one in find_sweep(folder / "runs", NAME).trials())
    except UserError:  # it is not there yet
        return 0


def kill(process: subprocess.Popen[bytes], folder: Path, everything: bool) -> None:
    """End the search, or the search with all of its trials, at once."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    holders = [lock_holder(job.folder) for job in JobQueue(folder / "runs").jobs()]
    trials = [holder.pid for holder in holders if holder is not None]
    for pid in trials if everything else ():
        os.kill(pid, signal.SIGKILL)
    print(f"  killed the search{f' and {len(trials)} trials' if everything else f'; {len(trials)} trials go on'}", flush=True)  # fmt: skip


def print_figures(folder: Path, trials: int, jobs: int, wall: float, kills: bool) -> None:
    record, queue = find_sweep(folder / "runs", NAME), JobQueue(folder / "runs").jobs()
    found = record.trials()
    runs = Counter(one.run for one in found)
    repeated = sum(count - 1 for job in queue for count in Counter(_epochs(job)).values())
    attempts = sum(_attempts(job) for job in queue)
    states = Counter(one.state for one in found)
    print(
        f"  {len(found)} trials, numbers {found[0].number} to {found[-1].number}: {dict(states)}; {len(queue)} jobs, {len(runs)} runs"
    )
    print(
        f"  {attempts} processes, {attempts - len(queue)} of them continued from a checkpoint; epochs that were done twice: {repeated}"
    )
    lost = set(range(1, trials + 1)) - {one.number for one in found if one.has_ended}
    if lost or len(queue) != trials or len(runs) != trials:
        sys.exit(f"  lost {sorted(lost)}, or run twice")
    if not kills:
        begins = sorted((read_schedule(job.folder).started or 0.0, job.state.time) for job in queue)
        ideal = packed([end - begin for begin, end in begins], jobs)
        working = max(end for _, end in begins) - begins[0][0]
        print(f"  ideal packing {ideal:.1f} s; first start to last end {working:.1f} s ({100 * (working / ideal - 1):+.1f} %), whole command {wall:.1f} s ({100 * (wall / ideal - 1):+.1f} %)")  # fmt: skip


def packed(durations: list[float], slots: int) -> float:
    """The time that these durations take, each in turn on the slot that is free first.

    >>> packed([2.0, 1.0, 1.0], 2)
    2.0
    """
    free = [0.0] * slots
    for one in durations:
        free[free.index(min(free))] += one
    return max(free)


def _epochs(job: JobRecord) -> list[int]:
    return [int(event["epoch"]) for event in job.events() if event.type == "epoch"]


def _attempts(job: JobRecord) -> int:
    """How many processes have worked on a job: each takes it from the queue."""
    states = [event["state"] for event in job.events() if event.type == "state"]
    return sum(pair == ("waiting", "running") for pair in pairwise(states))


if __name__ == "__main__":
    main()
