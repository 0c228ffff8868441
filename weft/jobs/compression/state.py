"""What a compression leaves in its folder: compression.json with its points, each of which can be kept as a run of its own.

compression.json   settings, the original, and the points that are done
points/N/          a point: a run folder with packed.weft
packed.weft        of the point that was kept
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import RunError, UserError
from ...train.folder import RunFolder
from ..stored import settings_of
from .settings import SWEEP, WIDTHS, method_of, target_of

STATE, PAGE, PACKED = "compression.json", "compression.html", "packed.weft"
ENDED = "all epochs are done"
Point = Mapping[str, Any]


def is_compression(folder: Path) -> bool:
    return (folder / STATE).exists()


def read_state(folder: Path) -> dict[str, Any]:
    """What compression.json says."""
    try:
        found = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if not {"settings", "source", "points", "done"} <= found.keys():
            raise ValueError("parts are missing")
    except (OSError, ValueError, AttributeError) as error:
        raise RunError("weft compress", f"{folder / STATE} is damaged: {error}.") from None
    state: dict[str, Any] = found
    return state


def planned_densities(settings: Mapping[str, Any]) -> tuple[float, ...]:
    """The densities that a sweep tries, from the largest; one for a size or a speed, which is found by a search."""
    target, swept = target_of(settings.get("target")), method_of(settings).swept
    if swept is None or (target is not None and target.what in ("size", "speed")):
        return (1.0,)
    return tuple(sorted(settings.get("density") or (SWEEP if swept == "prune" else WIDTHS), reverse=True))


def allowed_error(state: Mapping[str, Any]) -> float:
    """The largest error that a point may have to be chosen; of a compression to a size or a speed, any."""
    target = target_of(state["settings"].get("target"))
    if target is not None and target.what in ("size", "speed"):
        return float("inf")
    points = (
        target.value
        if target is not None and target.what == "error"
        else float(state["settings"].get("tolerance") or 0.0)
    )
    return float(state["original"]["error"]) + points / 100


def front(points: Sequence[Point], by: str = "bytes") -> list[Point]:
    """The points that no other one beats in both size (or `latency_ms`) and error: the Pareto front, from small to large.

    >>> found = [{"bytes": 9, "error": 0.1}, {"bytes": 5, "error": 0.2}, {"bytes": 7, "error": 0.3}]
    >>> [point["bytes"] for point in front(found)]
    [5, 9]
    """
    known = sorted((p for p in points if p.get(by) is not None), key=lambda p: (p[by], p["error"]))
    best: list[Point] = []
    for point in known:
        if not best or point["error"] < best[-1]["error"]:
            best.append(point)
    return best


def find_point(folder: Path, number: int) -> dict[str, Any]:
    """A point of a compression by its number."""
    points = read_state(folder)["points"]
    found = [point for point in points if point["number"] == number]
    if not found:
        known = ", ".join(str(point["number"]) for point in points) or "none yet"
        raise UserError("weft compress", f"a point of {folder.name} is required ({known}), got {number}.")
    point: dict[str, Any] = found[0]
    return point


def keep_point(folder: Path, number: int, name: str | None = None) -> Path:
    """Copy a point of a compression into a run of its own, also while others are still being made; its folder."""
    point, state = find_point(folder, number), read_state(folder)
    made = folder / "points" / str(number)
    if not (made / PACKED).exists():
        raise RunError("weft compress", f"{made} is gone: point {number} cannot be kept.")
    if name is None:
        run = RunFolder.fresh(folder.parent, f"{Path(state['source']).name}-point{number}-")
    else:
        run = RunFolder.named(folder.parent, name)
    try:
        # args.yaml makes a run of a folder, so it is written last.
        shutil.copytree(made, run.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("args.yaml"))
        shutil.copyfile(run.path / "weights" / "best.safetensors", run.path / "weights" / "last.safetensors")
        if (folder / "env.json").exists():
            shutil.copyfile(folder / "env.json", run.path / "env.json")
        _copy_history(folder, run.path, point.get("epochs"))
        numbers = {key: point[key] for key in ("loss", "accuracy") if key in point}
        known = {key: value for key, value in point.items() if key != "layers"}
        run.write_json("summary.json", {point["split"]: numbers, "compression": known, "ended": ENDED})
        run.write_json(STATE, {**state, "points": [point], "chosen": number, "done": True})
        run.settings({**settings_of("compress", made), "name": run.path.name})
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)
        raise
    return run.path


def _copy_history(folder: Path, new: Path, epochs: int | None) -> None:
    """The epochs that led to a point."""
    path = folder / "metrics.csv"
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        (new / "metrics.csv").write_text("".join(lines if epochs is None else lines[: epochs + 1]), encoding="utf-8")
