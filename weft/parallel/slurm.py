"""SLURM jobs: a script that runs a program in many processes on one or several machines, submitted with sbatch."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ..errors import RunError, UserError
from ..records import dataclass
from .launcher import program
from .ranks import check_ranks


@dataclass(frozen=True)
class SlurmJob:
    """A program, and the resources it needs. On one machine `weft launch` runs it, on several srun starts MPI processes."""

    command: tuple[str, ...]
    ranks: int  # on all machines together
    nodes: int = 1
    threads: int = 1
    gpus_per_node: int = 0
    time: str = ""
    partition: str = ""
    account: str = ""
    job_name: str = "weft"
    output: str = ""
    mpi: str = "pmix"
    sbatch: str = ""  # additional options

    def __post_init__(self) -> None:
        check_ranks(self.ranks)
        if self.ranks % self.nodes:
            raise UserError(
                "weft launch",
                f"a number of ranks that is a multiple of the {self.nodes} nodes is required, got {self.ranks}. Change -n or --nodes.",
            )

    def script(self) -> str:
        """The job script."""
        python, words = shlex.quote(sys.executable), shlex.join(program(self.command))
        if self.nodes == 1:
            run = f"exec {python} -m weft launch -n {self.ranks} -t {self.threads} {words}"
        else:
            # A failing process must not leave the others running.
            run = f"exec srun --mpi={shlex.quote(self.mpi)} --kill-on-bad-exit=1 {python} {words}"
        options = "\n".join(f"#SBATCH {option}" for option in self._options())
        return (
            f"#!/bin/bash\n{options}\n\nexport WEFT_THREADS={self.threads}\ncd {shlex.quote(str(Path.cwd()))}\n{run}\n"
        )

    def _options(self) -> Iterator[str]:
        yield f"--nodes={self.nodes}"
        tasks = self.ranks // self.nodes
        if self.nodes == 1:  # a single task, which starts the others
            yield "--ntasks-per-node=1"
            yield f"--cpus-per-task={tasks * self.threads}"
        else:
            yield f"--ntasks-per-node={tasks}"
            yield f"--cpus-per-task={self.threads}"
        for name in ("job_name", "time", "partition", "account", "output"):
            if getattr(self, name):
                yield f"--{name.replace('_', '-')}={shlex.quote(getattr(self, name))}"
        if self.gpus_per_node:
            yield f"--gpus-per-node={self.gpus_per_node}"
        if self.sbatch:
            yield self.sbatch

    def submit(self) -> str:
        """Submit the job, and write its script beside the output, as weft-JOB.sh; returns sbatch's answer."""
        if shutil.which("sbatch") is None:
            raise UserError(
                "weft launch",
                "sbatch is required to submit a job, and is not installed here. --dry-run prints the job script instead.",
            )
        script = self.script()
        answer = subprocess.run(["sbatch"], input=script, text=True, capture_output=True)
        if answer.returncode:
            raise RunError("weft launch", f"sbatch rejected the job: {answer.stderr.strip() or answer.stdout.strip()}.")
        number = re.search(r"\d+", answer.stdout)
        path = Path(f"weft-{number.group() if number else 'job'}.sh")
        path.write_text(script)
        return f"{answer.stdout.strip()} (script: {path})"
