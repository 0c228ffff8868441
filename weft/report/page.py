"""One page that shows a whole run: it opens offline, in light and dark, holds no script and asks no other machine for anything."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..io.files import replace_file
from . import figures
from .judge import JUDGES, best_line
from .run import Run, read_run, settings
from .scale import duration, short
from .style import STYLE
from .svg import escape
from .wording import value_words

MOST_PAIRS = 10  # confusions that are listed
LONGEST_VALUE = 400  # characters of a value in a table


def report(folder: str | os.PathLike[str]) -> Path:
    """Write report.html into the folder of a run. What is missing or damaged there is said on the page; the rest is shown."""
    path = Path(folder) / "report.html"
    replace_file(path, [page(read_run(Path(folder))).encode("utf-8", "replace")], "report")
    return path


def page(run: Run) -> str:
    """The text of the page."""
    return document(run.name, "\n".join([_head(run), _notes(run), *_sections(run), _foot(run)]))


def document(title: str, body: str) -> str:
    """A whole page in the look of all pages; a browser is told to load nothing for it."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    look = '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" content="light dark">'
    name = f"<title>{escape(title)} · weft</title><style>{STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}{look}{name}</head>\n<body><main>\n{body}\n</main></body></html>\n'


def _sections(run: Run) -> Iterable[str]:
    charts = figures.others(run)
    drawn = figures.all_curves(run)
    hidden = len(figures.measured(run)) - len(drawn)
    yield _section(
        "Curves",
        _cards(drawn.values())
        + (f"<p>{hidden:,} more {'is' if hidden == 1 else 'are'} in metrics.csv.</p>" if hidden else ""),
    )
    if run.confusion is not None:
        beside = f'<div><div class="card">{charts["classes"]}</div>{_pairs(run)}</div>'
        yield _section("Classes", f'<div class="cards"><div class="card">{charts["confusion"]}</div>{beside}</div>')
    pictures = [charts[name] for name in ("samples", "mistakes") if name in charts]
    yield _section("Pictures", "".join(f'<div class="card wide">{chart}</div>' for chart in pictures))
    yield _section("What it writes", _text(run.text))
    yield _section("Model", _text(run.model))
    yield _section("Settings", _settings(run))
    yield _section("Summary", _table(run.summary))
    yield _section("Environment", _table(run.environment))


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def _cards(charts: Iterable[str]) -> str:
    cards = "".join(f'<div class="card">{chart}</div>' for chart in charts)
    return f'<div class="cards">{cards}</div>' if cards else ""


def _settings(run: Run) -> str:
    """The settings as a table; as they stand in the file where they are no lines `name: value`."""
    return _table(settings(run)) or _text(run.arguments)


def _command(words: Any) -> str:
    """A command as it can be typed again."""
    return shlex.join(map(str, words)) if isinstance(words, list) else value_words(words)


def _text(text: str) -> str:
    return f"<pre>{escape(text.rstrip())}</pre>" if text.strip() else ""


def _head(run: Run) -> str:
    """What was trained on what, the best result, the time; then the numbers that are asked for first."""
    what = " on ".join(filter(None, [run.setting("model"), run.setting("data")])) or run.name
    line = ", ".join(filter(None, [best_result(run), _time(run)])) or "no results yet"
    tiles = "".join(
        f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in key_numbers(run).items()
    )
    return (
        f'<header><p class="run">{escape(run.name)}</p><h1>{escape(what)}</h1><p class="lead">{escape(line)}</p></header>'
        + (f'<div class="tiles">{tiles}</div>' if tiles else "")
    )


def best_result(run: Run) -> str:
    """The best value and where it was reached, in words; empty when nothing was measured."""
    for name in JUDGES:
        line = best_line(run.metrics, name)
        value = None if line is None else run.metrics[name][line]
        if line is not None and value is not None:
            return f"best {name.replace('_', ' ')} {_value(run, name, value)}{_place(run, line)}"
    return ""


def _place(run: Run, line: int) -> str:
    column = figures.across(run)
    at = run.metrics[column][line] if column in run.metrics else line + 1
    return f" at {column} {at:,.15g}" if at is not None else ""


def _value(run: Run, name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if figures.is_share(name, run.metrics.get(name) or [value]) else short(value, 4)


def _time(run: Run) -> str:
    seconds = _seconds(run)
    return f"in {duration(seconds)}" if math.isfinite(seconds) else ""


def _seconds(run: Run) -> float:
    """From the summary, else from the column of times: seconds from the start, or the time of day."""
    told = run.summary.get("seconds", run.summary.get("time"))
    if isinstance(told, int | float) and abs(told) < 1e12:
        return float(told)
    column = run.metrics.get("seconds", run.metrics.get("time", []))
    times = [t for t in column if t is not None and math.isfinite(t)]
    return max(times) - (times[0] if times[0] > 1e9 else 0.0) if times else math.nan


def key_numbers(run: Run) -> dict[str, str]:
    """The last value of each measurement, the epochs, the time, the number of parameters."""
    found = {f"test {name}": _value(run, f"test_{name}", value) for name, value in _test(run).items()}
    for name in ("validation_accuracy", "validation_loss", "train_loss", "examples_per_second"):
        known = [v for v in run.metrics.get(name, []) if v is not None]
        if known:
            label = "examples a second" if name == "examples_per_second" else f"last {name.replace('_', ' ')}"
            found[label] = _value(run, name, known[-1])
    epochs = [e for e in run.metrics.get("epoch", []) if e is not None and math.isfinite(e)]
    found |= {"epochs": f"{max(epochs):,.15g}"} if epochs else {}
    parameters = run.summary.get("parameters")
    found |= {"parameters": _count(parameters)} if isinstance(parameters, int) else {}
    found |= {"time": duration(seconds)} if math.isfinite(seconds := _seconds(run)) else {}
    return found


def _test(run: Run) -> dict[str, float]:
    """What the best network did with examples that nothing was decided with."""
    told = run.summary.get("test")
    return {n: v for n, v in told.items() if isinstance(v, int | float)} if isinstance(told, dict) else {}


def _count(count: int) -> str:
    return f"{count:,}" if abs(count) < 10**7 else short(float(count)) if abs(count) < 10**30 else "very many"


def _notes(run: Run) -> str:
    """What is wrong with the run or its files."""
    notes = [*run.notes, *(f"{name} is not a number at {where}" for name, where in _broken(run).items())]
    return "".join(f'<p class="note">{escape(note[:LONGEST_VALUE])}.</p>' for note in notes)


def _broken(run: Run) -> dict[str, str]:
    """Losses that became nan or infinite, and where they did first."""
    found = {}
    for name, values in run.metrics.items():
        lines = [i for i, v in enumerate(values) if v is not None and not math.isfinite(v)]
        if lines and "loss" in name:
            found[name] = _place(run, lines[0]).removeprefix(" at ")
    return found


def _pairs(run: Run) -> str:
    """The confusions that happen most."""
    assert run.confusion is not None
    wrong = run.confusion * (1 - np.eye(len(run.confusion)))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]
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
    """Names and values; a table inside a table becomes lines with a dot in their names, deeper ones become words."""
    for name, value in values.items():
        if isinstance(value, dict) and not before:
            yield from _flat(value, f"{name}.")
        else:
            text = _command(value) if name == "command" else value_words(value)
            yield before + name, text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "…"


def _foot(run: Run) -> str:
    absent = f"Not in this run: {', '.join(run.absent)}. " if run.absent else ""
    return f"<footer>{escape(absent)}Made by weft; all numbers are in metrics.csv and summary.json beside this page.</footer>"
