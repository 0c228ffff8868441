"""A sweep and a cross-validation on a Ray cluster of this machine: a node is killed in the middle, and so is the command. All trials must finish.

    python benchmarks/ray_cluster.py                       3 nodes with one CPU each, 8 trials
    python benchmarks/ray_cluster.py --nodes 2 --trials 6

Nodes are processes of Ray (`ray.cluster_utils.Cluster`) with folders of their own for trainings; killing one is SIGKILL of its raylet, after which its workers
end. Then the command gets SIGKILL, and the same command is given again. At the end one of the trials that was continued on another node is trained again here, without a
cluster: its weights must have the same bits.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from ray.cluster_utils import Cluster

from weft.io import load
from weft.jobs.queue.job_queue import JobQueue
from weft.jobs.queue.record import JobRecord
from weft.jobs.sweeps.record import SweepRecord, find_sweep

NAME = "on-ray"
STORE = 80 << 20  # bytes of the object store of a node


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--nodes", type=int, default=3)
    given.add_argument("--trials", type=int, default=8)
    given.add_argument("--epochs", type=int, default=40)
    given.add_argument("--folds", type=int, default=3)
    options = given.parse_args()
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False},
    )
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(options.nodes)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            sweep(Path(folder), cluster, nodes, options.trials, options.epochs)
            cross_validation(Path(folder), cluster.address, options.folds, options.nodes - 1)
    finally:
        cluster.shutdown()


def sweep(folder: Path, cluster: Cluster, nodes: list[Any], trials: int, epochs: int) -> None:
    words = ["digits", "model=mlp", "rate=log:1e-4..1e-1", "batch=16", f"trials={trials}", f"jobs={len(nodes)}", f"epochs={epochs}", "pruner=none", f"name={NAME}"]  # fmt: skip
    command = [sys.executable, "-m", "weft", "sweep", *words, f"cluster={cluster.address}"]
    print(f"{trials} trials on {len(nodes)} nodes", flush=True)
    start = time.monotonic()
    process = started(command, folder)
    wait_for(process, folder, lambda: ended(folder) >= trials // 4 and has_copies(folder, len(nodes)))
    cluster.remove_node(nodes[-1], allow_graceful=False)
    print(f"  {time.monotonic() - start:.0f} s: killed a node after {ended(folder)} trials", flush=True)
    wait_for(process, folder, lambda: ended(folder) >= trials // 2 and lost(folder))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    print(f"  {time.monotonic() - start:.0f} s: killed the command after {ended(folder)} trials", flush=True)
    if started(command, folder).wait() != 0:
        sys.exit((folder / "output.txt").read_text())
    print_figures(folder, find_sweep(folder / "runs", NAME), time.monotonic() - start)


def cross_validation(folder: Path, address: str, folds: int, jobs: int) -> None:
    words = ["digits", "model=mlp", "epochs=3", f"folds={folds}", f"jobs={jobs}", "name=cv", f"cluster={address}"]
    start = time.monotonic()
    if started([sys.executable, "-m", "weft", "train", *words], folder).wait() != 0:
        sys.exit((folder / "output.txt").read_text())
    found = json.loads((folder / "runs" / "folds" / "cv" / "folds.json").read_text())
    accuracy = found["metrics"]["accuracy"]
    print(f"{folds} folds on {jobs} nodes: accuracy {accuracy['mean']:.4f} ± {accuracy['std']:.4f}, {time.monotonic() - start:.0f} s")  # fmt: skip


def started(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)


def wait_for(process: subprocess.Popen[bytes], folder: Path, reached: Any) -> None:
    while not reached():
        if process.poll() is not None:
            sys.exit(f"the command has ended too early\n{(folder / 'output.txt').read_text()}")
        time.sleep(0.05)


def jobs_of(folder: Path) -> list[JobRecord]:
    return JobQueue(folder / "runs", folder / "runs" / "sweeps" / NAME / ".jobs").jobs()


def ended(folder: Path) -> int:
    return sum(job.state.has_ended for job in jobs_of(folder))


def has_copies(folder: Path, count: int) -> bool:
    """Whether so many trainings run, and the checkpoints of all have been copied."""
    running = [job.state.run for job in jobs_of(folder) if job.state.state == "running"]
    return len(running) == count and all(run and (Path(run) / "state" / "last.safetensors").exists() for run in running)


def lost(folder: Path) -> list[JobRecord]:
    """The jobs that have continued after their node was lost."""
    return [job for job in jobs_of(folder) if any("node was lost" in why for why in _reasons(job)) and len(_begins(job)) > 1]  # fmt: skip


def print_figures(folder: Path, record: SweepRecord, wall: float) -> None:
    found, jobs = record.trials(), jobs_of(folder)
    repeated = sum(count - 1 for job in jobs for count in Counter(_epochs(job)).values())
    attempts = [len(_begins(job)) for job in jobs]
    print(f"  {len(found)} trials: {dict(Counter(one.state for one in found))}; {len(jobs)} jobs, {len({one.run for one in found})} runs; {wall:.0f} s")  # fmt: skip
    print(f"  {sum(attempts)} processes for {len(jobs)} trials; of {sum(len(set(_epochs(job))) for job in jobs)} epochs {repeated} were done twice")  # fmt: skip
    for job in lost(folder):
        print(f"  job {job.number}: {next(why for why in _reasons(job) if 'node was lost' in why)}; {_places(job)}")
    one = lost(folder)[0]
    print(f"  its weights have the bits of a training without a cluster: {same_bits(folder, one)}")
    if len(jobs) != record.plan.trials or any(one.state != "finished" for one in found):
        sys.exit("  trials were lost, or run twice")


def same_bits(folder: Path, job: JobRecord) -> bool:
    run = Path(str(job.state.run))
    words = [f"cfg={run / 'args.yaml'}", "name=again", f"runs={folder / 'here'}"]
    subprocess.run([sys.executable, "-m", "weft", "train", *words], cwd=folder, env={**os.environ, "WEFT_THREADS": "1"}, check=True, capture_output=True)  # fmt: skip
    there, here = (load(place / "weights" / "last.safetensors") for place in (run, folder / "here" / "classify" / "again"))  # fmt: skip
    return all(np.array_equal(there[name].numpy(), here[name].numpy()) for name in there)


def _epochs(job: JobRecord) -> list[int]:
    return [int(event["epoch"]) for event in job.events() if event.type == "epoch"]


def _reasons(job: JobRecord) -> list[str]:
    return [event["why"] for event in job.events() if event.type == "state"]


def _begins(job: JobRecord) -> list[float]:
    """When a process began to work on a job."""
    states = [event for event in job.events() if event.type == "state"]
    return [b.time for a, b in pairwise(states) if (a["state"], b["state"]) == ("waiting", "running")]


def _places(job: JobRecord) -> str:
    """From which epoch on each process has worked."""
    first = [next((e["epoch"] for e in job.events() if e.type == "epoch" and e.time >= begin), None) for begin in _begins(job)]  # fmt: skip
    return f"its processes began with epochs {', '.join(map(str, first))}"


if __name__ == "__main__":
    main()
