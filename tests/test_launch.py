"""`weft launch`: how programs are started, what is shown of them, and how all of them end when one fails."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.cli.launch import read_options
from weft.errors import UserError
from weft.parallel.launcher import program
from weft.parallel.slurm import SlurmJob

REPOSITORY = Path(__file__).resolve().parent.parent
PROGRAM = """
import os, signal, sys, time
print("begins", os.environ["WEFT_RANK"], os.environ["WEFT_THREADS"], sys.argv[1:], flush=True)
from weft import parallel
rank = parallel.world().rank
def step():
    time.sleep(0.05)
"""


@pytest.fixture
def script(tmp_path):
    """Writes a program whose ranks do something after they have begun, and the command that launches it."""

    def write(then, *options, arguments=()):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM + then)
        return [sys.executable, "-m", "weft", "launch", "-n", "2", *options, str(path), *arguments]

    return write


def run(command, **variables):
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables}
    )  # fmt: skip


def test_ranks_are_started_and_the_first_one_is_shown(script):
    found = run(script("print('warned', file=sys.stderr)", "-t", "3", arguments=["-n", "5"]))
    assert (found.returncode, found.stdout) == (0, "begins 0 3 ['-n', '5']\n")
    assert sorted(found.stderr.splitlines()) == ["[1] warned", "warned"]


def test_an_exception_ends_all_and_is_named_once(script):
    found = run(script("if rank == 1: raise ValueError('no luck')\nwhile True: step()", "-t", "1"))
    assert found.returncode == 1
    lines = found.stderr.splitlines()
    assert lines[0].startswith("[1] Traceback")
    assert "program.py" in lines[1], "frames of the launcher are not shown"
    assert lines[-1] == "weft: [parallel] rank 1 failed: ValueError: no luck (program.py:8)"


def test_a_stopped_rank_is_noticed(script):
    found = run(
        script("if rank == 0: os.kill(os.getpid(), signal.SIGSTOP)\nwhile True: step()"), WEFT_STALL_SECONDS="1"
    )
    assert (found.returncode, "weft: [parallel] rank 0 has not answered for" in found.stderr) == (1, True)


@pytest.mark.parametrize(
    ("number", "status"), [("SIGINT", 130), pytest.param("SIGTERM", 143, marks=pytest.mark.slow), ("SIGKILL", -9)]
)
def test_all_output_is_shown_and_signals_to_the_launcher_end_all_ranks(script, number, status):
    process = subprocess.Popen(
        script("print('pid', os.getpid(), flush=True)\nwhile True: step()", "--all-output"),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    pids, others = [], set()
    while len(pids) < 2:
        line = process.stdout.readline().rstrip()
        words = line.split()
        if words[1] == "pid":
            pids.append(int(words[2]))
        else:
            others.add(line)
    assert others == {"[0] begins 0 1 []", "[1] begins 1 1 []"}
    process.send_signal(signal.Signals[number])
    assert process.wait(20) == status
    process.stdout.close()
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_programs_are_scripts_modules_and_verbs(tmp_path):
    assert program(["weft", "train", "digits"]) == ["-m", "weft", "train", "digits"]
    assert program(["python", "-m", "this", "x"]) == ["-m", "this", "x"]
    with pytest.raises(UserError, match="a script is required, train does not exist. To run a module: -m train"):
        program(["train"])
    with pytest.raises(UserError, match="a script, -m MODULE, or weft VERB"):
        program([])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rank", "2"], "there is no option --rank. Did you mean --ranks"),
        (["-n", "two"], "-n needs a number above 0, got 'two'"),
        (["-n"], "-n needs a value"),
    ],
)
def test_options_are_checked(words, message):
    with pytest.raises(UserError, match=message):
        read_options(words)


def test_a_job_of_several_machines_is_started_by_srun(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = SlurmJob(("weft", "train", "my digits"), ranks=8, nodes=2, threads=4, time="1:00:00")
    script = job.script()
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --cpus-per-task=4\n" in script
    assert script.endswith(f"exec srun --mpi=pmix --kill-on-bad-exit=1 {sys.executable} -m weft train 'my digits'\n")
    assert "launch -n 8 -t 1 -m weft train digits" in SlurmJob(("weft", "train", "digits"), ranks=8).script()
    with pytest.raises(UserError, match="a multiple of the 2 nodes is required, got 7"):
        SlurmJob(("weft",), ranks=7, nodes=2)


def test_a_job_is_submitted_and_its_script_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    job = SlurmJob(("weft", "train", "digits"), ranks=4)
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\ncat > given\necho Submitted batch job 71\n")
    sbatch.chmod(0o755)
    assert job.submit() == "Submitted batch job 71 (script: weft-71.sh)"
    assert (tmp_path / "given").read_text() == (tmp_path / "weft-71.sh").read_text() == job.script()
    sbatch.write_text("#!/bin/sh\necho invalid partition >&2; exit 1\n")
    with pytest.raises(Exception, match="sbatch rejected the job: invalid partition"):
        job.submit()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="sbatch is required to submit a job"):
        job.submit()
