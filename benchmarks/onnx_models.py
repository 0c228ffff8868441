"""Networks of the zoo, the same networks exported to ONNX and imported again, and ONNX Runtime on the same files.

    python benchmarks/onnx_models.py                       batch 1, on one core and on all
    python benchmarks/onnx_models.py --batch 1 8           two batch sizes
    python benchmarks/onnx_models.py --only resnet         only networks whose names hold one of these words
    python benchmarks/onnx_models.py --threads 1           only on one core; 0: on all
    python benchmarks/onnx_models.py --cpu-time            on one core and in CPU time: for a machine that others use too
    python benchmarks/onnx_models.py --plans               no times: kernels, calls, operations and bytes of both programs

Contestants take turns in one process, a process for each number of cores; times are medians, ratios are medians of the ratios within
rounds (see benchmarks/README.md). "import / zoo" below 1.03 is the goal; "runtime / import" above 1 says that weft is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cases import peers

HERE = Path(__file__).resolve().parent
NETWORKS = ("resnet50", "mobilenet_v2", "squeezenet1_1", "vit_tiny")
ZOO, IMPORTED, RUNTIME = "weft zoo", "weft imported", "onnxruntime"  # names as cases/measure.py expects them


def main() -> None:
    options = _options()
    if options.cpu_time:
        options.threads = [1]
    if len(options.threads) > 1:
        _each_in_a_process(options)
        return
    threads = peers.settle(options.threads[0])  # before any library is loaded
    rows = [
        (_plans if options.plans else _times)(name, batch, threads, options)
        for name in NETWORKS
        if not options.only or any(word in name for word in options.only)
        for batch in options.batch
    ]
    if options.json:
        options.json.write_text(json.dumps({"versions": peers.versions(), "rows": rows}, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 0], help="numbers of cores; 0: all")
    parser.add_argument("--only", nargs="+", default=[], help="words of the names of networks")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--cpu-time", action="store_true", help="one core, CPU time")
    parser.add_argument("--plans", action="store_true", help="compare the programs instead of their times")
    parser.add_argument("--json", type=Path, help="where the results go")
    return parser.parse_args()


def _each_in_a_process(options: argparse.Namespace) -> None:
    """Libraries do not let go of threads that they have started."""
    words = [w for flag in ("batch", "only") if getattr(options, flag) for w in (f"--{flag}", *getattr(options, flag))]
    words += ["--rounds", options.rounds] + (["--plans"] if options.plans else [])
    found: dict[str, Any] = {"rows": []}
    with tempfile.TemporaryDirectory() as folder:
        for threads in options.threads:
            path = Path(folder) / f"{threads}.json"
            command = [sys.executable, __file__, "--threads", str(threads), "--json", str(path), *map(str, words)]
            subprocess.run(command, check=True)
            part = json.loads(path.read_text())
            found = {**part, "rows": found["rows"] + part["rows"]}
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def _twins(name: str, batch: int, folder: str) -> tuple[dict[str, Any], Any, Path]:
    """The compiled network and its import, an example, and the file."""
    import numpy as np

    import weft
    from weft import zoo

    rng, path = np.random.default_rng(0), Path(folder) / f"{name}.onnx"
    x = rng.normal(size=(batch, 3, 224, 224)).astype(np.float32)
    net = zoo.find(name)().eval()
    net(weft.asarray(x))  # parameters get their sizes
    for tensor_name, tensor in net.named_tensors().items():  # not zeros and ones, which could be special
        if tensor.ndim == 1 or not tensor.numpy().any():
            start = 1.0 if tensor_name.endswith("var") else tensor.numpy()
            tensor.assign(start + 0.1 * rng.random(tensor.shape).astype(np.float32))
    weft.onnx.save(path, net, weft.asarray(x))
    return {ZOO: weft.jit(net), IMPORTED: weft.jit(weft.load(path).eval())}, x, path


def _plans(name: str, batch: int, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """What the compiler made of both, which no other load on the machine changes."""
    with tempfile.TemporaryDirectory() as folder:
        twins, x, _ = _twins(name, batch, folder)
        row: dict[str, Any] = {"network": name, "batch": batch, "threads": threads}
        for which, twin in twins.items():
            twin(x)
            found = twin.explain(x)
            row[which] = {
                "kernels": found.kernels, "calls": len(found.rows), "operations": sum(r.flops for r in found.rows),
                "bytes": sum(r.nbytes for r in found.rows), "arena": found.memory.arena, "inputs": found.memory.inputs,
            }  # fmt: skip
            print(
                f"{name:16}{batch:3} {which:15}", *(f"{key} {value:,}" for key, value in row[which].items()), flush=True
            )
        return row


def _times(name: str, batch: int, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    from cases import measure

    if options.cpu_time:
        measure.Clock.now = staticmethod(time.process_time)
    with tempfile.TemporaryDirectory() as folder:
        twins, x, path = _twins(name, batch, folder)
        case = measure.Case("imported", name, {which: _ready(twin, x) for which, twin in twins.items()})
        if peers.find(RUNTIME) is not None:
            case.contestants[RUNTIME] = lambda: _session(path, x)
        measured = _rounds(measure, case, options.rounds)
    row = {"network": name, "batch": batch, "threads": threads, **measured}
    print(_line(row), flush=True)
    return row


def _ready(twin: Any, x: Any) -> Any:
    from cases.measure import Ready

    return lambda: Ready(lambda: twin(x).realize(), lambda: [twin(x).numpy()])


def _session(path: Path, x: Any) -> Any:
    from cases.measure import Ready

    runtime = peers.need(RUNTIME)
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = int(os.environ["OMP_NUM_THREADS"]), 1
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return Ready(lambda: session.run(None, {"input": x}), lambda: session.run(None, {"input": x}))


def _rounds(measure: Any, case: Any, rounds: int) -> dict[str, Any]:
    """Medians of the times, and of the ratios within rounds."""
    ready = {name: make() for name, make in case.contestants.items()}
    row = measure.Row(case.group, case.name)
    measure.compare(ready, row, case.allowed)
    times = measure.time_in_rounds(ready, measure.Effort(600.0, rounds, rounds))

    def ratio(a: str, b: str) -> float | None:
        return statistics.median(x / y for x, y in zip(times[a], times[b], strict=True)) if a in times else None

    return {
        "seconds": {n: statistics.median(t) for n, t in times.items()}, "least": {n: min(t) for n, t in times.items()},
        "import / zoo": ratio(IMPORTED, ZOO), "runtime / import": ratio(RUNTIME, IMPORTED),
        "differences": row.differences, "failures": row.failures,
    }  # fmt: skip


def _line(row: dict[str, Any]) -> str:
    texts = [f"{n} {1000 * s:.2f} ms (least {1000 * row['least'][n]:.2f})" for n, s in row["seconds"].items()]
    ratios = [f"{n} {row[n]:.3f}" for n in ("import / zoo", "runtime / import") if row[n] is not None]
    failed = [f"{n}: {why}" for n, why in row["failures"].items()]
    return f"{row['network']:14} batch {row['batch']} threads {row['threads']}  " + ", ".join(
        [*texts, *ratios, *failed]
    )


if __name__ == "__main__":
    main()
