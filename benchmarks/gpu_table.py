"""The results of a GPU for people: one Markdown table for each kind of work, a row as soon as it is known."""

from __future__ import annotations

from cases import table
from gpu_measure import Row

HEAD = (
    "| work | weft | goal | best peer | ratio | ratio aimed at | host a call | memory | all |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def line(row: Row) -> str:
    cells = [
        row.name,
        table.ours(row),
        "" if row.goal_seconds is None else table.amount(row.goal_seconds, "s"),
        table.peer(row),
        table.ratio(row),
        table.goal(row),
        table.amount(row.host[row.best_weft], "s") if row.best_weft in row.host else "",
        "; ".join(f"{name} {_gib(size)}" for name, size in row.memory.items() if size),
        table.everything(row),
    ]
    return f"| {' | '.join(cells)} |"


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.2f} MiB"


def summary(rows: list[Row]) -> str:
    """As on a CPU, and how many of the times that are aimed at are reached."""
    aimed = [r for r in rows if r.goal_seconds is not None and r.best_weft]
    reached = sum(r.seconds[r.best_weft] <= (r.goal_seconds or 0.0) for r in aimed)
    return f"{table.summary(list(rows))}\n\nTimes reached: {reached} of {len(aimed)} that are aimed at."
