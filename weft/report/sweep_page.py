"""The page of a sweep: the best result so far, which settings mattered, parallel coordinates, and a table of all trials. No scripts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..records import dataclass
from .axes import duration
from .charts import bars, scatter
from .page import document
from .parallel_coordinates import ParallelAxis, parallel_svg
from .svg import escape


@dataclass(frozen=True)
class TrialLine:
    """A trial of the table and of the charts."""

    number: int
    state: str
    settings: Mapping[str, str]
    values: Sequence[str]  # of the metrics, as text
    why: str = ""
    epoch: int = 0
    seconds: float | None = None
    value: float | None = None  # of the first metric
    second: float | None = None  # of the second one


@dataclass(frozen=True)
class SweepPage:
    """What the page shows."""

    name: str
    metrics: Sequence[str]
    maximize: bool  # the first metric
    sampler: str
    pruner: str
    planned: int
    trials: Sequence[TrialLine]  # as the table lists them
    best: int | None  # number of a trial
    best_run: str | None
    importance: Mapping[str, float]
    axes: Sequence[ParallelAxis]
    lines: Sequence[int]  # number of the trial of each line of the axes
    front: Sequence[int]  # numbers of the trials that no other one beats in all metrics, where there are several


def sweep_page(page: SweepPage) -> str:
    """The HTML of the page."""
    parts = [_header(page), _tiles(page)]
    if any(one.value is not None for one in page.trials):
        charts = [best_so_far(page), *([_importance(page)] if page.importance else []), *([_front(page)] if page.front else [])]  # fmt: skip
        cards = "".join(f'<div class="card">{chart}</div>' for chart in charts)
        parts.append(f'<section><h2>Results</h2><div class="cards">{cards}</div></section>')
    if len(page.axes) > 1:
        marked = page.lines.index(page.best) if page.best in page.lines else None
        picture = parallel_svg(page.axes, marked, "Parallel coordinates: stronger is better", not page.maximize)
        parts.append(f'<section><h2>Settings</h2><div class="card wide">{picture}</div></section>')
    parts.append(f"<section><h2>Trials</h2>{_table(page)}</section>")
    parts.append("<footer>All numbers are in trials.json, importance.json and parallel.json beside this page. Importance: PED-ANOVA, how much a setting decides whether a trial is among the best.</footer>")  # fmt: skip
    return document(page.name, f"<style>{_STYLE}</style>" + "\n".join(parts))


_STYLE = ".scroll{overflow-x:auto}.scroll table{min-width:100%}.scroll td,.scroll th{white-space:nowrap}"


def best_so_far(page: SweepPage) -> str:
    """The value of each trial, and the best of all until then."""
    percent = 100.0 if "accuracy" in page.metrics[0] else 1.0
    known = sorted(
        (one for one in page.trials if one.value is not None and math.isfinite(one.value)), key=lambda one: one.number
    )
    best, line = math.nan, list[tuple[float, float]]()
    for one in known:
        value = percent * (one.value or 0.0)
        better = math.isnan(best) or (value > best if page.maximize else value < best)
        if one.state == "finished" and better:
            line += [(one.number, best)] if line else []  # a step
            best = value
            line.append((one.number, best))
    line += [(known[-1].number, best)] if line and known[-1].number > line[-1][0] else []
    groups = {
        name: [(one.number, percent * (one.value or 0.0)) for one in known if one.state == state]
        for name, state in (("finished", "finished"), ("pruned, last value", "pruned"))
    }
    shown = {name: points for name, points in groups.items() if points}
    unit = "%" if percent > 1 else ""
    return scatter(shown, f"Best {page.metrics[0]} so far", line, "best", x="trial", unit=unit)


def _importance(page: SweepPage) -> str:
    return bars({name: 100 * share for name, share in page.importance.items()}, "What mattered", unit="%", largest=100)


def _front(page: SweepPage) -> str:
    """Both metrics of the finished trials, and those that no other one beats in both."""
    percent = 100.0 if "accuracy" in page.metrics[0] else 1.0
    known = {one.number: one for one in page.trials if one.second is not None and one.value is not None}
    points = {n: (one.second or 0.0, percent * (one.value or 0.0)) for n, one in known.items()}
    front = sorted(points[n] for n in page.front if n in points)
    size = page.metrics[1] == "size"
    return scatter(
        {"trials": list(points.values())}, f"{page.metrics[0]} by {page.metrics[1]}", front, "Pareto front",
        x="parameters" if size else page.metrics[1], unit="%" if percent > 1 else "", log_x=size,
    )  # fmt: skip


def _header(page: SweepPage) -> str:
    best = next((one for one in page.trials if one.number == page.best), None)
    line = "no trial has finished yet" if best is None else f"best {page.metrics[0]} {best.values[0]}: trial {best.number}, " + ", ".join(f"{n} {v}" for n, v in best.settings.items())  # fmt: skip
    use = (
        ""
        if page.best_run is None
        else f"<p>Use it: <code>weft predict {escape(_short(page.best_run))} IMAGE</code></p>"
    )
    return (
        f'<header><p class="run">Sweep</p><h1>{escape(page.name)}</h1><p class="lead">{escape(line)}</p>{use}</header>'
    )


def _short(run: str) -> str:
    return Path(run).name


def _tiles(page: SweepPage) -> str:
    counts = {state: sum(one.state == state for one in page.trials) for state in ("finished", "pruned", "failed")}
    seconds = sum(one.seconds or 0.0 for one in page.trials)
    told = {
        "trials": f"{len(page.trials)} of {page.planned}", **{name: str(n) for name, n in counts.items() if n or name != "failed"},
        "training time": duration(seconds), "sampler": page.sampler, "pruner": page.pruner,
    }  # fmt: skip
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in told.items())
    return f'<div class="tiles">{cells}</div>'


def _table(page: SweepPage) -> str:
    settings = list(dict.fromkeys(name for one in page.trials for name in one.settings))
    head = "".join(f"<th{' class=number' if i > 1 else ''}>{escape(title)}</th>" for i, title in enumerate(["trial", "state", *page.metrics, *settings, "epochs", "time"]))  # fmt: skip
    rows = "".join(_row(page, one, settings) for one in page.trials)
    return f'<div class="scroll"><table class="narrow"><tr>{head}</tr>{rows}</table></div>'


def _row(page: SweepPage, one: TrialLine, settings: Sequence[str]) -> str:
    values = [*one.values, *[""] * (len(page.metrics) - len(one.values))]
    numbers = [*values, *(one.settings.get(name, "") for name in settings), str(one.epoch), "" if one.seconds is None else duration(one.seconds)]  # fmt: skip
    texts = [str(one.number), f"{one.state} {one.why}".rstrip()]
    strong = ("<b>", "</b>") if one.number == page.best else ("", "")
    cells = [f"<td>{strong[0]}{escape(text)}{strong[1]}</td>" for text in texts]
    cells += [f'<td class="number">{strong[0]}{escape(text)}{strong[1]}</td>' for text in numbers]
    return f"<tr>{''.join(cells)}</tr>"
