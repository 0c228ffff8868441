"""The results for people: one Markdown table for each kind of work, a row as soon as it is known."""

from __future__ import annotations

import math

from .measure import Row

HEAD = "| work | weft | best peer | ratio | goal | of the roof | all |\n|---|---|---|---|---|---|---|"


def amount(value: float, unit: str) -> str:
    """A time or a size in a readable unit."""
    if unit == "B":
        return f"{value / 2**20:.1f} MiB"
    for factor, name in ((1.0, "s"), (1e-3, "ms")):
        if value >= factor:
            return f"{value / factor:.3g} {name}"
    return f"{value * 1e6:.3g} us"


def line(row: Row) -> str:
    roof = "" if row.roof is None else f"{100 * row.roof:.0f} %"
    return f"| {row.name} | {ours(row)} | {peer(row)} | {ratio(row)} | {goal(row)} | {roof} | {everything(row)} |"


def ours(row: Row) -> str:
    """The time of weft, and how much it did in a second."""
    if not row.best_weft:
        return "-"
    seconds = row.seconds[row.best_weft]
    text = amount(seconds, row.unit)
    if row.gflops is not None:
        text += f", {row.gflops:.0f} GFLOP/s" if row.gflops < 1000 else f", {row.gflops / 1000:.3g} TFLOP/s"
    if row.items:
        text += f", {row.items / seconds:.1f} images/s"
    return text


def peer(row: Row) -> str:
    return f"{amount(row.seconds[row.best_peer], row.unit)} ({row.best_peer})" if row.best_peer else "-"


def ratio(row: Row) -> str:
    return "-" if row.ratio is None else f"{row.ratio:.2f}"


def goal(row: Row) -> str:
    return "" if row.goal is None else f"{row.goal:.2f}"


def everything(row: Row) -> str:
    """All times, and what failed."""
    parts = [f"{name} {amount(value, row.unit)}" for name, value in row.seconds.items()]
    parts += [f"**{name}: {why.replace('|', '/')}**" for name, why in row.failures.items()]
    return "; ".join([*parts, *([row.note] if row.note else [])])


def summary(rows: list[Row]) -> str:
    """The geometric mean of the ratios of each group, and how many goals are reached."""
    lines = ["| work | rows | ratio, geometric mean | least | goals reached |", "|---|---|---|---|---|"]
    for group in dict.fromkeys(r.group for r in rows):
        ratios = [r.ratio for r in rows if r.group == group and r.ratio is not None]
        aimed = [r for r in rows if r.group == group and r.goal is not None]
        reached = sum(r.ratio is not None and r.goal is not None and r.ratio >= r.goal for r in aimed)
        mean = f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}" if ratios else "-"
        least = f"{min(ratios):.2f}" if ratios else "-"
        lines.append(
            f"| {group} | {len(ratios)} | {mean} | {least} | {f'{reached} of {len(aimed)}' if aimed else ''} |"
        )
    return "\n".join(lines)
