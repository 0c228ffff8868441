"""How a compression looks for its points: one that is small or fast enough, or a sweep of points of falling density."""

from __future__ import annotations

import copy
import shutil

from ...compress.channels import prune_channels
from ...compress.size_search import LEAST, density_for, packed_bytes
from ...errors import RunError
from .run import Compression
from .settings import WIDTHS
from .state import allowed_error, planned_densities
from .steps import SWEPT, without_channels

_MARGIN = 1.02  # training changes sizes a little
_TRIES = 4  # to reach a size or a speed


def make_points(work: Compression) -> None:
    """Make the points that the target of a compression asks for."""
    what = work.target.what if work.target is not None else ""
    {"size": reach_size, "speed": reach_speed}.get(what, sweep)(work)


def reach_size(work: Compression) -> None:
    """One point that is small enough. If training made it larger, more is pruned."""
    assert work.target is not None
    overhead = work.first["bytes"] - work.first["weights_bytes"]
    most, bits = work.before / work.target.value, None if work.method.bits is None else min(8, work.method.bits)
    options = {"half": work.settings["half"], "coder": work.method.coder}
    for attempt in range(_TRIES):
        work.recorder.show("activity", text=f"finding densities for {work.target}")
        density = density_for(work.model, (most - overhead) / _MARGIN ** (attempt + 1), bits, **options)
        if density is None:
            least = packed_bytes(work.model, LEAST, bits, **options) + overhead
            raise _unreachable(
                work,
                f"the nearest point found is {work.before / least:.1f} times smaller, where the largest layer keeps {LEAST:.2%} of its "
                f"weights and {overhead:,} bytes of {least:,} are the program around them.",
            )
        SWEPT["prune"](work.context, work.model, density, f"{attempt}", work.settings["steps"] if attempt == 0 else 1)
        point = work.point(density, attempt + 1)
        if point["ratio"] >= work.target.value:
            return
    raise RunError(
        "weft compress",
        f"{work.target} was not reached: the nearest point found is {point['ratio']:.1f} times smaller.",
    )


def reach_speed(work: Compression) -> None:
    """One point that is fast enough. Latency does not depend on weights, so the width is found before anything is trained."""
    assert work.target is not None
    widths = [*WIDTHS, WIDTHS[-1] / 2, WIDTHS[-1] / 4]
    start = _first_fast_width(work, widths)
    for attempt, width in enumerate(widths[start : start + _TRIES]):
        SWEPT["channels"](work.context, work.model, width, f"{attempt}", work.settings["steps"] if attempt == 0 else 1)
        point = work.point(width, attempt + 1)
        if point["speed"] is not None and point["speed"] >= work.target.value:
            return
    raise RunError(
        "weft compress",
        f"{work.target} was not reached: the nearest point found is {point['speed']:.1f} times as fast.",
    )


def _first_fast_width(work: Compression, widths: list[float]) -> int:
    """The place of the largest share of channels that is fast enough; kept in the state, because a resumed compression may measure otherwise."""
    assert work.target is not None
    if "width_place" not in work.state:
        speeds = []
        for width in widths:
            work.recorder.show("activity", text=f"measuring {width:.0%} of the channels")
            model = copy.deepcopy(work.model)
            prune_channels(model, work.context.example, width)
            without_channels(work.context, model)
            speeds.append(work.points.speed(model, work.folder.path / "steps" / "trial.weft") or 0.0)
            if speeds[-1] >= work.target.value:
                break
        else:
            best = max(speeds)
            raise _unreachable(
                work,
                f"the nearest point found is {best:.1f} times as fast, with {widths[speeds.index(best)]:.0%} of the channels.",
            )
        work.state["width_place"] = len(speeds) - 1
        work.keep_state()
    return int(work.state["width_place"])


def _unreachable(work: Compression, nearest: str) -> RunError:
    """The answer to a target that cannot be reached. If nothing was trained, no run stays behind."""
    if not work.state["points"]:
        shutil.rmtree(work.folder.path)
    return RunError("weft compress", f"{work.target} cannot be reached with {work.method}: {nearest}")


def sweep(work: Compression) -> None:
    """Points of falling density, each with less than the one before; with a target for the error until it is missed."""
    for number, density in enumerate(planned_densities(work.settings), 1):
        swept = work.method.swept
        if swept == "low_rank":
            work.model = copy.deepcopy(work.original)  # factors are not cut again
        if swept is not None:
            SWEPT[swept](work.context, work.model, density, f"{number}", work.settings["steps"] if number == 1 else 1)
        point = work.point(density, number)
        if work.target is not None and work.target.what == "error" and point["error"] > allowed_error(work.state):
            break
