"""The results of a GPU for people: one Markdown table for each kind of work, a row as soon as it is known."""

from __future__ import annotations

from cases import table
from gpu_measure import Row

HEAD = (
    "| work | weft | goal | best peer | ratio | ratio aimed at | host a call | memory | all |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def line(row: Row) -> str:
    peer = f"{table.amount(row.seconds[row.best_peer], row.unit)} ({row.best_peer})" if row.best_peer else "-"
    cells = [
        row.name,
        _ours(row),
        "" if row.goal_seconds is None else table.amount(row.goal_seconds, "s"),
        peer,
        "-" if row.ratio is None else f"{row.ratio:.2f}",
        "" if row.goal is None else f"{row.goal:.2f}",
        table.amount(row.host[row.best_weft], "s") if row.best_weft in row.host else "",
        "; ".join(f"{name} {_gib(size)}" for name, size in row.memory.items() if size),
        _everything(row),
    ]
    return f"| {' | '.join(cells)} |"


def _ours(row: Row) -> str:
    if not row.best_weft:
        return "-"
    seconds = row.seconds[row.best_weft]
    text = table.amount(seconds, row.unit)
    if row.gflops is not None:
        text += f", {row.gflops / 1e3:.3g} TFLOP/s"
    if row.items:
        text += f", {row.items / seconds:.0f} images/s"
    return text


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.2f} MiB"


def _everything(row: Row) -> str:
    parts = [f"{name} {table.amount(value, row.unit)}" for name, value in row.seconds.items()]
    parts += [f"**{name}: {why.replace('|', '/')}**" for name, why in row.failures.items()]
    return "; ".join([*parts, *([row.note] if row.note else [])])


def summary(rows: list[Row]) -> str:
    """As on a CPU, and how many of the times that are aimed at are reached."""
    aimed = [r for r in rows if r.goal_seconds is not None and r.best_weft]
    reached = sum(r.seconds[r.best_weft] <= (r.goal_seconds or 0.0) for r in aimed)
    return f"{table.summary(list(rows))}\n\nTimes reached: {reached} of {len(aimed)} that are aimed at."
