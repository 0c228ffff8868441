"""The verb `weft launch`: its options come before the program, and everything after belongs to the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import UserError
from ..hints import nearest
from ..parallel.launcher import launch as run_launch
from ..parallel.launcher import program
from ..parallel.slurm import SlurmJob
from .arguments import Help
from .training import check_launched

SWITCHES = ("all-output", "slurm", "dry-run")
NUMBERS = ("ranks", "threads", "nodes", "gpus-per-node")
TEXTS = ("time", "partition", "account", "job-name", "output", "mpi", "sbatch")
SHORT = {"-n": "ranks", "-t": "threads"}


def launch(words: Sequence[str]) -> None:
    """Run a program in several processes: weft launch -n 8 SCRIPT.py args, weft launch -n 8 -m MODULE args, weft launch -n 4 weft train ...

    If one rank fails, all ranks end, and a message names the rank and its error.

      -n RANKS, --ranks   number of processes; required
      -t THREADS          threads of each process; by default the cores are shared evenly
      --all-output        print the output of all ranks, each line with its rank;
                          by default rank 0 prints, and the others only their errors

    On a SLURM cluster, a job script is written and submitted:

      --slurm             submit a job with sbatch instead of running here
      --nodes N           machines, 1 by default; RANKS counts the processes of all of them
      --mpi TYPE          how srun starts MPI processes: pmix (default) or pmi2
      --sbatch "OPTIONS"  more options of sbatch
      --dry-run           print the job script instead
      --time, --partition, --account, --job-name, --output, --gpus-per-node   passed to sbatch
    """
    options, command = read_options(words)
    ranks = options.pop("ranks", None)
    if ranks is None:
        raise UserError("weft launch", "the number of ranks is required: weft launch -n 8 ...")
    if options.pop("slurm", False):
        _submit(SlurmJob(tuple(command), ranks=ranks, **options.pop("job", {})), options)
        return
    given = [f"--{name}" for name in options.get("job", {}) if name != "threads"]
    if given or "dry-run" in options:
        raise UserError("weft launch", f"{', '.join(given or ['--dry-run'])} is an option of SLURM jobs. Add --slurm.")
    _check_training(program(command), ranks)
    threads = options.get("job", {}).get("threads")
    run_launch(command, ranks, threads=threads, all_output=options.get("all-output", False))


def read_options(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The options in front of the program, those of jobs under `job`, and the program.

    >>> read_options(["-n", "2", "--all-output", "train.py", "-n", "5"])
    ({'ranks': 2, 'all-output': True}, ['train.py', '-n', '5'])
    """
    found: dict[str, Any] = {}
    rest = list(words)
    if rest[:1] == ["help"]:
        raise Help("launch", "", {})
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        word, equals, value = rest.pop(0).partition("=")
        if word in ("-h", "--help"):
            raise Help("launch", "", {})
        name = SHORT.get(word, word.removeprefix("--"))
        if name in SWITCHES and not equals:
            found[name] = True
            continue
        if name not in (*NUMBERS, *TEXTS):
            known = [*SHORT, *(f"--{n}" for n in (*SWITCHES, *NUMBERS, *TEXTS))]
            raise UserError("weft launch", f"there is no option {word}. {nearest(word, known)}")
        if not equals and not rest:
            raise UserError("weft launch", f"{word} needs a value.")
        text = value if equals else rest.pop(0)
        into = found if name == "ranks" else found.setdefault("job", {})
        into[name.replace("-", "_")] = _number(word, text) if name in NUMBERS else text
    return found, rest


def _number(option: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UserError("weft launch", f"{option} needs a number above 0, got {text!r}.")
    return int(text)


def _check_training(words: Sequence[str], ranks: int) -> None:
    """Reject a training here, once, that each of its processes would reject."""
    if words[:2] == ["-m", "weft"] and words[2:3] in (["train"], ["resume"]):
        check_launched(words[2], words[3:], ranks)


def _submit(job: SlurmJob, options: dict[str, Any]) -> None:
    if options.get("all-output"):
        raise UserError(
            "weft launch",
            "--all-output is for processes of this machine: a job of SLURM writes all output to its file.",
        )
    print(job.script() if options.get("dry-run") else job.submit())
