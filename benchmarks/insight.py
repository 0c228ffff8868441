"""Measures six networks on one device for docs/insight.md: layers, throughput, energy, overhead of profiling and memory, in one file.

    python -m benchmarks.insight save=benchmarks/results/insight-h200.json device=cuda
    python -m benchmarks.insight save=benchmarks/results/insight-cascadelake-2-threads.json threads=2 seconds=0.5
    python -m benchmarks.insight save=... parts=profile,infer networks=lenet5,gpt batches=1,16,64 until=200

The file is written after each measurement, and those that it has are not repeated: a run that was stopped, or that `until=` seconds ended, is continued by the
same command. `benchmarks/insight_page.py` makes the tables and pictures of the page from such files. Parts, in their order:

- profile: the kernels of inference at batch 16, and what the clock between them costs
- infer: throughput, latency and energy of inference for each batch size, until memory or a call of 10 seconds ends it
- training: forward, backward and update of a training step at batch 16
- train: throughput and energy of training steps for each batch size
- memory: the forecast of a training step beside what is allocated
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import weft
from benchmarks.memory import forecast_bytes
from weft.errors import WeftError
from weft.insight import idle_power, profile, throughput
from weft.insight.counter_error import CounterError
from weft.insight.energy_counters import counter_of
from weft.insight.machines import processor_name
from weft.insight.memory_measure import measured_memory
from weft.insight.throughput import LONGEST
from weft.jobs.device import on
from weft.jobs.profiles.subject import ProfileSubject, find_subject
from weft.knobs import knobs
from weft.runtime import device as find_device
from weft.runtime.free_memory import SHARE, free_bytes, size_text
from weft.runtime.native import thread_count

T = TypeVar("T")
NETWORKS = "lenet5,alexnet,resnet50,mobilenet_v2,char_lstm,gpt"
PARTS = ("profile", "infer", "training", "train", "memory")
ROWS = ("infer", "train")  # parts that have a row for each batch size
DEFAULTS = {
    "save": "",
    "device": "cpu",
    "threads": "0",  # all cores
    "networks": NETWORKS,
    "parts": ",".join(PARTS),
    "batch": "16",  # of profiles
    "batches": "1,2,4,8,16,32,64,128,256,512,1024",
    "seconds": "1",  # in which each batch size is timed
    "repeats": "0",  # runs of a profile; 0: as many as half a second allows
    "until": "1e9",  # seconds after which no measurement begins
}


@dataclass
class Measurement:
    """A file that grows."""

    path: Path
    found: dict[str, Any]

    @classmethod
    def begun(cls, path: str) -> Measurement:
        """The file with what it has; a new one otherwise."""
        known = json.loads(Path(path).read_text()) if Path(path).is_file() else {"networks": {}}
        return cls(Path(path), known)

    def add(self, network: str, part: str, make: Callable[[], Any]) -> None:
        """Measure a part that is not there yet. What fails is kept as a note."""
        known = self.found["networks"].setdefault(network, {})
        if part not in known:
            known[part] = self._measured(f"{network}, {part}", make)
            self.write()

    def add_row(self, network: str, part: str, batch: int, make: Callable[[], dict[str, Any]]) -> None:
        """Measure a batch size that is not there yet, unless a smaller one was the last that is possible."""
        rows = self.found["networks"].setdefault(network, {}).setdefault(part, [])
        smaller = [row for row in rows if row["batch"] < batch]
        if any(row["batch"] == batch for row in rows) or any("note" in row for row in smaller):
            return
        longest = max((row["p50"] for row in smaller), default=0.0)
        if longest > LONGEST:
            rows.append({"batch": batch, "note": f"not tried: a smaller batch takes {longest:.0f} s"})
        else:
            rows.append({"batch": batch} | self._measured(f"{network}, {part}, batch {batch}", make))
        rows.sort(key=lambda row: row["batch"])
        self.write()

    def _measured(self, title: str, make: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        try:
            found = make()
        except WeftError as error:
            found = {"note": error.message}
        print(f"{title}: {time.perf_counter() - begin:.1f} s", flush=True)
        return found

    def write(self) -> None:
        """One line for each part of each network: changes of a part are seen as such."""
        about = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in self.found.items() if name != "networks"]
        networks = [
            f"{json.dumps(name)}: {{\n  "
            + ",\n  ".join(f"{json.dumps(part)}: {json.dumps(one)}" for part, one in parts.items())
            + "}"
            for name, parts in self.found["networks"].items()
        ]
        self.path.write_text("{" + ",\n".join([*about, '"networks": {\n ' + ",\n ".join(networks)]) + "}}\n")


def about(batch: int, seconds: float) -> dict[str, Any]:
    """What it was measured on, with the power that the device takes without work, where there is a counter."""
    device = find_device()
    idle, source = None, ""
    try:
        counter = counter_of(device)
        source = counter.source
        counter.close()
        idle = idle_power(device)
    except CounterError as error:
        source = str(error)
    return {
        "weft": weft.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device.about(),
        "kind": "gpu" if device.is_accelerator else "cpu",
        "processor": processor_name(),
        "threads": thread_count(),
        "batch": batch,
        "seconds": seconds,
        "energy": source,
        "idle_watts": idle,
    }


def measured_profile(subject: ProfileSubject, batch: int, repeats: int | None) -> dict[str, Any]:
    """Inference, kernel by kernel: what pictures are drawn from, and what is projected to other machines."""
    function, args = subject.step(batch)
    known: dict[str, Any] = json.loads(profile(function, *args, repeats=repeats).to_json())
    return shortened(known)


def measured_phases(subject: ProfileSubject, batch: int, repeats: int | None) -> dict[str, Any]:
    """A training step: forward, backward and update apart."""
    function, args = subject.step(batch, "train")
    found = profile(function, *args, repeats=repeats)
    names = ("seconds", "flops", "nbytes", "least", "joules")
    phases = {phase: {name: getattr(one, name) for name in names} for phase, one in found.by_phase.items()}
    return shortened(
        {"batch": batch, "seconds": found.seconds, "overhead": found.explanation.overhead, "phases": phases}
    )


def shortened(known: T) -> T:
    """The same with five digits of each number, and without what is not shown.

    >>> shortened({"seconds": 0.123456789, "sources": ["net.py:3"]})
    {'seconds': 0.12346, 'sources': []}
    """
    return cast(T, _shortened(known))


def _shortened(known: Any) -> Any:
    if isinstance(known, dict):
        left_out = {"sources": [], "worst": [], "made": 0.0}
        return {name: left_out[name] if name in left_out else _shortened(one) for name, one in known.items()}
    if isinstance(known, list):
        return [_shortened(one) for one in known]
    return float(f"{known:.5g}") if isinstance(known, float) else known


def measured_row(subject: ProfileSubject, batch: int, what: str, seconds: float) -> dict[str, Any]:
    """Throughput at one batch size, or why it has none."""
    function, args = subject.step(batch, what)
    free, needed = free_bytes(), function.memory(*args).total
    if free is not None and needed > SHARE * free:
        return {"note": f"needs {size_text(needed)}, more than is free"}
    found = throughput(lambda _: (function, args), [batch], what=what, seconds=seconds).to_dict()
    row: dict[str, Any] = found["rows"][0] if found["rows"] else {"note": "; ".join(found["notes"])}
    return shortened(row)


def compared_memory(subject: ProfileSubject, batch: int, repeats: int | None) -> dict[str, Any]:
    """A training step: the forecast from shapes and plans, and what its tensors really take."""
    forecast = forecast_bytes(subject, batch)
    found = measured_memory(lambda: subject.step(batch, "train"))
    return {"batch": batch, "forecast": forecast, "allocated": found.allocated, "how": found.how}


def measure(given: Mapping[str, str]) -> None:
    """One part of all networks before the next part, and one batch size before the next: little time measures what matters most."""
    begin, batch, seconds = time.perf_counter(), int(given["batch"]), float(given["seconds"])
    kept, networks = Measurement.begun(given["save"]), given["networks"].split(",")
    batches = [int(one) for one in given["batches"].split(",")]
    once = {"profile": measured_profile, "training": measured_phases, "memory": compared_memory}

    def run(part: str, name: str, size: int) -> None:
        if time.perf_counter() - begin > float(given["until"]):
            return
        if part in once:
            kept.add(name, part, lambda: once[part](find_subject(name), size, int(given["repeats"]) or None))
        else:
            kept.add_row(name, part, size, lambda: measured_row(find_subject(name), size, part, seconds))

    with on(given["device"]), knobs.set(threads=int(given["threads"]) or knobs.threads):
        kept.found = {**about(batch, seconds), **kept.found}
        for part in given["parts"].split(","):
            for size in batches if part in ROWS else [batch]:
                for name in networks:
                    run(part, name, size)


def main() -> None:
    given = DEFAULTS | dict(word.split("=", 1) for word in sys.argv[1:])
    unknown = [*(given.keys() - DEFAULTS.keys()), *(set(given["parts"].split(",")) - set(PARTS))]
    if unknown or not given["save"]:
        sys.exit(
            f"unknown: {', '.join(unknown)}" if unknown else "save=FILE.json is required: see the head of this file"
        )
    measure(given)


if __name__ == "__main__":
    main()
