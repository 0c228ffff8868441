"""The report of `weft profile`: layers, throughput, energy, cost and projections of a network, on one device or on two.

print(profile_report(find_subject("alexnet"), ProfileOptions(batches=(1, 16), machines=(("titan-x", None), ("here", None)))))
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...device_names import CPU, CUDA
from ...errors import UserError, WeftError
from ...insight.call_times import recorded_calls
from ...insight.energy_comparison import EnergyComparison, energy_comparison
from ...insight.machines import machine_like
from ...insight.profile import ProgramProfile, profile
from ...insight.profile_text import LAYERS, profile_text
from ...insight.published_ratios import PublishedRatio, published_ratios, published_text
from ...insight.regression import RegressionReport, compare_steps
from ...insight.roofline_plot import roofline_svg
from ...insight.side_by_side import MachineRow, check_machines, machine_text, side_by_side
from ...insight.throughput import MOST_BATCH, Step, throughput
from ...insight.throughput_plot import throughput_svg
from ...insight.throughput_table import ThroughputTable
from ...insight.trace_file import save_trace
from ...knobs import knobs
from ...ops.convert import asarray
from ...records import dataclass
from ...runtime import device as find_device
from ..device import profiled_on
from .subject import ProfileSubject

BATCH = 16  # examples of a step, unless said otherwise
DEVICES = {"both": (CPU, CUDA)}


@dataclass(frozen=True)
class ProfileOptions:
    """What is measured and how. `batches`: the layers are profiled at the largest one; None: 1, 2, 4, ... until memory ends."""

    batches: tuple[int, ...] | None = (BATCH,)
    what: str = "infer"
    device: str | None = None  # None: the default one; both: the CPU and the GPU, a missing one is noted
    threads: int | None = None
    machines: tuple[tuple[str, str | None], ...] = ()  # names and formats to project to; "here" is the measurement
    seconds: float = 1.0  # in which each batch size is timed
    most: int = MOST_BATCH
    examples: int | None = None  # of an epoch
    node_nm: float = 45  # process of modelled energy
    subtract_idle: bool = False

    @property
    def devices(self) -> tuple[str, ...]:
        name = self.device or knobs.device
        return DEVICES.get(name, (name,))


@dataclass(frozen=True)
class ProfileReport:
    """What was found. `print` it."""

    title: str
    what: str
    batch: int  # of the profiles
    profiles: Mapping[str, ProgramProfile]  # by device
    throughput: ThroughputTable
    machines: tuple[MachineRow, ...] = ()
    notes: tuple[str, ...] = field(default=())
    network: str = ""  # of the catalogue: see ProfileSubject

    @property
    def published(self) -> tuple[PublishedRatio, ...]:
        """What was published of inference on the machines that it was projected to."""
        return published_ratios(self.machines, self.network) if self.what == "infer" else ()

    def text(self, rows: int = LAYERS) -> str:
        """The report as text; `rows` limits the table of layers."""
        parts = [f"{self.title}, {self.what}, batch {self.batch}"]
        parts += [f"{name}: {profile_text(found, rows)}" for name, found in self.profiles.items()]
        parts.append(f"throughput\n{self.throughput}")
        if self.machines:
            parts.append(f"machines, batch {self.batch}\n{machine_text(self.machines)}")
        if self.published:
            parts.append(published_text(self.published, self.network, self.batch))
        parts += [f"note: {note}" for note in self.notes]
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON holds it."""
        return {
            "subject": self.title,
            "what": self.what,
            "batch": self.batch,
            "profiles": {name: json.loads(found.to_json()) for name, found in self.profiles.items()},
            "throughput": self.throughput.to_dict(),
            "machines": [row.to_dict() for row in self.machines],
            "published": [one.to_dict() for one in self.published],
            "notes": list(self.notes),
        }

    def save_plots(self, path: str | Path) -> list[Path]:
        """Write the roofline plot and, beside it, the plot of throughput; the files that were written."""
        path = Path(path)
        second = path.with_name(f"{path.stem}-throughput{path.suffix}")
        path.write_text(roofline_svg(dict(self.profiles)), encoding="utf-8")
        if not self.throughput.rows:
            return [path]
        second.write_text(throughput_svg(self.throughput.rows, f"{self.title}, {self.what}"), encoding="utf-8")
        return [path, second]

    def save_graphs(self, path: str | Path, by: str = "time") -> list[Path]:
        """Write the picture of the layers, coloured by time, energy or memory; of further devices beside it."""
        path = Path(path)
        files = {
            name: path if i == 0 else path.with_name(f"{path.stem}-{name.replace(':', '')}{path.suffix}")
            for i, name in enumerate(self.profiles)
        }
        for name, file in files.items():
            title = f"{self.title}, {self.what}, batch {self.batch}, {name}"
            file.write_text(self.profiles[name].graph_svg(by, title), encoding="utf-8")
        return list(files.values())

    def __str__(self) -> str:
        return self.text()


def profile_report(subject: ProfileSubject, options: ProfileOptions) -> ProfileReport:
    """Measure a subject on every device. A device that is missing or lost is a note, unless there is nothing else to report."""
    check_machines(options.machines)
    batches = _batches(subject, options)
    profiles: dict[str, ProgramProfile] = {}
    table, notes = ThroughputTable((), (), options.examples), list[str]()
    with knobs.set(threads=options.threads or knobs.threads):
        for name in options.devices:
            found = ThroughputTable(())
            try:
                # The profile uses the step of the largest batch, the last one that was made.
                with profiled_on(name):
                    step = lru_cache(maxsize=1)(lambda batch: subject.step(batch, options.what))
                    found = _throughput(step, options, batches, name)
                    function, args = step(_largest(found, batches))
                    profiles[name] = profile(function, *args, node_nm=options.node_nm)
            except WeftError as error:
                if len(options.devices) == 1 and not found.rows:
                    raise
                notes.append(f"{name}: {error.message}")
            table += found
        if not profiles and not table.rows:
            raise UserError(
                "profile", f"none of the devices {', '.join(options.devices)} could be used. {' '.join(notes)}"
            )
        batch = _largest(table, batches)
        rows = _machines(options, profiles, table, batch)
    return ProfileReport(
        subject.title, options.what, batch, profiles, table, tuple(rows), tuple(notes), subject.network
    )


def save_timeline(path: str | Path, subject: ProfileSubject, options: ProfileOptions, found: ProfileReport) -> None:
    """Write a trace of some calls on each device that was profiled."""
    with knobs.set(threads=options.threads or knobs.threads):
        steps = {}
        for name in found.profiles:
            with knobs.set(device=name):
                steps[name] = subject.step(found.batch, found.what)
        save_trace(path, recorded_calls(steps))


@dataclass(frozen=True)
class SubjectComparison:
    """Which layers of two subjects differ, and the profile of each."""

    report: RegressionReport
    profiles: tuple[ProgramProfile, ProgramProfile]

    def save_plot(self, path: str | Path) -> Path:
        """Write the roofline of both in one picture: a network before and after compression, for example."""
        titles = [f"{letter}: {name}" for letter, name in zip("AB", self.report.names, strict=True)]
        picture = roofline_svg(dict(zip(titles, self.profiles, strict=True)))
        Path(path).write_text(picture, encoding="utf-8")
        return Path(path)


def compare_subjects(a: ProfileSubject, b: ProfileSubject, options: ProfileOptions, rounds: int) -> SubjectComparison:
    """Profile two subjects in turn, and say which layers changed beyond noise."""
    if len(options.devices) > 1:
        raise UserError(
            "profile", "a comparison is measured on one device, got device=both. Use device=cpu or device=cuda."
        )
    batch = (options.batches or (BATCH,))[-1]
    with profiled_on(options.devices[0]), knobs.set(threads=options.threads or knobs.threads):
        steps = a.step(batch, options.what), b.step(batch, options.what)
        report = compare_steps(*steps, names=(a.title, b.title), rounds=rounds)
        first, second = (profile(function, *args, node_nm=options.node_nm) for function, args in steps)
    return SubjectComparison(report, (first, second))


def compare_energy(
    subjects: Sequence[ProfileSubject], options: ProfileOptions, forms: Sequence[str], density: float
) -> EnergyComparison:
    """The modelled energy of a subject in several forms; others stand beside it as they are."""
    first, *others = subjects
    if len(options.devices) > 1 or options.what != "infer":
        raise UserError(
            "profile", "energy is compared for inference on one device. Use what=infer and device=cpu or device=cuda."
        )
    batch = (_batches(first, options) or (BATCH,))[-1]
    with knobs.set(device=options.devices[0], threads=options.threads or knobs.threads):
        against = {
            other.title.partition(" for ")[0]: profile(*_called(other, batch), repeats=1, node_nm=options.node_nm)
            for other in others
        }
        model, inputs = first.make().eval(), tuple(map(asarray, first.inputs(batch)))
        found = energy_comparison(
            model, *inputs, forms=forms, density=density, node_nm=options.node_nm, against=against
        )
    return replace(found, title=f"{first.title}, infer, batch {batch}")


def _called(subject: ProfileSubject, batch: int) -> tuple[Any, ...]:
    function, args = subject.step(batch)
    return function, *args


def _batches(subject: ProfileSubject, options: ProfileOptions) -> tuple[int, ...] | None:
    """A network that takes one batch size only is measured with that, unless another one is asked for."""
    if subject.only_batch is not None and options.batches in (None, (BATCH,)):
        return (subject.only_batch,)
    return None if options.batches is None else tuple(sorted(options.batches))


def _largest(table: ThroughputTable, batches: Sequence[int] | None) -> int:
    return max((row.batch for row in table.rows), default=max(batches or (1,)))


def _throughput(step: Step, options: ProfileOptions, batches: Sequence[int] | None, device: str) -> ThroughputTable:
    return throughput(
        step, batches, what=options.what, device=device, seconds=options.seconds,
        most=options.most, node_nm=options.node_nm, subtract_idle=options.subtract_idle, examples=options.examples,
    )  # fmt: skip


def _machines(
    options: ProfileOptions, profiles: Mapping[str, ProgramProfile], table: ThroughputTable, batch: int
) -> list[MachineRow]:
    """Projections start from the first device that was measured."""
    if not options.machines or not profiles:
        return []
    name, found = next(iter(profiles.items()))
    measured = next((row for row in table.rows if row.device == name and row.batch == batch), None)
    with knobs.set(device=name):
        here = machine_like(find_device())
    return side_by_side(found, batch, options.machines, measured=measured, here=here)
