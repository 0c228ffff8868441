"""weft and its peers side by side on this machine's CPU: the same work, the same cores, in turns, in one process.

    python benchmarks/cpu.py                       everything, about a quarter of an hour
    python benchmarks/cpu.py --quick               a part of it, three minutes
    python benchmarks/cpu.py --only "matrix" lstm  only the rows whose kind or name holds one of these words
    python benchmarks/cpu.py --threads 1           on one core
    python benchmarks/cpu.py --cpu-time            on one core and in CPU time: for a machine that others use too

Peers that are not installed are left out (benchmarks/requirements.txt names them). A full run writes
benchmarks/results/cpu-<machine>.json; --json names another file. See benchmarks/README.md for the method.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cases import peers

HERE = Path(__file__).resolve().parent


def main() -> None:
    options = _options()
    threads = peers.settle(1 if options.cpu_time else options.threads)  # before any library is loaded
    if options.alone:
        from cases import alone

        print(json.dumps(alone.measure(*options.alone)))
        return
    run(options, threads)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=[], help="rows whose kind or name holds one of these")
    parser.add_argument("--quick", action="store_true", help="fewer rows, rounds and contestants")
    parser.add_argument("--threads", type=int, default=0, help="how many cores; 0: all this process may use")
    parser.add_argument(
        "--cpu-time", action="store_true", help="one thread, CPU time: for a machine that others use too"
    )
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--alone", nargs=3, help=argparse.SUPPRESS)  # one measurement, for a process of its own
    return parser.parse_args()


def run(options: argparse.Namespace, threads: int) -> None:
    """All rows, printed as they come; the results are written even if it is stopped."""
    from cases import measure, roof, table

    if options.cpu_time:
        measure.Clock.now = staticmethod(time.process_time)
    found = roof.measure(threads)
    facts = _facts(options, threads, found)
    print(f"# weft on {facts['cpu']} ({facts['arch']}), {threads} threads, {facts['date']}, commit {facts['commit']}\n")
    print(", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    for name in (n for n in peers.NAMES if peers.find(n) is None):
        print(f"\n{name} is left out: {peers.missing[name]}")
    print(
        f"\nRoof: {found.flops / 1e9:.1f} GFLOP/s (fma), {found.read / 1e9:.1f} GB/s read, {found.triad / 1e9:.1f} GB/s triad"
    )
    rows: list[measure.Row] = []
    try:
        for row in _rows(options, threads, found.least_seconds):
            if not rows or rows[-1].group != row.group:
                print(f"\n## {row.group}\n\n{table.HEAD}")
            rows.append(row)
            print(table.line(row), flush=True)
    finally:
        facts["seconds"] = round(time.perf_counter() - START)
        print(f"\n## Summary ({facts['seconds']} s)\n\n{table.summary(rows)}", flush=True)
        _write({**facts, "rows": [asdict(r) for r in rows]}, options, threads)


def _rows(options: argparse.Namespace, threads: int, least_seconds: Callable[..., float]) -> Iterator[Any]:
    from cases import alone, calls, contended, convolutions, inference, mapped, measure, products, training

    def wanted(group: str, name: str) -> bool:
        text = f"{group}: {name}".lower()
        return not options.only or any(word.lower() in text for word in options.only)

    effort = measure.QUICK if options.quick else measure.FULL
    for kind in (
        products.cases(),
        convolutions.cases(),
        training.cases(options.quick),
        inference.cases(options.quick, threads),
        calls.cases(options.quick),
        mapped.cases(options.quick),
        contended.cases(options.quick) if threads > 1 else (),
    ):
        for case in kind:
            if wanted(case.group, case.name) and (case.quick or not options.quick):
                case.contestants = {n: m for n, m in case.contestants.items() if _is_there(n)}
                yield measure.run(case, effort, least_seconds)
    yield from alone.rows(options.quick, wanted)
    if threads > 1 and wanted(inference.ONE_CORE, "AlexNet"):
        yield from _one_core(options.quick, inference.ONE_CORE)


def _is_there(contestant: str) -> bool:
    library = contestant.split()[0]
    return library == "weft" or (
        peers.find(library) is not None and (library != "onnxruntime" or peers.find("onnx") is not None)
    )


def _one_core(quick: bool, group: str) -> Iterator[Any]:
    """A run of its own on one core: libraries do not let go of threads they have started."""
    from cases import measure

    with tempfile.TemporaryDirectory() as folder:
        results = f"{folder}/results.json"
        command = [sys.executable, __file__, "--threads", "1", "--only", group, "--json", results]
        done = subprocess.run([*command, *(["--quick"] if quick else [])], capture_output=True, text=True, check=False)
        if done.returncode:
            yield measure.Row(group, "AlexNet", failures={"all": (done.stderr.splitlines() or ["it died"])[-1]})
            return
        for row in json.loads(Path(results).read_text())["rows"]:
            yield measure.Row(**row)


def _facts(options: argparse.Namespace, threads: int, found: Any) -> dict[str, Any]:
    from weft.compiler.cpu.target import host

    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "arch": host().arch,
        "cpu": _cpu_name(host().cpu),
        "vector_bits": host().vector_bits,
        "system": platform.platform(),
        "python": platform.python_version(),
        "threads": threads,
        "quick": options.quick,
        "clock": "CPU time" if options.cpu_time else "time",
        "versions": peers.versions(),
        "roof": asdict(found),
    }


def _cpu_name(otherwise: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return otherwise
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), otherwise)


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(HERE), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + (" with changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _write(results: dict[str, Any], options: argparse.Namespace, threads: int) -> None:
    """Into the file asked for. Without one, only a full run is kept, so that a partial one does not replace it."""
    path = options.json
    if path is None:
        if options.only or options.quick or options.cpu_time:
            return
        from weft.compiler.cpu.target import host

        path = HERE / "results" / f"cpu-{host().cpu}-{threads}-threads.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwritten: {path}")


START = time.perf_counter()

if __name__ == "__main__":
    main()
