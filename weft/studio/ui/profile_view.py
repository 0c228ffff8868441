"""What the tab Profile says: figures, layers, costs and advice of one profile, beside an earlier one if there is something to compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...device_names import read_device_name
from ...insight.bounds import NEAR
from ...insight.call_timeline import CallTimeline
from ...insight.profile_record import LayerRecord, Offender, ProfileRecord
from ...insight.profile_text import duration
from ...records import dataclass
from ...report.axes import make_axis
from ...report.text_format import listed
from ..library.profile_choice import Compared
from ..library.training_form import device_title
from .formats import percent, three_figures

COSTS = {"seconds": "Time", "joules": "Energy"}
FULL = 6  # the strongest of the colours q0 to q7 that the costliest layer has
MOST_ADVICE = 4
GAIN = 0.02  # of a call: less is not worth a line
STEADY = 0.1  # spread of the calls
SHOWN = 0.002  # of the time: layers with less have no dot
MANY = 24  # layers: above, blocks are shown at first
LARGER = 8  # times the batch, that advice offers to measure


@dataclass(frozen=True)
class FigureTile:
    """A cell of the strip of metrics."""

    title: str
    number: str
    unit: str
    context: str
    tone: str = ""


@dataclass(frozen=True)
class ProfiledLayer:
    """A layer in the table. One that only the earlier profile has stands for itself."""

    label: str
    kind: str
    after: LayerRecord | None
    before: LayerRecord | None

    @property
    def shown(self) -> LayerRecord:
        found = self.after or self.before
        assert found is not None
        return found


@dataclass(frozen=True)
class Advice:
    """Something that would help: `measure` are the settings of a profile that shows whether it does."""

    title: str
    text: str
    layer: str = ""
    measure: Mapping[str, Any] | None = None
    is_good: bool = False


def short_device(name: str) -> str:
    """A device in a few characters.

    >>> short_device("cpu"), short_device("cuda:1")
    ('CPU', 'GPU 1')
    """
    return device_title(name).removesuffix(" (CUDA)")


def noun(record: ProfileRecord) -> str:
    return "Samples" if record.what == "train" else "Inferences"


def which(pair: Compared) -> tuple[str, str]:
    """What distinguishes the profile that another is compared with, and the other: time, or how they were measured."""
    was = pair.before
    if was is None or not pair.differing:
        return "before", "after"
    words = {
        "device": f"on {short_device(was.device)}",
        "batch": f"at batch {was.batch}",
        "what": "in training" if was.what == "train" else "in inference",
    }
    return " ".join(words[name] for name in pair.differing), "this one"


# --- figures ----------------------------------------------------------------------------------------------------------------------------


def figures(pair: Compared) -> list[FigureTile]:
    """The five figures on top."""
    now, was = pair.after, pair.before
    energy = "" if now.energy_measured else "modelled"
    p99 = now.times.p99 if now.times is not None else None
    when, _ = which(pair)
    before_p99 = was.times.p99 if was is not None and was.times is not None else None
    return [
        _rate(now, was, when),
        _milliseconds("Latency p50", now.latency, was.latency if was else None, when, f"batch {now.batch}"),
        _milliseconds("Latency p99", p99, before_p99, when, _calls(now)),
        FigureTile(
            f"{noun(now)}/J" + (f", {energy}" if energy else ""), number_text(now.per_joule), "",
            f"{number_text(was.per_joule)} {when}" if was and was.energy_measured == now.energy_measured else f"{three_figures(1e3 * now.joules)} mJ a call",
        ),
        FigureTile(
            "Time above 70 % of roof", f"{100 * now.near_roof:.0f}", "%",
            f"{percent(was.near_roof)} {when}" if was else f"{sum(one.roof >= NEAR for one in now.layers)} of {len(now.layers)} layers",
        ),
    ]  # fmt: skip


def _rate(now: ProfileRecord, was: ProfileRecord | None, when: str) -> FigureTile:
    title, where = f"{noun(now)}/s", f"on {short_device(now.device)}"
    if was is None:
        return FigureTile(title, number_text(now.per_second), where, f"batch {now.batch}, {now.where}")
    return FigureTile(
        title,
        number_text(now.per_second),
        where,
        f"{number_text(was.per_second)} {when}, {times_as(was.latency / was.batch, now.latency / now.batch)}",
        "up" if now.per_second > 1.02 * was.per_second else "",
    )


def times_as(before: float, after: float) -> str:
    """How much faster it became, in words.

    >>> times_as(3.8, 1.0), times_as(1.0, 1.01), times_as(1.0, 2.0)
    ('3.8 times as fast', 'as fast', '2 times as slow')
    """
    gain = before / after if after else 1.0
    if 0.98 < gain < 1.02:
        return "as fast"
    return f"{gain:.2g} times as fast" if gain > 1 else f"{1 / gain:.2g} times as slow"


def _milliseconds(title: str, seconds: float | None, before: float | None, when: str, context: str) -> FigureTile:
    if seconds is None:
        return FigureTile(title, "–", "", "not timed")
    said = f"{three_figures(1e3 * before)} ms {when}" if before is not None else context
    return FigureTile(title, three_figures(1e3 * seconds), "ms", said)


def _calls(record: ProfileRecord) -> str:
    return f"of {record.times.calls} calls" if record.times is not None else ""


def number_text(value: float) -> str:
    """A rate with three figures at least.

    >>> number_text(0.01234), number_text(14374.2)
    ('0.0123', '14,374')
    """
    return three_figures(value) if value < 1000 else f"{value:,.0f}"


# --- layers -----------------------------------------------------------------------------------------------------------------------------

SORTS: dict[str, Callable[[ProfiledLayer], Any]] = {
    "layer": lambda row: row.label,
    "before": lambda row: row.before.seconds if row.before else -1.0,
    "seconds": lambda row: row.after.seconds if row.after else -1.0,
    "flops": lambda row: row.shown.flops,
    "bytes_before": lambda row: row.before.nbytes if row.before else -1.0,
    "bytes": lambda row: row.shown.nbytes,
    "intensity": lambda row: row.shown.intensity,
    "bound": lambda row: row.shown.bound,
    "roof": lambda row: row.shown.roof,
    "joules_before": lambda row: row.before.joules if row.before else -1.0,
    "joules": lambda row: row.shown.joules,
}


def layer_rows(pair: Compared, sort: str = "seconds", descending: bool = True) -> list[ProfiledLayer]:
    """A row for each layer of both profiles."""
    known = {one.label: one for one in pair.before.layers} if pair.before is not None else {}
    rows = [ProfiledLayer(one.label, one.kind, one, known.pop(one.label, None)) for one in pair.after.layers]
    rows += [ProfiledLayer(one.label, one.kind, None, one) for one in known.values()]
    return sorted(rows, key=SORTS.get(sort, SORTS["seconds"]), reverse=descending)


def costs(record: ProfileRecord, by: str) -> list[tuple[LayerRecord, int, str]]:
    """The layers in their order, each with the step of its colour and its cost in words."""
    most = max((getattr(one, by) for one in record.layers), default=0.0) or 1.0
    return [(one, round(FULL * getattr(one, by) / most), _cost(getattr(one, by), by)) for one in record.layers]


def _cost(value: float, by: str) -> str:
    """
    >>> _cost(1.34e-4, "seconds"), _cost(2e-8, "seconds"), _cost(0.2472321, "seconds"), _cost(3.2e-5, "joules")
    ('0.134 ms', '< 0.001 ms', '247 ms', '32.0 µJ')
    """
    if by == "seconds":
        return f"{number_in(value, Unit('ms', 1e-3, 3 if value < 1e-3 else 2 if value < 0.01 else 1 if value < 0.1 else 0))} ms"
    unit, size = next(((u, s) for u, s in (("J", 1.0), ("mJ", 1e-3), ("µJ", 1e-6)) if value >= s), ("nJ", 1e-9))
    return f"{three_figures(value / size)} {unit}"


class Unit(NamedTuple):
    """The unit of a column, and the decimals of its numbers."""

    name: str
    size: float
    decimals: int


def column_unit(most: float, units: Sequence[tuple[str, float]]) -> Unit:
    """The unit in which the largest value of a column has three figures, and others as many decimals.

    >>> column_unit(0.0509, TIMES), column_unit(0.0249, ENERGIES)
    (Unit(name='ms', size=0.001, decimals=1), Unit(name='mJ', size=0.001, decimals=1))
    """
    name, size = next((one for one in units if most >= one[1]), units[-1])
    whole = most / size
    return Unit(name, size, 0 if whole >= 1000 else 1 if whole >= 10 else 2 if whole >= 1 else 3)


TIMES = (("ms", 1e-3),)  # one unit, as latencies are quoted
ENERGIES = (("J", 1.0), ("mJ", 1e-3), ("µJ", 1e-6), ("nJ", 1e-9))
BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def column_units(pair: Compared | None) -> dict[str, Unit]:
    """The units of the columns of layers."""
    records = [one for one in (pair.after, pair.before) if one is not None] if pair is not None else []
    every = [layer for record in records for layer in record.layers]
    kinds = {"seconds": TIMES, "nbytes": BYTES, "joules": ENERGIES}
    return {name: column_unit(max((getattr(one, name) for one in every), default=0.0), kinds[name]) for name in kinds}


def number_in(value: float, unit: Unit) -> str:
    """A number of a column; one that would be all zeros is below the smallest."""
    least = 10.0**-unit.decimals
    return f"< {least:g}" if 0 < value / unit.size < 0.5 * least else f"{value / unit.size:,.{unit.decimals}f}"


# --- advice -----------------------------------------------------------------------------------------------------------------------------


def advice(record: ProfileRecord) -> list[Advice]:
    """What would gain most time, the largest gain first, and whether the measurement can be trusted. Layers with one remedy are one item."""
    total = record.layer_seconds or 1.0
    groups: dict[tuple[str, str], list[Offender]] = {}
    for one in sorted(record.worst, key=lambda one: -one.lost):
        if one.lost >= GAIN * total:
            groups.setdefault((one.bound, one.advice), []).append(one)
    ranked = sorted(groups.values(), key=lambda group: -sum(one.lost for one in group))[:MOST_ADVICE]
    return [*(_advice(record, group, total) for group in ranked), _steadiness(record)]


def _advice(record: ProfileRecord, group: Sequence[Offender], total: float) -> Advice:
    names, first = list(dict.fromkeys(one.layer for one in group)), group[0]
    several = len(names) > 1
    shares = sorted({round(100 * one.roof) for one in group})
    reached = f"{shares[0]} %" if len(shares) == 1 else f"{shares[0]} to {shares[-1]} %"
    verbs = {
        "memory": "wait for memory" if several else "waits for memory",
        "launch": "take longer to start than to run" if several else "takes longer to start than to run",
        "waiting": "leave most threads waiting" if several else "leaves most threads waiting",
        "compute": f"{'reach' if several else 'reaches'} {reached} of the roof",
    }
    shown = names if len(names) <= 3 else [*names[:3], f"{len(names) - 3} more"]
    text = f"Up to {_cost(sum(one.lost for one in group), 'seconds')} of {_cost(total, 'seconds')}. {first.advice}"
    return Advice(f"{listed(shown)} {verbs[first.bound]}", text, names[0], _larger(record, first.advice))


def _larger(record: ProfileRecord, text: str) -> Mapping[str, Any] | None:
    if "larger batch" not in text or record.batch >= 256:
        return None
    return {"device": record.device, "batch": LARGER * record.batch, "what": record.what}


def _steadiness(record: ProfileRecord) -> Advice:
    if record.times is None:
        return Advice("Whole calls were not timed", "Latency is the program's own time.")
    said = f"{record.times.calls} repeats, spread {100 * record.times.spread:.1f} %"
    if record.times.spread <= STEADY:
        return Advice("The calls took steady times", said, is_good=True)
    return Advice("Other work disturbed the measurement", f"{said}. Measure again when the machine is idle.")


# --- charts -----------------------------------------------------------------------------------------------------------------------------


def device_colour(device: str) -> str:
    """The GPU of a plot is blue, the CPU orange; further GPUs have colours of their own."""
    name = read_device_name(device)
    if name.is_cpu:
        return "s2"
    number = int(name.number or 0)
    return "s1" if number == 0 else f"s{3 + (number - 1) % 6}"


def roofline_spec(pairs: list[Compared], selected: str | None) -> dict[str, Any]:
    """What the roofline shows: the roofs and dots of each device."""
    series = [
        {
            "name": short_device(pair.after.device),
            "colour": device_colour(pair.after.device),
            "bandwidth": pair.after.roof.bandwidth,
            "peaks": [[name, peak] for name, peak in pair.after.roof.peaks.items()],
            "after": _dots(pair.after),
            "before": _dots(pair.before) if pair.before else [],
            "names": list(which(pair)),
        }
        for pair in pairs
    ]
    return {"series": series, "selected": selected, "summary": _summary(pairs)}


def _dots(record: ProfileRecord) -> list[dict[str, Any]]:
    """The layers that take time: others would stretch the picture over many decades."""
    least = SHOWN * record.layer_seconds
    return [_dot(one) for one in record.layers if one.flops and one.nbytes and one.seconds >= least]


def _dot(one: LayerRecord) -> dict[str, Any]:
    return {
        "label": one.label, "kind": one.kind, "x": one.intensity, "y": one.rate, "ms": 1e3 * one.seconds, "roof": one.roof, "bound": one.bound,
    }  # fmt: skip


def _summary(pairs: list[Compared]) -> str:
    told = [
        f"{short_device(pair.after.device)}: {len(pair.after.layers)} layers, {percent(pair.after.near_roof)} of the time above 70 % of the roof"
        for pair in pairs
    ]
    return f"Roofline plot. {'; '.join(told)}. The table of layers has all values."


def timeline_ticks(found: CallTimeline) -> list[tuple[float, str]]:
    """Places along a timeline, as shares of it, and their times."""
    axis = make_axis([0.0, found.seconds], tight=True)
    return [(tick / found.seconds, time_text(tick) if tick else "0") for tick in axis.ticks if tick <= found.seconds]


def time_text(seconds: float) -> str:
    """A short time with its unit, as pages write it.

    >>> time_text(5e-5)
    '50.0 µs'
    """
    return duration(seconds).replace("us", "µs")
