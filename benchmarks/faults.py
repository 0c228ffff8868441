"""Faults of one process among several: python benchmarks/faults.py [RANKS] [CASE ...] prints how each ends, and how long that takes.

With `--mpiexec COMMAND` the processes are started by MPI instead of `weft launch`; WEFT_ENGINE=mpi also connects them by MPI. The case `network`
has two machines, which are network namespaces (see namespaces.py), and pulls the cable between them.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from namespaces import TwoMachines, missing

import weft
from weft import parallel

STALL = "3"
# What happens to the process, and what the message must say. {rank}: its number.
CASES = {
    "none": "",
    "kill -9": "rank {rank} (was killed by SIGKILL|died)",
    "SIGSTOP": "rank {rank} has not answered for",
    "slow": "",
    "exception": "rank {rank} failed: ValueError: no luck",
    "exit status": "rank {rank} (ended with exit status 3|has ended)",
    "leaves": "rank {rank} has ended, and others wait for it",
    "other collective": "another program",
    "memory": "rank {rank} failed: .*not enough memory",
    "disk full": "rank {rank} failed: OSError: .*No space left",
    "launcher SIGINT": "",
    "launcher SIGTERM": "",
    "launcher SIGKILL": "",
    "network": "rank {rank} has not answered for .* or the network to it is down",
}


def main(words: list[str]) -> int:
    if words and words[0] == "--rank":
        work(words[1], int(words[2]))
        return 0
    starter = shlex.split(words.pop(words.index("--mpiexec") + 1)) if "--mpiexec" in words else []
    words = [w for w in words if w != "--mpiexec"]
    ranks = int(words.pop(0)) if words and words[0].isdecimal() else 4
    bad = 0
    for case in words or CASES:
        if case == "network":
            bad += not network_shown(ranks)
            continue
        for rank in (0, ranks - 1):
            bad += not shown(case, rank, ranks, starter)
            if case in ("none",) or case.startswith("launcher"):
                break
    return bad


def work(case: str, rank: int) -> None:
    """The program: steps with an all_reduce, and after some of them the fault in one process."""
    me = parallel.world()
    mesh = parallel.Mesh(data=me.size)
    step = weft.jit(lambda x: parallel.all_reduce(x, "data"))
    mine = me.rank == rank
    for i in range(200 if case in ("none", "slow") else 1_000_000_000):
        step(weft.ones(1000))
        if i == 20 and mine:
            fault(case)
        if case == "slow" and mine and i > 180:
            time.sleep(0.1)
        if i == 10 and me.rank == 0:
            print("working", me.launcher, mesh.engine, flush=True)


def fault(case: str) -> None:
    if case == "kill -9":
        os.kill(os.getpid(), signal.SIGKILL)
    elif case == "SIGSTOP":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif case == "exception":
        raise ValueError("no luck")
    elif case == "exit status":
        sys.exit(3)
    elif case == "leaves":
        sys.exit(0)
    elif case == "other collective":
        parallel.all_gather(weft.ones(1000), "data")
    elif case == "memory":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))
        weft.ones((1 << 14, 1 << 13)).numpy().copy()
    elif case == "disk full":
        with open("/dev/full", "w") as file:
            file.write("a checkpoint\n" * 10_000)
        raise OSError(errno.ENOSPC, "unreachable")


def shown(case: str, rank: int, ranks: int, starter: list[str]) -> bool:
    """Run one case and print a line; whether it ended as it should."""
    program = [__file__, "--rank", case, str(rank)]
    started = (
        starter + ["-n", str(ranks), sys.executable]
        if starter
        else [sys.executable, "-m", "weft", "launch", "-n", str(ranks)]
    )
    variables = {**os.environ, "WEFT_STALL_SECONDS": STALL, "WEFT_THREADS": "1"}
    process = subprocess.Popen(
        started + program, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while (line := process.stdout.readline()) and "working" not in line:
        pass
    time.sleep(0.3 if case.startswith("launcher") else 0)
    start = time.monotonic()
    if case.startswith("launcher"):
        process.send_signal(signal.Signals[case.split()[1]])
    try:
        error = process.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        error = process.communicate()[1] + "\nHANGS"
    seconds = time.monotonic() - start
    left = remaining(f"faults.py --rank {case} {rank}")
    lines = error.strip().splitlines()
    said = next((text for text in lines if text.startswith("weft: ")), lines[-1] if lines else "")
    fine = (
        matches(CASES[case].format(rank=rank), error, process.returncode, case, bool(starter))
        and not left
        and seconds < 15
    )
    print(
        f"{'ok ' if fine else 'BAD'} {case:16} rank {rank}: {seconds:5.1f} s, exit {process.returncode:4}, left {len(left)}: {said}",
        flush=True,
    )
    return fine


def network_shown(ranks: int) -> bool:
    """Pull the cable between two machines and print a line for each of them; whether both ended as they should."""
    if lacks := missing():
        print(f"--  network: {lacks}", flush=True)
        return True
    variables = {**os.environ, "WEFT_STALL_SECONDS": STALL, "WEFT_THREADS": "1"}
    program = [sys.executable, __file__, "--rank", "slow network", str(ranks)]
    with TwoMachines() as machines, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            machines.mpiexec(ranks) + program, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        while (line := process.stdout.readline()) and "working" not in line:
            pass
        start = time.monotonic()
        machines.pull_the_plug()
        taken = {}
        for side in ("a", "b"):
            while machines.processes(side, "slow network") and time.monotonic() - start < 60:
                time.sleep(0.05)
            taken[side] = time.monotonic() - start
        machines.plug_in()
        process.kill()
        process.wait()
        errors.seek(0)
        said = next((text for text in errors.read().splitlines() if text.startswith("weft: ")), "")
    fine = bool(re.search(CASES["network"].format(rank=ranks // 2), said)) and max(taken.values()) < 15
    times = ", ".join(f"machine {side} {seconds:.1f} s" for side, seconds in taken.items())
    print(f"{'ok ' if fine else 'BAD'} network: {times}: {said.strip()}", flush=True)
    return fine


def remaining(program: str) -> list[str]:
    """The processes of a program that are still there after some seconds."""
    for _ in range(30):
        left = subprocess.run(["pgrep", "-f", program], capture_output=True, text=True).stdout.split()
        if not left:
            break
        time.sleep(0.1)
    return left


def matches(pattern: str, error: str, code: int, case: str, by_mpi: bool) -> bool:
    """Whether message and exit code are right; after a signal, mpiexec has its own."""
    codes = {"none": 0, "slow": 0, "launcher SIGKILL": -9} | (
        {} if by_mpi else {"launcher SIGINT": 130, "launcher SIGTERM": 143}
    )
    wanted = codes.get(case)
    return bool(re.search(pattern, error)) and (code == wanted if wanted is not None else code != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
