"""What the tab Compress says in numbers: the strip of metrics of a point, and a row of each point."""

from __future__ import annotations

from ...jobs.compression.settings import CompressionMethod, method_of, target_of
from ...jobs.compression.state import Point, front
from ...records import dataclass
from ..library.compressions import CompressionView
from .energy_view import joules_text
from .formats import metric_value, size, three_figures

GAIN = 1.05  # times as good: less is not said


@dataclass(frozen=True)
class CompressionTile:
    """A cell of the strip of metrics."""

    title: str
    number: str
    unit: str
    context: str
    tone: str = ""


def compression_tiles(view: CompressionView, point: Point) -> list[CompressionTile]:
    """Size, accuracy, latency and energy of a point beside the original, and how many points are good enough."""
    original = view.original or point
    plain = original["bytes"] * original["ratio"]
    number, unit = size(point["bytes"]).split(" ")
    found = [
        CompressionTile(
            f"Size, point {point['number']}",
            number,
            unit,
            f"{point['ratio']:.1f} times smaller, was {size(plain)}",
            "up",
        )
    ]
    found.append(_quality(point, original))
    if point.get("latency_ms") is not None and original.get("latency_ms") is not None:
        found.append(_latency(point, original))
    joules, before = point.get("joules"), original.get("joules")
    found.append(_energy(joules, before) if joules and before else _weights(point))
    good = meeting(view)
    found.append(
        CompressionTile("Good enough", str(len(good)), "point" if len(good) == 1 else "points", wanted_text(view))
    )
    return found


def _quality(point: Point, original: Point) -> CompressionTile:
    name = "accuracy" if "accuracy" in original else "loss"
    number, _, unit = metric_value(name, point[name]).partition(" ")
    change = point[name] - original[name]
    if name == "accuracy":
        context = f"{_signed(100 * change)} points of {metric_value(name, original[name])}"
    else:
        context = f"{metric_value(name, original[name])} before"
    return CompressionTile(
        f"{point['split'].capitalize()} {name}", number, unit, context, "" if change < 0 else "up" if change > 0 else ""
    )


def _latency(point: Point, original: Point) -> CompressionTile:
    speed = speed_of(point, original)
    where = f" on {point['device']}" if point.get("device") else ""
    context = (
        f"{speed:.1f} times as fast{where}"
        if speed >= GAIN
        else f"{three_figures(point['latency_ms'] * speed)} ms before{where}"
    )
    return CompressionTile(
        "Latency, batch 1", three_figures(point["latency_ms"]), "ms", context, "up" if speed >= GAIN else ""
    )


def _energy(joules: float, before: float) -> CompressionTile:
    number, unit = joules_text(joules).split(" ")
    gain = before / joules
    context = f"{gain:.1f} times less" if gain >= GAIN else f"{joules_text(before)} before"
    return CompressionTile("Energy, modelled", number, unit, context, "up" if gain >= GAIN else "")


def _weights(point: Point) -> CompressionTile:
    """Of a compression that was made before energies were modelled."""
    kept = sum(layer["weights"] * layer["density"] for layer in point["layers"])
    every = sum(layer["weights"] for layer in point["layers"])
    return CompressionTile("Weights kept", f"{100 * kept / max(1, every):.3g}", "%", f"{kept:,.0f} of {every:,}")


def speed_of(point: Point, original: Point) -> float:
    """How many times as fast as the original a point is: measured together, else from two measurements."""
    return float(point.get("speed") or original["latency_ms"] / point["latency_ms"])


def _signed(value: float) -> str:
    """
    >>> _signed(0.42), _signed(-0.04), _signed(0.0)
    ('+ 0.42', '− 0.04', '± 0')
    """
    return "± 0" if round(value, 2) == 0 else f"{'+' if value > 0 else '−'} {abs(value):.2f}"


def meeting(view: CompressionView) -> list[Point]:
    """The points that are good enough: small enough for a target size, else within the error that is allowed."""
    return [point for point in view.points if not _miss(view, point)]


def wanted_text(view: CompressionView) -> str:
    """What is asked of a point."""
    target = target_of(view.settings.get("target"))
    if target is not None and target.what in ("size", "speed"):
        return f"{target.value:g} times {'smaller' if target.what == 'size' else 'as fast'}"
    lost = target.value if target is not None and target.what == "error" else float(view.settings.get("tolerance") or 0)
    return f"at most {lost:g} {'point' if lost == 1 else 'points'} lost"


def said_of_target(view: CompressionView) -> str:
    """One sentence about the points so far."""
    good = meeting(view)
    if not view.points:
        return ""
    if not good:
        return f"No point yet: {wanted_text(view)}."
    smallest = min(good, key=lambda point: point["bytes"])
    verb = "point is" if len(good) == 1 else "points are"
    return f"{len(good)} {verb} good enough. The smallest has {size(smallest['bytes'])}."


def _miss(view: CompressionView, point: Point) -> str:
    """Why a point is not good enough."""
    target = target_of(view.settings.get("target"))
    if target is not None and target.what == "size":
        return "" if point["ratio"] >= target.value else "Too large"
    if target is not None and target.what == "speed":
        return "" if (point.get("speed") or 0) >= target.value else "Too slow"
    return "" if point["error"] <= view.allowed_error else "Too inaccurate"


@dataclass(frozen=True)
class PointRow:
    """A row of the table of points."""

    point: Point
    recipe: str
    state: str
    tone: str
    is_front: bool


def point_rows(view: CompressionView) -> list[PointRow]:
    """The points, the last first."""
    best = front(view.points)
    rows, method = [], method_of(view.settings)
    for point in reversed(view.points):
        miss = _miss(view, point)
        state, tone = (
            ("Kept", "ok") if point["number"] == view.chosen else (miss, "") if miss else ("Good enough", "ok")
        )
        rows.append(PointRow(point, recipe_of(point, method), state, tone, any(one is point for one in best)))
    return rows


def recipe_of(point: Point, method: CompressionMethod) -> str:
    """What was done, in a few words."""
    share = f"{100 * point['density']:.3g} %"
    parts = {
        "prune": f"{share} of the weights",
        "channels": f"{share} of the channels",
        "low_rank": f"low rank, {share} of the numbers",
    }
    values = {
        "share": f"{point.get('bits')} bits shared",
        "int8": "int8",
        "fixed": f"fixed point, {point.get('bits')} bits",
    }
    told = [parts.get(method.swept or "", ""), values.get(method.values or "", "")]
    return ", ".join(filter(None, told)) or "packed"
