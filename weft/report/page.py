"""The HTML report of a run: one self-contained file without scripts or network requests, in light and dark mode."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..io.files import replace_file
from . import run_charts
from .axes import duration, short
from .best_epoch import SELECTION_METRICS, best_row
from .run_record import RunRecord, read_run, settings
from .style import STYLE
from .svg import escape
from .text_format import format_value

MAX_CONFUSIONS = 10  # most frequent confusions that are listed
MAX_VALUE_LENGTH = 400  # characters of a value in a table


def report(folder: str | os.PathLike[str]) -> Path:
    """Write report.html into the folder of a run. The page lists missing and damaged files and shows the rest."""
    path = Path(folder) / "report.html"
    replace_file(path, [page(read_run(Path(folder))).encode("utf-8", "replace")], "report")
    return path


def page(run: RunRecord) -> str:
    """The HTML of the report."""
    return document(run.name, "\n".join([_header(run), _notes(run), *_sections(run), _footer(run)]))


def document(title: str, body: str) -> str:
    """A complete HTML document with the shared style; its security policy forbids loading anything else."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    look = '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" content="light dark">'
    name = f"<title>{escape(title)} · weft</title><style>{STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}{look}{name}</head>\n<body><main>\n{body}\n</main></body></html>\n'


def _sections(run: RunRecord) -> Iterable[str]:
    charts = run_charts.other_charts(run)
    drawn = run_charts.all_curves(run)
    hidden = len(run_charts.metric_groups(run)) - len(drawn)
    yield _section(
        "Curves",
        _cards(drawn.values())
        + (f"<p>{hidden:,} more {'is' if hidden == 1 else 'are'} in metrics.csv.</p>" if hidden else ""),
    )
    if run.confusion is not None:
        beside = f'<div><div class="card">{charts["classes"]}</div>{_confusions(run)}</div>'
        yield _section("Classes", f'<div class="cards"><div class="card">{charts["confusion"]}</div>{beside}</div>')
    shown = [charts[name] for name in ("samples", "mistakes") if name in charts]
    yield _section("Images", "".join(f'<div class="card wide">{chart}</div>' for chart in shown))
    yield _section("Generated text", _text(run.text))
    yield _section("Model", _text(run.model))
    yield _section("Settings", _settings(run))
    yield _section("Summary", _table(run.summary))
    yield _section("Environment", _table(run.environment))


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def _cards(charts: Iterable[str]) -> str:
    cards = "".join(f'<div class="card">{chart}</div>' for chart in charts)
    return f'<div class="cards">{cards}</div>' if cards else ""


def _settings(run: RunRecord) -> str:
    """The settings as a table, or as plain text if args.yaml has no lines `name: value`."""
    return _table(settings(run)) or _text(run.arguments)


def _command(words: Any) -> str:
    """A command line, quoted for a shell."""
    return shlex.join(map(str, words)) if isinstance(words, list) else format_value(words)


def _text(text: str) -> str:
    return f"<pre>{escape(text.rstrip())}</pre>" if text.strip() else ""


def _header(run: RunRecord) -> str:
    """Model and data, the best result and the time; then the key metrics."""
    what = " on ".join(filter(None, [run.setting("model"), run.setting("data")])) or run.name
    line = ", ".join(filter(None, [best_result(run), _time(run)])) or "no results yet"
    tiles = "".join(
        f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in key_numbers(run).items()
    )
    return (
        f'<header><p class="run">{escape(run.name)}</p><h1>{escape(what)}</h1><p class="lead">{escape(line)}</p></header>'
        + (f'<div class="tiles">{tiles}</div>' if tiles else "")
    )


def best_result(run: RunRecord) -> str:
    """The best value and its epoch as text; empty if nothing was measured."""
    for name in SELECTION_METRICS:
        line = best_row(run.metrics, name)
        value = None if line is None else run.metrics[name][line]
        if line is not None and value is not None:
            return f"best {name.replace('_', ' ')} {_value(run, name, value)}{_position_text(run, line)}"
    return ""


def _position_text(run: RunRecord, line: int) -> str:
    column = run_charts.x_column(run)
    at = run.metrics[column][line] if column in run.metrics else line + 1
    return f" at {column} {at:,.15g}" if at is not None else ""


def _value(run: RunRecord, name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if run_charts.is_fraction(name, run.metrics.get(name) or [value]) else short(value, 4)


def _time(run: RunRecord) -> str:
    seconds = _seconds(run)
    return f"in {duration(seconds)}" if math.isfinite(seconds) else ""


def _seconds(run: RunRecord) -> float:
    """Training time from summary.json, else from the time column: seconds since the start, or timestamps."""
    recorded = run.summary.get("seconds", run.summary.get("time"))
    if isinstance(recorded, int | float) and abs(recorded) < 1e12:
        return float(recorded)
    column = run.metrics.get("seconds", run.metrics.get("time", []))
    times = [t for t in column if t is not None and math.isfinite(t)]
    return max(times) - (times[0] if times[0] > 1e9 else 0.0) if times else math.nan


def key_numbers(run: RunRecord) -> dict[str, str]:
    """The key metrics: last values, epochs, number of parameters, time."""
    found = {f"test {name}": _value(run, f"test_{name}", value) for name, value in _test(run).items()}
    for name in ("validation_accuracy", "validation_loss", "train_loss", "examples_per_second"):
        known = [v for v in run.metrics.get(name, []) if v is not None]
        if known:
            label = "examples per second" if name == "examples_per_second" else f"last {name.replace('_', ' ')}"
            found[label] = _value(run, name, known[-1])
    epochs = [e for e in run.metrics.get("epoch", []) if e is not None and math.isfinite(e)]
    found |= {"epochs": f"{max(epochs):,.15g}"} if epochs else {}
    parameters = run.summary.get("parameters")
    found |= {"parameters": _count(parameters)} if isinstance(parameters, int) else {}
    found |= {"time": duration(seconds)} if math.isfinite(seconds := _seconds(run)) else {}
    return found


def _test(run: RunRecord) -> dict[str, float]:
    """The metrics of the best network on the test set."""
    recorded = run.summary.get("test")
    return {n: v for n, v in recorded.items() if isinstance(v, int | float)} if isinstance(recorded, dict) else {}


def _count(count: int) -> str:
    return f"{count:,}" if abs(count) < 10**7 else short(float(count)) if abs(count) < 10**30 else "very many"


def _notes(run: RunRecord) -> str:
    """Problems of the run and its files."""
    notes = [*run.notes, *(f"{name} is not a number at {where}" for name, where in _non_finite_losses(run).items())]
    return "".join(f'<p class="note">{escape(note[:MAX_VALUE_LENGTH])}.</p>' for note in notes)


def _non_finite_losses(run: RunRecord) -> dict[str, str]:
    """Losses that became nan or infinite, and where this first happened."""
    found = {}
    for name, values in run.metrics.items():
        lines = [i for i, v in enumerate(values) if v is not None and not math.isfinite(v)]
        if lines and "loss" in name:
            found[name] = _position_text(run, lines[0]).removeprefix(" at ")
    return found


def _confusions(run: RunRecord) -> str:
    """A table of the most frequent confusions."""
    assert run.confusion is not None
    wrong = run.confusion * (1 - np.eye(len(run.confusion)))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_CONFUSIONS]
    pairs = [(int(i) // len(wrong), int(i) % len(wrong)) for i in order if wrong.flat[i] > 0]
    rows = "".join(
        f"<tr><td>{escape(run.classes[true])}</td><td>{escape(run.classes[taken])}</td><td class='number'>{wrong[true, taken]:,.15g}</td></tr>"
        for true, taken in pairs
    )
    return (
        f"<h3>Most frequent mistakes</h3><table class='narrow'><tr><th>true</th><th>predicted</th><th class='number'>count</th></tr>{rows}</table>"
        if rows
        else ""
    )


def _table(values: Mapping[str, Any]) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in _flat(values))
    return f"<table>{rows}</table>" if rows else ""


def _flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    """Names and values; one level of nesting becomes dotted names, deeper levels become text."""
    for name, value in values.items():
        if isinstance(value, dict) and not before:
            yield from _flat(value, f"{name}.")
        else:
            text = _command(value) if name == "command" else format_value(value)
            yield before + name, text if len(text) <= MAX_VALUE_LENGTH else text[:MAX_VALUE_LENGTH] + "…"


def _footer(run: RunRecord) -> str:
    absent = f"Files not in this run: {', '.join(run.absent)}. " if run.absent else ""
    return f"<footer>{escape(absent)}Generated by weft. All values are in metrics.csv and summary.json next to this page.</footer>"
