"""Damages every kind of file that weft reads and reads it: the right data must come of it, or an error of weft that names the file.

    python tests/mutate_files.py --count 3000 --seed 1        a number of mutations
    python tests/mutate_files.py --seconds 60 --seed 2        as many as fit into the time
    python tests/mutate_files.py --reader torch --count 100000 --jobs 14        of one reader, in 14 processes
    python tests/mutate_files.py --reader npz --number 17     one of them, in this process

Mutation `number` of a case follows from (seed, case, number) alone. All are read in processes of their own, some hundred in one
after another: one that dies is a finding, and the next process goes on behind the mutation that killed it. The last line counts what came of
them, with the longest time and the largest allocation of one. Readers of weights need only NumPy, ml_dtypes and safetensors.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from mutate_weights import WEIGHTS, Case
from weft.errors import RunError, UserError

MEMORY = 8 << 30  # bytes of address space: what a damaged file makes weft ask for must fit, or be rejected
SECONDS = 20.0  # that one mutation may take; on a busy machine, half as many of CPU time
BATCH, LARGE_BATCH = 100, 5000  # mutations for a process; for one of several


def find_case(name: str) -> Case:
    """A case by name; all but those of weights import the packages for images and the compiler."""
    return WEIGHTS[name] if name in WEIGHTS else all_cases()[name]


def all_cases() -> dict[str, Case]:
    found: dict[str, Case] = importlib.import_module("mutate_cases").CASES
    return found


class Mutation(NamedTuple):
    case: str
    file: str
    number: int


class Outcome(NamedTuple):
    """`what` is "right" or "refused", or else a finding: "wrong data", "not named", "another error", "crash" or "hang"."""

    mutation: Mutation
    what: str
    detail: str = ""
    seconds: float = 0.0  # of CPU time
    allocated: int = 0  # bytes at once

    @property
    def good(self) -> bool:
        return self.what in ("right", "refused")


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Damage as disks, networks and editors do it."""
    size = len(content)
    place = rng.choice((rng.randrange(size), rng.randrange(min(size, 64)), size - 1 - rng.randrange(min(size, 64))))
    kind = rng.choice(
        ("cut", "bit", "bit", "bits", "bytes", "zeros", "more", "hole", "twice", "digit", "nested", "empty")
    )
    if kind == "cut":
        return content[:place]
    if kind in ("bit", "bits"):
        damaged = bytearray(content)
        for at in [place] if kind == "bit" else [rng.randrange(size) for _ in range(rng.randint(2, 20))]:
            damaged[at] ^= 1 << rng.randrange(8)
        return bytes(damaged)
    length = rng.choice((1, 4, 8, 64, 512, 4096))
    if kind == "bytes":
        return content[:place] + rng.randbytes(length) + content[place + length :]
    if kind == "zeros":
        at = place // length * length
        return content[:at] + bytes(min(length, size - at)) + content[at + length :]
    if kind == "more":
        return content + rng.choice((rng.randbytes(length), bytes(length), content))
    if kind == "hole":
        return content[:place] + content[place + length :]
    if kind == "twice":
        return content[: place + length] + content[place:]
    if kind == "digit":
        digits = [at for at, byte in enumerate(content[:4096]) if chr(byte).isdecimal()] or [place]
        at = rng.choice(digits)
        return content[:at] + rng.choice((b"-1", b"9" * 20, b"1e999", b"0", b"7")) + content[at + 1 :]
    if kind == "nested":
        depth = rng.choice((100, 1000, 1000, 100_000))  # few of the deepest, which take most of the time
        return content[:place] + rng.choice((b"[", b"{", b'{"a":', b"(")) * depth + content[place:]
    return b""


class Prepared:
    """The files of a case in a folder, whole; one is damaged, read, and mended."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.case = name, find_case(name)
        self.folder = folder / name
        self.folder.mkdir()
        self.case.make(self.folder)
        self.whole = {file: (self.folder / file).read_bytes() for file in self.case.files}
        self.right = self.case.read(self.folder)

    def tried(self, mutation: Mutation, seed: int) -> Outcome:
        rng = random.Random(f"{seed} {mutation.case} {mutation.file} {mutation.number}")
        path = self.folder / mutation.file
        path.write_bytes(mutate(self.whole[mutation.file], rng))
        try:
            return self._measured(mutation, path)
        finally:
            for file, content in self.whole.items():  # reading may have mended or removed it
                (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / file).write_bytes(content)

    def _measured(self, mutation: Mutation, path: Path) -> Outcome:
        tracemalloc.reset_peak()
        before, begun = tracemalloc.get_traced_memory()[0], time.process_time()
        what, detail = self._read(path)
        seconds, peak = time.process_time() - begun, tracemalloc.get_traced_memory()[1]
        return Outcome(mutation, what, detail, seconds, max(0, peak - before))

    def _read(self, path: Path) -> tuple[str, str]:
        try:
            found = self.case.read(self.folder)
        except (RunError, UserError) as error:
            said = f"[{error.where}] {error.message}"
            return ("refused", "") if path.name in said else ("not named", said)
        except self.case.refusals as error:  # what is said of an image follows its name
            return ("refused", str(error))
        except Exception as error:
            return "another error", "".join(traceback.format_exception(error))
        same = not self.case.exact or _equal(found, self.right)
        return ("right", "") if same else ("wrong data", repr(found)[:500])


def _equal(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)


def mutations(seed: int, names: list[str]) -> Iterator[Mutation]:
    """Cases and their files in turn, without end."""
    number = 0
    while True:
        for name in names:
            for file in find_case(name).files:
                yield Mutation(name, file, number)
        number += 1


def _work(seed: int, batch: list[Mutation], pipe: Any) -> None:
    """Read some mutations, and say before each which it is and after it what came of it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    tracemalloc.start()
    with tempfile.TemporaryDirectory(prefix="weft-mutate-") as folder:
        prepared: dict[str, Prepared] = {}
        for mutation in batch:
            if mutation.case not in prepared:
                prepared[mutation.case] = Prepared(mutation.case, Path(folder))
            pipe.send(mutation)
            pipe.send(prepared[mutation.case].tried(mutation, seed))
    pipe.send(None)


def _batch(seed: int, batch: list[Mutation], processes: Any) -> Iterator[Outcome]:
    """The outcomes of a batch; a process that dies or hangs is replaced."""
    while batch:
        receiver, sender = processes.Pipe(duplex=False)
        process = processes.Process(target=_work, args=(seed, batch, sender), daemon=True)
        process.start()
        sender.close()
        under_way, done = None, 0
        try:
            while _answers(receiver, process.pid, bool(under_way)):
                said = receiver.recv()
                if said is None:
                    return
                under_way = said if isinstance(said, Mutation) else None
                if isinstance(said, Outcome):
                    done += 1
                    yield said
            what = "hang"
        except EOFError:
            what = "crash"
        finally:
            process.kill()
            process.join()
        if under_way is None:
            raise RuntimeError(
                f"the process of mutations {batch[done:][:1]} ended with {process.exitcode} between two of them"
            )
        yield Outcome(under_way, what, f"exit code {process.exitcode}")
        batch = batch[done + 1 :]


def _answers(receiver: Any, process: int, reading: bool) -> bool:
    """Whether a process says something before it has used its time. On a busy machine that is CPU time, within reason."""
    begun = _cpu_seconds(process)
    for _ in range(10):
        if receiver.poll(SECONDS if reading else 120):
            return True
        if _cpu_seconds(process) - begun > SECONDS / 2:
            return False
    return False


def _cpu_seconds(process: int) -> float:
    """What a process has used; it counts as waiting where Linux does not tell."""
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def sweep(
    seed: int = 0,
    count: int | None = None,
    seconds: float | None = None,
    names: Sequence[str] | None = None,
    jobs: int = 1,
) -> Iterator[Outcome]:
    """What came of each mutation, until there were `count` or the time is over; with `jobs` processes at a time."""
    processes = multiprocessing.get_context("spawn")
    all_of_them, begun, given = mutations(seed, list(names or all_cases())), time.monotonic(), 0
    size = BATCH if jobs == 1 else LARGE_BATCH
    with ThreadPoolExecutor(jobs) as threads:
        while (count is None or given < count) and (seconds is None or time.monotonic() - begun < seconds):
            sizes = [size if count is None else min(size, max(0, count - given - n * size)) for n in range(jobs)]
            batches = [[next(all_of_them) for _ in range(each)] for each in sizes]
            for outcomes in threads.map(lambda batch: list(_batch(seed, batch, processes)), batches):
                given += len(outcomes)
                yield from outcomes


def one(seed: int, mutation: Mutation) -> Outcome:
    """A single mutation in this process, to look at a finding."""
    with tempfile.TemporaryDirectory(prefix="weft-mutate-") as folder:
        return Prepared(mutation.case, Path(folder)).tried(mutation, seed)


def summary(outcomes: Sequence[Outcome], seed: int) -> str:
    """One line: how many, what came of them, the slowest and the largest."""
    found = Counter(outcome.what for outcome in outcomes)
    slowest = max(outcomes, key=lambda outcome: outcome.seconds)
    largest = max(outcomes, key=lambda outcome: outcome.allocated)
    return "; ".join(
        [
            f"mutations: {len(outcomes)} (seed {seed})",
            ", ".join(f"{n} {what}" for what, n in found.items()),
            f"slowest {slowest.seconds:.3f} CPU s ({slowest.mutation.file} {slowest.mutation.number})",
            f"largest allocation {largest.allocated:,} bytes ({largest.mutation.file} {largest.mutation.number})",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--reader", action="append", help=f"{', '.join(WEIGHTS)}, or another case of mutate_cases.py")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--file")
    parser.add_argument("--number", type=int)
    given = parser.parse_args(arguments)
    unknown = [name for name in given.reader or () if name not in WEIGHTS and name not in all_cases()]
    if unknown:
        parser.error(f"there is no reader {unknown[0]!r}, there are {', '.join(all_cases())}")
    if given.number is not None:
        tracemalloc.start()
        name = given.reader[0]
        print(one(given.seed, Mutation(name, given.file or find_case(name).files[0], given.number)))
        return 0
    outcomes = []
    for outcome in sweep(given.seed, given.count, given.seconds, given.reader, given.jobs):
        outcomes.append(outcome)
        if not outcome.good:
            print(f"{outcome.what}: {outcome.mutation} {outcome.detail}", flush=True)
    print(summary(outcomes, given.seed))
    return 1 if any(not outcome.good for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
