"""Whole trainings on MNIST, weft and torch side by side: from the start of a process to the accuracy on the test images.

    python benchmarks/runs.py --data DIR                    both networks, three rounds
    python benchmarks/runs.py --data DIR --quick            one epoch, one round
    python benchmarks/runs.py --data DIR --models lenet5    one network
    python benchmarks/runs.py --data DIR --only weft eager  only the contestants whose name holds one of these words
    python benchmarks/runs.py --data DIR --threads 1        on one core

DIR has the four idx files of MNIST, packed or not. Every turn is a fresh process with empty caches for code, so that
imports and compilation count. A full run writes benchmarks/results/runs-<cpu>-<n>-threads.json; --json names another
file. See benchmarks/README.md for the method.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cpu
from cases import peers

BATCH, PEAK = 64, 3e-3  # of the one-cycle rate of Adam
MEAN, STD = 0.1307, 0.3081  # of the training images
TRAIN, TEST = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"), ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
LEAST = 0.95  # the accuracy of one that has learned; a run below it is no result
HEAD = "| contestant | whole run | an epoch | test accuracy | times weft's |\n|---|---|---|---|---|"


@dataclass(frozen=True)
class Model:
    """A network, how long it is trained, and how torch writes it."""

    title: str
    epochs: int
    parameters: int
    make: Callable[[], Any]
    images: bool = False  # has convolutions: torch may lay out images in two ways


@dataclass
class Turn:
    """What one process did."""

    seconds: float  # from its start to its end
    epochs: list[float]  # the seconds of each; compilation is part of the first
    accuracy: float
    steps: int
    parameters: int


@dataclass
class Row:
    """One network: all turns of all contestants, and what follows from them."""

    model: str
    title: str
    epochs: int
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # medians over rounds
    epoch: dict[str, float] = field(default_factory=dict)  # medians over all epochs of all rounds
    accuracy: dict[str, float] = field(default_factory=dict)  # means over rounds, each with its own seed
    ratios: dict[str, float] = field(default_factory=dict)  # a peer's time / weft's, medians over rounds
    failures: dict[str, str] = field(default_factory=dict)


def main() -> None:
    options = _options()
    threads = peers.settle(options.threads)  # before any library is loaded
    if options.alone:
        model, contestant, epochs, seed = options.alone
        print(json.dumps(torch_turn(MODELS[model], contestant, options.data, int(epochs), int(seed))))
        return
    run(options, threads)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder with the idx files of MNIST")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS), help="which networks")
    parser.add_argument("--only", nargs="+", default=[], help="contestants whose name holds one of these")
    parser.add_argument("--rounds", type=int, default=0, help="turns of each contestant; 0: 3, or 1 in a quick run")
    parser.add_argument("--quick", action="store_true", help="one epoch")
    parser.add_argument("--threads", type=int, default=0, help="how many cores; 0: all this process may use")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--alone", nargs=4, help=argparse.SUPPRESS)  # one turn of torch, in a process of its own
    options = parser.parse_args()
    options.data, options.rounds = options.data.resolve(), options.rounds or (1 if options.quick else 3)
    missing = [stem for stem in (*TRAIN, *TEST) if _file(options.data, stem) is None]
    if missing:
        parser.error(f"{options.data} lacks {', '.join(missing)} (packed with gzip or not).")
    return options


def _file(folder: Path, stem: str) -> Path | None:
    return next((path for path in (folder / f"{stem}.gz", folder / stem) if path.is_file()), None)


# --- in the process that asks ---------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace, threads: int) -> None:
    """All networks, each printed when it is done; the results are written even if it is stopped."""
    start, facts = time.perf_counter(), _facts(options, threads)
    print(f"# Trainings on {facts['cpu']} ({facts['arch']}), {threads} threads, {facts['date']}, commit {facts['commit']}")
    print("\n" + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    if peers.find("torch") is None:  # if it is there, its files are in memory now, as those of weft are
        print(f"\ntorch is left out: {peers.missing['torch']}")
    rows: list[Row] = []
    try:
        for name in options.models:
            rows.append(_row(name, options, threads))
            print(f"\n## {rows[-1].title}, epochs: {rows[-1].epochs}\n\n{HEAD}")
            print("\n".join(_lines(rows[-1])), flush=True)
    finally:
        facts["seconds"] = round(time.perf_counter() - start)
        _write({**facts, "rows": [asdict(r) for r in rows]}, options, threads)


def _row(name: str, options: argparse.Namespace, threads: int) -> Row:
    model = MODELS[name]
    row = Row(name, model.title, 1 if options.quick else model.epochs)
    for seed in range(options.rounds):
        for contestant in _contestants(model, options.only):
            if contestant in row.failures:
                continue
            try:
                turn = _turn(name, contestant, options.data, row.epochs, seed, threads)
            except Failed as why:
                row.failures[contestant] = str(why)
                continue
            row.turns.setdefault(contestant, []).append(turn)
            about = f"{turn.seconds:.1f} s, {100 * turn.accuracy:.2f} %"
            print(f"{name}, round {seed + 1}, {contestant}: {about}", file=sys.stderr, flush=True)
    _sum_up(row)
    return row


def _contestants(model: Model, only: list[str]) -> Iterator[str]:
    names = ["weft"]
    if peers.find("torch") is not None:
        names += ["torch eager", "torch compiled"]
        names += ["torch eager last", "torch compiled last"] if model.images else []
    return (n for n in names if not only or any(word.lower() in n for word in only))


class Failed(Exception):
    """A contestant could not do its work: that is a result too."""


def _turn(name: str, contestant: str, data: Path, epochs: int, seed: int, threads: int) -> Turn:
    """One training in a fresh process, in an empty folder, with nothing compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"WEFT_CACHE": f"{folder}/weft", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch"}
        if contestant == "weft":
            command = ["-m", "weft", "train", "mnist", f"from={data}", f"model={name}", f"epochs={epochs}", "validation=0"]
            command += [f"batch={BATCH}", "optimizer=adam", "schedule=one_cycle", f"rate={PEAK}", f"seed={seed}", "json=yes"]
        else:
            command = [str(Path(__file__).resolve()), "--data", str(data), "--threads", str(threads)]
            command += ["--alone", name, contestant, str(epochs), str(seed)]
        settings = {**os.environ, **caches}
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *command], cwd=folder, env=settings, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - start
        if done.returncode:
            raise Failed((done.stderr.strip().splitlines() or ["it died"])[-1][:300])
        told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found = _told_by_weft(told, Path(folder)) if contestant == "weft" else told[-1]
    return _checked(Turn(seconds, **found), MODELS[name])


def _told_by_weft(lines: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    rows, ended = [line for line in lines if line["type"] == "epoch"], lines[-1]
    at = [0.0, *(row["seconds"] for row in rows)]  # since the training began
    run_folder = folder / next(line["folder"] for line in lines if line["type"] == "run")
    parameters = json.loads((run_folder / "summary.json").read_text())["parameters"]
    epochs = [after - before for before, after in zip(at, at[1:], strict=False)]
    return {
        "epochs": epochs, "accuracy": ended["accuracy"], "steps": int(rows[-1]["steps"]), "parameters": parameters
    }  # fmt: skip


def _checked(turn: Turn, model: Model) -> Turn:
    """Was it the same work, and did it work?"""
    wanted = (model.parameters, len(turn.epochs) * (60_000 // BATCH))
    if (turn.parameters, turn.steps) != wanted:
        raise Failed(f"other work: {turn.parameters} parameters and {turn.steps} steps, not {wanted[0]} and {wanted[1]}")
    if not turn.accuracy >= LEAST:
        raise Failed(f"it has not learned: {100 * turn.accuracy:.2f} % of the test images are right")
    return turn


def _sum_up(row: Row) -> None:
    """Medians of those that came through all rounds."""
    good = {n: turns for n, turns in row.turns.items() if n not in row.failures}
    for name, turns in good.items():
        row.seconds[name] = statistics.median(t.seconds for t in turns)
        row.epoch[name] = statistics.median(e for t in turns for e in t.epochs)
        row.accuracy[name] = statistics.mean(t.accuracy for t in turns)
        if "weft" in good:
            pairs = zip(turns, good["weft"], strict=True)
            row.ratios[name] = statistics.median(t.seconds / w.seconds for t, w in pairs)


def _lines(row: Row) -> Iterator[str]:
    from cases.table import amount

    for name, seconds in row.seconds.items():
        ratio = f"{row.ratios[name]:.2f}" if name in row.ratios else "-"
        times = f"{amount(seconds, 's')} | {amount(row.epoch[name], 's')}"
        yield f"| {name} | {times} | {100 * row.accuracy[name]:.2f} % | {ratio} |"
    for name, why in row.failures.items():
        yield f"| {name} | **{why.replace('|', '/')}** | | | |"


def _facts(options: argparse.Namespace, threads: int) -> dict[str, Any]:
    from weft.compiler.llvm.target import host

    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": cpu._commit(),
        "arch": host().arch,
        "cpu": cpu._cpu_name(host().cpu),
        "system": platform.platform(),
        "python": platform.python_version(),
        "threads": threads,
        "quick": options.quick,
        "rounds": options.rounds,
        "batch": BATCH,
        "rate": PEAK,
        "versions": {n: v for n, v in peers.versions().items() if n in ("weft", "numpy", "llvmlite", "torch")},
    }


def _write(results: dict[str, Any], options: argparse.Namespace, threads: int) -> None:
    """Into the file asked for. Without one, only a full run is kept, so that a partial one does not replace it."""
    path = options.json
    if path is None:
        if options.only or options.quick or len(results["rows"]) < len(MODELS):
            return
        from weft.compiler.llvm.target import host

        path = cpu.HERE / "results" / f"runs-{host().cpu}-{threads}-threads.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwritten: {path}")


# --- in the process of its own: what a careful user of torch writes -----------------------------------------------------------


def torch_turn(model: Model, contestant: str, data: Path, epochs: int, seed: int) -> dict[str, Any]:
    """Train and measure; all data is in memory, as floats that are normalised once."""
    torch = peers.need("torch")
    torch.manual_seed(seed)
    (x, y), (test_x, test_y) = (_tensors(data, *stems) for stems in (TRAIN, TEST))
    net, steps = model.make(), len(x) // BATCH
    if contestant.endswith("last"):
        net = net.to(memory_format=torch.channels_last)
        x, test_x = (t.contiguous(memory_format=torch.channels_last) for t in (x, test_x))
    optimizer = torch.optim.Adam(net.parameters(), lr=PEAK, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK, total_steps=steps * epochs, cycle_momentum=False)

    def loss(x: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(net(x), y)

    if "compiled" in contestant:
        loss = torch.compile(loss, dynamic=False)
    seconds, done = [], 0
    for _ in range(epochs):
        start = time.perf_counter()
        for rows in torch.randperm(len(x))[: steps * BATCH].split(BATCH):
            optimizer.zero_grad(set_to_none=True)
            loss(x.index_select(0, rows), y.index_select(0, rows)).backward()
            optimizer.step()
            schedule.step()
            done += 1
        seconds.append(time.perf_counter() - start)
    with torch.inference_mode():
        parts = zip(test_x.split(1000), test_y.split(1000), strict=True)
        right = sum(int((net(a).argmax(1) == b).sum()) for a, b in parts)
    parameters = sum(p.numel() for p in net.parameters())
    return {"epochs": seconds, "accuracy": right / len(test_y), "steps": done, "parameters": parameters}


def _tensors(folder: Path, images: str, labels: str) -> tuple[Any, Any]:
    torch = peers.need("torch")

    def content(stem: str, header: int) -> Any:
        path = _file(folder, stem)
        assert path is not None
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8, offset=header)

    x = content(images, 16).view(-1, 1, 28, 28).float()
    return x.div_(255 * STD).sub_(MEAN / STD), content(labels, 8).long()


def lenet5() -> Any:
    """As weft.zoo has it: Caffe's."""
    nn = peers.need("torch").nn
    first, second = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5)
    hidden, last = nn.Linear(800, 500), nn.Linear(500, 10)
    for layer in (first, second, hidden, last):
        _begin(layer, lambda w: nn.init.kaiming_uniform_(w, nonlinearity="linear"))
    return nn.Sequential(first, nn.MaxPool2d(2), second, nn.MaxPool2d(2), nn.Flatten(), hidden, nn.ReLU(), last)


def lenet_300_100() -> Any:
    nn = peers.need("torch").nn
    first, second, last = nn.Linear(784, 300), nn.Linear(300, 100), nn.Linear(100, 10)
    for layer in (first, second):
        _begin(layer, lambda w: nn.init.kaiming_uniform_(w, nonlinearity="relu"))
    _begin(last, nn.init.xavier_uniform_)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), last)


def _begin(layer: Any, weights: Callable[[Any], Any]) -> None:
    """The first weights as in weft's network: torch's own are smaller, and its biases not zero."""
    weights(layer.weight)
    peers.need("torch").nn.init.zeros_(layer.bias)


MODELS = {
    "lenet5": Model("LeNet-5 with 20 and 50 channels", 5, 431_080, lenet5, images=True),
    "lenet_300_100": Model("LeNet-300-100", 10, 266_610, lenet_300_100),
}

if __name__ == "__main__":
    main()
