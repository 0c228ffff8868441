"""Ranks that torchrun has started on one machine: they find each other without MPI, and those that do not come are named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.mesh.world import read_world

TORCHRUN = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
SUM = """
import weft
from weft import parallel
world = parallel.world()
mesh = parallel.Mesh(data=world.size)
total = weft.jit(lambda x: parallel.all_reduce(x, "data"))
for _ in range(3):
    print(world.launcher, total(weft.full((3,), world.rank + 1.0)).tolist(), flush=True)
"""
WAIT = SUM + "import time\nif world.rank == 1: time.sleep(60)\nprint(total(weft.ones(3)).tolist())\n"


def environment(rank: int, size: int, job: str) -> dict[str, str]:
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    return TORCHRUN | {name: str(value) for name, value in ranks.items()} | {"MASTER_PORT": job}


def start(text: str, rank: int, size: int, job: str, **settings: str) -> subprocess.Popen[str]:
    around = os.environ | environment(rank, size, job) | {"WEFT_THREADS": "1", **settings}
    return subprocess.Popen(
        [sys.executable, "-c", text], env=around, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def job(tmp_path: Path) -> str:
    """Tests run beside each other: each has a port of its own, which nobody listens on."""
    return str(tmp_path)


@pytest.mark.parametrize("first", [0, 2])
def test_ranks_meet_in_whatever_order_they_come(job: str, first: int) -> None:
    order = [first, *({0, 1, 2} - {first})]
    ranks = []
    for rank in order:
        ranks.append(start(SUM, rank, 3, job))
        time.sleep(0.2)
    for process in ranks:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out.splitlines() == ["torchrun [6.0, 6.0, 6.0]"] * 3


@pytest.mark.parametrize(("rank", "missing"), [(0, "1"), (1, "0")])
def test_a_rank_that_does_not_come_is_named(job: str, rank: int, missing: str) -> None:
    process = start(SUM, rank, 2, job, WEFT_STALL_SECONDS="1")
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert f"rank {missing} did not" in err, err


def test_a_killed_rank_ends_the_others(job: str) -> None:
    ranks = [start(WAIT, rank, 2, job) for rank in range(2)]
    for _ in range(3):
        assert ranks[1].stdout is not None
        ranks[1].stdout.readline()
    ranks[1].send_signal(signal.SIGKILL)
    _, err = ranks[0].communicate(timeout=30)
    assert ranks[0].returncode != 0
    assert "rank 1" in err
    ranks[1].communicate()


def test_two_ranks_of_the_same_number_are_an_error(job: str) -> None:
    ranks = [start(SUM, 0, 2, job, WEFT_STALL_SECONDS="3") for _ in range(2)]
    errors = "".join(process.communicate(timeout=60)[1] for process in ranks)
    assert "two processes with rank 0" in errors


def test_which_jobs_are_on_one_machine() -> None:
    def name(variables: dict[str, str]) -> str:
        return read_world(variables).rendezvous

    known = environment(0, 2, "29500")
    assert name(known) == "torchrun 127.0.0.1 29500 none 0"
    assert name(known | {"MASTER_PORT": "29501"}) != name(known)
    assert name(known | {"LOCAL_WORLD_SIZE": "1"}) == ""
    assert name({key: value for key, value in known.items() if not key.startswith("LOCAL")}) == ""
    slurm = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    assert name(slurm | {"SLURM_STEP_NUM_NODES": "1"}) == "SLURM 7 0"
    assert name(slurm | {"SLURM_STEP_NUM_NODES": "2"}) == name(slurm) == ""
    assert name({"JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "2"}) == ""
