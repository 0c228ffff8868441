"""Whole trainings on MNIST, weft and torch side by side: from the start of a process to the accuracy on the test images.

    python benchmarks/runs.py --data DIR                    both networks, three rounds
    python benchmarks/runs.py --data DIR --quick            one epoch, one round
    python benchmarks/runs.py --data DIR --models lenet5    one network
    python benchmarks/runs.py --data DIR --only weft eager  only the contestants whose name holds one of these words

DIR has the four idx files of MNIST, packed or not. Every turn is a fresh process with empty caches for code. A full run
writes benchmarks/results/runs-<cpu>-<n>-threads.json; --json names another file. benchmarks/README.md has the method.
"""

from __future__ import annotations

import argparse
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
from itertools import pairwise
from pathlib import Path
from typing import Any

import cpu
from cases import peers

BATCH, PEAK = 64, 3e-3  # of the one-cycle rate of Adam
MEAN, STD, EXAMPLES = 0.1307, 0.3081, 60_000  # of the training images
TRAIN = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
WEFT = f"validation=0 batch={BATCH} optimizer=adam schedule=one_cycle rate={PEAK} json=yes"
LEAST = 0.95  # the accuracy of one that has learned; a run below it is no result
HEAD = "| contestant | whole run | an epoch | test accuracy | times weft's |\n|---|---|---|---|---|"


@dataclass(frozen=True)
class Model:
    """A network, how long it is trained, and how torch writes it."""

    epochs: int
    parameters: int
    layers: Callable[[], list[Any]]
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
    """One network: all turns of the contestants, and what follows for those that came through all rounds."""

    model: str
    epochs: int
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    results: dict[str, dict[str, float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def main() -> None:
    options = _options()
    threads = peers.settle(options.threads)  # before any library is loaded
    if options.alone:
        model, contestant, epochs, seed = options.alone
        print(json.dumps(torch_turn(MODELS[model], contestant, options.data, int(epochs), int(seed))))
    else:
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


def run(options: argparse.Namespace, threads: int) -> None:
    """All networks, each printed when it is done; the results are written even if it is stopped."""
    start, facts = time.perf_counter(), _facts(options, threads)
    print(f"# Trainings on {facts['cpu']}, {threads} threads, {facts['date']}, commit {facts['commit']}\n")
    print(", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    if peers.find("torch") is None:  # if it is there, its files are in memory now, as those of weft are
        print(f"\ntorch is left out: {peers.missing['torch']}")
    rows: list[Row] = []
    try:
        for name in options.models:
            rows.append(_row(name, options, threads))
            print("\n".join(_lines(rows[-1])), flush=True)
    finally:
        facts["seconds"] = round(time.perf_counter() - start)
        _write({**facts, "rows": [asdict(r) for r in rows]}, options)


def _row(name: str, options: argparse.Namespace, threads: int) -> Row:
    row = Row(name, 1 if options.quick else MODELS[name].epochs)
    names = _contestants(MODELS[name], options.only)
    for seed in range(options.rounds):
        for contestant in (n for n in names if n not in row.failures):
            try:
                turn = _turn(name, contestant, options.data, row.epochs, seed, threads)
            except Failed as why:
                row.failures[contestant] = str(why)
                continue
            row.turns.setdefault(contestant, []).append(turn)
            print(f"{name}, round {seed + 1}, {contestant}: {turn.seconds:.1f} s", file=sys.stderr, flush=True)
    good = {n: turns for n, turns in row.turns.items() if n not in row.failures}
    row.results = {n: _summed_up(turns, good.get("weft", [])) for n, turns in good.items()}
    return row


def _contestants(model: Model, only: list[str]) -> list[str]:
    layouts = ("", " last") if model.images else ("",)
    peer_names = [f"torch {how}{layout}" for layout in layouts for how in ("eager", "compiled")]
    names = ["weft", *(peer_names if peers.find("torch") is not None else [])]
    return [n for n in names if not only or any(word.lower() in n for word in only)]


class Failed(Exception):
    """A contestant could not do its work: that is a result too."""


def _turn(name: str, contestant: str, data: Path, epochs: int, seed: int, threads: int) -> Turn:
    """One training in a fresh process, in an empty folder, with nothing compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {"WEFT_CACHE": f"{folder}/weft", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch"}
        if contestant == "weft":
            command = [*f"-m weft train mnist model={name} epochs={epochs} {WEFT} seed={seed}".split(), f"from={data}"]
        else:
            command = [str(Path(__file__).resolve()), "--data", str(data), "--threads", str(threads)]
            command += ["--alone", name, contestant, str(epochs), str(seed)]
        given: Any = {"cwd": folder, "env": {**os.environ, **caches}, "capture_output": True, "text": True}
        start = time.perf_counter()
        done = subprocess.run([sys.executable, *command], check=False, **given)
        seconds = time.perf_counter() - start
        if done.returncode:
            raise Failed((done.stderr.strip().splitlines() or ["it died"])[-1][:300])
        told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found = _told_by_weft(told, Path(folder)) if contestant == "weft" else told[-1]
    return _checked(Turn(seconds, **found), MODELS[name])


def _told_by_weft(lines: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    first, *rows, ended = lines
    at = [0.0, *(row["seconds"] for row in rows)]  # since the training began
    parameters = json.loads((folder / first["folder"] / "summary.json").read_text())["parameters"]
    epochs, steps = [after - before for before, after in pairwise(at)], int(rows[-1]["steps"])
    return {"epochs": epochs, "accuracy": ended["accuracy"], "steps": steps, "parameters": parameters}


def _checked(turn: Turn, model: Model) -> Turn:
    """Was it the same work, and did it work?"""
    if (turn.parameters, turn.steps) != (model.parameters, len(turn.epochs) * (EXAMPLES // BATCH)):
        raise Failed(f"other work: {turn.parameters} parameters, {turn.steps} steps in {len(turn.epochs)} epochs")
    if not turn.accuracy >= LEAST:
        raise Failed(f"it has not learned: {100 * turn.accuracy:.2f} % of the test images are right")
    return turn


def _summed_up(turns: list[Turn], ours: list[Turn]) -> dict[str, float]:
    """Medians over rounds and epochs; the accuracy is a mean, since each round has its own seed."""
    seconds, accuracy = statistics.median(t.seconds for t in turns), statistics.mean(t.accuracy for t in turns)
    found = {"seconds": seconds, "epoch": statistics.median(e for t in turns for e in t.epochs), "accuracy": accuracy}
    ratios = [t.seconds / w.seconds for t, w in zip(turns, ours, strict=False)]  # none without weft
    return {**found, "ratio": statistics.median(ratios)} if ratios else found


def _lines(row: Row) -> Iterator[str]:
    yield f"\n## {row.model}, epochs: {row.epochs}\n\n{HEAD}"
    for name, found in row.results.items():
        ratio = f"{found['ratio']:.2f}" if "ratio" in found else "-"
        yield f"| {name} | {found['seconds']:.1f} s | {found['epoch']:.2f} s | {100 * found['accuracy']:.2f} % | {ratio} |"
    for name, why in row.failures.items():
        yield f"| {name} | **{why.replace('|', '/')}** | | | |"


def _facts(options: argparse.Namespace, threads: int) -> dict[str, Any]:
    from weft.compiler.cpu.target import host

    date = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    return {
        "date": date, "commit": cpu._commit(), "arch": host().arch, "target": host().cpu, "cpu": cpu._cpu_name(host().cpu),
        "system": platform.platform(), "python": platform.python_version(), "threads": threads, "batch": BATCH, "rate": PEAK,
        "quick": options.quick, "rounds": options.rounds, "versions": peers.versions(),
    }  # fmt: skip


def _write(results: dict[str, Any], options: argparse.Namespace) -> None:
    """Into the file asked for. Without one, only a full run is kept, so that a partial one does not replace it."""
    path = options.json
    if path is None:
        if options.only or options.quick or len(results["rows"]) < len(MODELS):
            return
        path = cpu.HERE / "results" / f"runs-{results['target']}-{results['threads']}-threads.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwritten: {path}")


# --- in the process of its own: what a careful user of torch writes -----------------------------------------------------------


def torch_turn(model: Model, contestant: str, data: Path, epochs: int, seed: int) -> dict[str, Any]:
    """Train and measure; all data is in memory, as floats that are normalised once."""
    torch = peers.need("torch")
    torch.manual_seed(seed)
    (x, y), (test_x, test_y) = (_tensors(data, *stems) for stems in (TRAIN, TEST))
    net, steps, seconds = torch.nn.Sequential(*model.layers()), len(x) // BATCH, []
    if contestant.endswith("last"):
        net = net.to(memory_format=torch.channels_last)  # images of one channel are laid out both ways at once
    optimizer = torch.optim.Adam(net.parameters(), lr=PEAK, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK, total_steps=steps * epochs, cycle_momentum=False)

    def loss(x: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(net(x), y)

    if "compiled" in contestant:
        loss = torch.compile(loss, dynamic=False)
    for _ in range(epochs):
        start = time.perf_counter()
        for rows in torch.randperm(len(x))[: steps * BATCH].split(BATCH):
            optimizer.zero_grad(set_to_none=True)
            loss(x.index_select(0, rows), y.index_select(0, rows)).backward()
            optimizer.step()
            schedule.step()
        seconds.append(time.perf_counter() - start)
    with torch.inference_mode():
        guesses = torch.cat([net(part).argmax(1) for part in test_x.split(1000)])
    right, parameters = float((guesses == test_y).float().mean()), sum(p.numel() for p in net.parameters())
    return {"epochs": seconds, "accuracy": right, "steps": schedule.last_epoch, "parameters": parameters}


def _tensors(folder: Path, *stems: str) -> list[Any]:
    """Images and labels; what comes before the bytes is 16 and 8 bytes long."""
    torch, found = peers.need("torch"), []
    for path, header in zip((_file(folder, stem) for stem in stems), (16, 8), strict=True):
        assert path is not None
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        found.append(torch.frombuffer(bytearray(raw), dtype=torch.uint8, offset=header))
    return [found[0].view(-1, 1, 28, 28).float().div_(255 * STD).sub_(MEAN / STD), found[1].long()]


def lenet5() -> list[Any]:
    """As weft.zoo has it: Caffe's."""
    nn = peers.need("torch").nn
    first, second = _begun(nn.Conv2d(1, 20, 5), "linear"), _begun(nn.Conv2d(20, 50, 5), "linear")
    hidden, last = _begun(nn.Linear(800, 500), "linear"), _begun(nn.Linear(500, 10), "linear")
    return [first, nn.MaxPool2d(2), second, nn.MaxPool2d(2), nn.Flatten(), hidden, nn.ReLU(), last]


def lenet_300_100() -> list[Any]:
    nn = peers.need("torch").nn
    first, second, last = nn.Linear(784, 300), nn.Linear(300, 100), nn.Linear(100, 10)
    return [nn.Flatten(), _begun(first, "relu"), nn.ReLU(), _begun(second, "relu"), nn.ReLU(), _begun(last, "glorot")]


def _begun(layer: Any, how: str) -> Any:
    """With first weights as in weft's network: torch's own are smaller, and its biases not zero."""
    init = peers.need("torch").nn.init
    init.xavier_uniform_(layer.weight) if how == "glorot" else init.kaiming_uniform_(layer.weight, nonlinearity=how)
    init.zeros_(layer.bias)
    return layer


MODELS = {
    "lenet5": Model(5, 431_080, lenet5, images=True),
    "lenet_300_100": Model(10, 266_610, lenet_300_100),
}

if __name__ == "__main__":
    main()
