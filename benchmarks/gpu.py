"""weft and its peers side by side on a GPU: torch eager, compiled and captured in a CUDA graph, and JAX; the same work, in turns.

    python benchmarks/gpu.py                             everything; stop it when you like, what was measured is kept
    python benchmarks/gpu.py --budget 540                starts no row later than so many seconds from now
    python benchmarks/gpu.py --only lenet "convolution"  only the rows whose kind or name holds one of these words
    python benchmarks/gpu.py --skip-compile              without torch.compile, which takes a minute for some
    python benchmarks/gpu.py --peers torch "torch graph" only these beside weft; --peers none for weft alone
    python benchmarks/gpu.py --dry                       small shapes on the CPU: tries the script

Peers that are not installed are left out. A run of everything writes benchmarks/results/gpu-<name>.json; --json names another
file, or a folder; --keep leaves rows there that are not measured again. The file is written after every row.

The rows are measured in a process beside this one. A row that brings it down, or loses the device, is noted, and the next
ones are measured in a new process; XLA ends a process where others raise, so the row is tried again without JAX.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cpu
import gpu_measure
import gpu_table
from cases import peers
from gpu_measure import Case, Place, Row

HERE = Path(__file__).resolve().parent
PACKAGES = ("triton", "cuda-bindings", "nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "nvidia-cublas", "nvmath-python")
GRACE = 45.0  # seconds after the budget in which a row that was begun may end
LOST = 3  # how a process ends that cannot use the device any more


def main() -> None:
    options = _options()
    if options.dry:
        Place.device = "cpu"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the others need memory too
    if options.first:
        import gpu_first

        print(json.dumps(gpu_first.measure(*options.first)))
    elif options.worker is not None:
        work(options)
    else:
        run(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=[], help="rows whose kind or name holds one of these")
    parser.add_argument("--peers", nargs="+", default=[], help="who takes part beside weft; none: nobody")
    parser.add_argument("--skip-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--budget", type=float, default=float("inf"), help="start no row later than so many seconds")
    parser.add_argument("--json", type=Path, help="where the results go: a file or a folder")
    parser.add_argument("--keep", action="store_true", help="rows in that file that are not measured again stay")
    parser.add_argument("--commit", default="", help="what is measured, where there is no git to ask")
    parser.add_argument("--dry", action="store_true", help="small shapes on the CPU")
    parser.add_argument("--first", nargs=2, help=argparse.SUPPRESS)  # one first step, for a process of its own
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)  # pipe, first row, when the time is over
    parser.add_argument("--without-jax", nargs="*", type=int, default=[], help=argparse.SUPPRESS)  # rows
    return parser.parse_args()


# --- the rows ---------------------------------------------------------------------------------------------------------------------


def _takes_part(contestant: str, options: argparse.Namespace) -> bool:
    if contestant.startswith("weft"):
        return True
    if options.peers and contestant not in options.peers:
        return False
    return not (options.skip_compile and contestant == "torch compiled")


def _plan(options: argparse.Namespace) -> list[Case | str]:
    """The rows that are wanted, in order; a first step stands as the name of its network."""
    import gpu_cases
    import gpu_first

    def wanted(group: str, name: str) -> bool:
        text = f"{group}: {name}".lower()
        return not options.only or any(word.lower() in text for word in options.only)

    cases = [c for c in gpu_cases.cases() if wanted(c.group, c.name) and (c.dry or not options.dry)]
    late = [c for c in cases if c.name.endswith(gpu_cases.LATE)]
    firsts = [name for name in gpu_first.names() if wanted(gpu_first.GROUP, name)]
    compiles = _takes_part("torch compiled", options) and find_spec("torch") is not None
    return [*(c for c in cases if c not in late), *firsts, *(late if compiles else [])]


def _title(planned: Case | str) -> tuple[str, str]:
    import gpu_first

    return (gpu_first.GROUP, planned) if isinstance(planned, str) else (planned.group, planned.name)


# --- the process that measures ------------------------------------------------------------------------------------------------------


def work(options: argparse.Namespace) -> None:
    """Measure rows from one on, and tell the process that asked: which one is begun, and what came out."""
    pipe, first, until = int(options.worker[0]), int(options.worker[1]), float(options.worker[2])
    with os.fdopen(pipe, "w") as told:
        for number, planned in list(enumerate(_plan(options)))[first:]:
            if time.time() > until:
                return
            print(json.dumps({"begin": number}), file=told, flush=True)
            row = _measured(planned, options, until, number not in options.without_jax)
            print(json.dumps({"row": asdict(row)}), file=told, flush=True)
            if row.failures and not _device_works():
                sys.exit(LOST)


def _measured(planned: Case | str, options: argparse.Namespace, until: float, with_jax: bool) -> Row:
    if isinstance(planned, str):
        import gpu_first

        def left() -> float:
            return min(600.0, until + GRACE / 2 - time.time())

        return gpu_first.row(planned, lambda c: _takes_part(c, options), left, options.dry)
    _settle(planned.tf32)
    planned.contestants = {
        name: make
        for name, make in planned.contestants.items()
        if _takes_part(name, options) and _is_there(name) and (with_jax or name != "jax")
    }
    try:
        return gpu_measure.run(planned, _effort(planned, options))
    finally:
        if peers.find("torch") is not None:
            import gpu_torch

            gpu_torch.free()


def _is_there(contestant: str) -> bool:
    return contestant.startswith("weft") or peers.find(contestant.split()[0]) is not None


def _effort(case: Case, options: argparse.Namespace) -> gpu_measure.Effort:
    if options.dry:
        return gpu_measure.DRY
    return gpu_measure.SHORT if case.group.startswith(("convolution", "algorithms")) else gpu_measure.Effort()


def _settle(tf32: bool) -> None:
    """Tell every library that is there whether TF32 is allowed."""
    import gpu_jax
    import gpu_torch
    import gpu_weft

    gpu_weft.settle(tf32)
    for name, library in (("torch", gpu_torch), ("jax", gpu_jax)):
        if peers.find(name) is not None:
            library.settle(tf32)


def _device_works() -> bool:
    import gpu_weft

    return gpu_weft.works()


# --- the process that asks ------------------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> None:
    """All rows, printed as they come and written to the file."""
    facts = _facts(options)
    path = _path(options, facts["gpu"])
    kept = _kept(path) if options.keep else []
    print(f"# weft on {facts['gpu']}, {facts['date']}, commit {facts['commit']}\n")
    print(", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    rows: list[Row] = []
    for row in _rows(options):
        if not rows or rows[-1].group != row.group:
            print(f"\n## {row.group}\n\n{gpu_table.HEAD}")
        rows.append(row)
        print(gpu_table.line(row), flush=True)
        facts["seconds"] = round(time.perf_counter() - START)
        _write(path, facts, rows, kept)
    print(f"\n## Summary ({round(time.perf_counter() - START)} s)\n\n{gpu_table.summary(rows)}", flush=True)
    if path is not None:
        print(f"\nwritten: {path}")


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    """From as many processes, one after the other, as it takes."""
    plan, first = _plan(options), 0
    until = time.time() + options.budget - (time.perf_counter() - START)
    died: dict[int, str] = {}  # rows that are measured without JAX, and what was said when it took part
    while first < len(plan) and time.time() < until:
        begun = None
        with tempfile.TemporaryFile("w+") as errors:
            process, messages = _start(first, until, errors, died)
            try:
                for message in _lines(process, messages, until + GRACE):
                    if "begin" in message:
                        first = begun = message["begin"]
                    else:
                        row = Row(**message["row"])
                        row.failures |= {"jax": died[first]} if first in died else {}
                        yield row
                        first, begun = first + 1, None
            finally:
                process.kill()
                process.wait()
            if begun is not None and begun not in died and _may_be_jax(plan[begun], options) and time.time() < until:
                died[begun] = _last_words(process.returncode, errors)
            elif begun is not None:
                yield Row(*_title(plan[begun]), failures={"all": _last_words(process.returncode, errors)})
                first += 1
            elif process.returncode != LOST:
                return


def _may_be_jax(planned: Case | str, options: argparse.Namespace) -> bool:
    """Whether JAX takes part in a row."""
    return not isinstance(planned, str) and "jax" in planned.contestants and _takes_part("jax", options)


def _start(first: int, until: float, errors: Any, died: Iterable[int]) -> tuple[subprocess.Popen[bytes], int]:
    """A process that measures from one row on, and where it tells of it."""
    reading, writing = os.pipe()
    command = [sys.executable, __file__, *sys.argv[1:], "--worker", str(writing), str(first), str(until)]
    command += ["--without-jax", *map(str, died)]
    process = subprocess.Popen(command, pass_fds=[writing], stdout=subprocess.DEVNULL, stderr=errors)
    os.close(writing)
    return process, reading


def _lines(process: subprocess.Popen[bytes], pipe: int, until: float) -> Iterator[dict[str, Any]]:
    """What the process tells, until it has ended or the time is over."""
    rest = b""
    with os.fdopen(pipe, "rb", buffering=0) as told:
        while (left := until - time.time()) > 0:
            if not select.select([told], [], [], min(left, 1e6))[0]:
                continue
            some = told.read(1 << 16)
            if not some:
                process.wait()
                return
            *whole, rest = (rest + some).split(b"\n")
            yield from (json.loads(line) for line in whole)


def _last_words(code: int, errors: Any) -> str:
    errors.seek(0)
    said = [line for line in errors.read().splitlines() if line.strip()]
    return f"the process ended with {code}: {said[-1][:300] if said else 'it said nothing'}"


# --- facts and files --------------------------------------------------------------------------------------------------------------------


def _facts(options: argparse.Namespace) -> dict[str, Any]:
    gpu, driver, memory = _gpu(options)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": options.commit or cpu._commit(),
        "gpu": gpu,
        "driver": driver,
        "memory": memory,
        "system": platform.platform(),
        "python": platform.python_version(),
        "dry": options.dry,
        "versions": {**peers.versions(), **_versions()},
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _gpu(options: argparse.Namespace) -> tuple[str, str, str]:
    """Name, driver and memory of the first GPU."""
    if options.dry:
        return "no GPU", "", ""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader", "--id=0"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        name, driver, memory = (word.strip() for word in said.splitlines()[0].split(","))
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return "unknown GPU", "", ""
    return name, driver, memory


def _path(options: argparse.Namespace, gpu: str) -> Path | None:
    """The file asked for. Without one, only a run of everything is kept, so that a partial one does not replace it."""
    short = re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", "")).strip("-")
    name = f"gpu-{short}.json"
    asked: Path | None = options.json
    if asked is not None:
        return asked / name if asked.is_dir() else asked
    return None if options.only or options.dry or options.peers else HERE / "results" / name


def _kept(path: Path | None) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["rows"] if path is not None and path.exists() else []


def _write(path: Path | None, facts: dict[str, Any], rows: list[Row], kept: list[dict[str, Any]]) -> None:
    """New rows, and those of before that were not measured again."""
    if path is None:
        return
    new = {(r.group, r.name) for r in rows}
    old = [r for r in kept if (r["group"], r["name"]) not in new]
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".part")
    fresh.write_text(json.dumps({**facts, "rows": [*old, *(asdict(r) for r in rows)]}, indent=1) + "\n")
    fresh.replace(path)


START = time.perf_counter()

if __name__ == "__main__":
    main()
