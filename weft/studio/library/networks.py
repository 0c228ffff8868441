"""All networks of a studio: those of the zoo, those that people wrote as text, and imported ones, with their best runs."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

from ... import zoo
from ...errors import WeftError
from ...jobs.network_store import ImportedNetwork, NetworkStore
from ...jobs.networks import VECTORS, WRITERS, build_network, build_vector_network
from ...nn.module import without_values
from ...nn.summary import Summary, summary
from ...records import dataclass
from ...zoo.catalogue import ALIASES, FACTS, MODULES
from ...zoo.definition import feature_profile, profile_svg
from .designs import check_design
from .runs import RunRow
from .zoo_profiles import PROFILES

ZOO, TEXT, IMPORTED = "zoo", "text", "imported"
LEAST_SPAN = 0.04  # of the accuracies on the chart


@dataclass(frozen=True)
class NetworkRow:
    """A network in the table."""

    name: str
    kind: str
    about: str
    task: str
    input: tuple[int, ...] = ()
    parameters: int = 0
    macs: int | None = None
    profile: tuple[tuple[int, int], ...] = ()
    problem: str = ""  # of a text that is not valid, or of a file that cannot be used as it is
    best: RunRow | None = None
    runs: int = 0

    @property
    def picture(self) -> str:
        return profile_svg(self.profile)


def network_rows(store: NetworkStore, runs: Sequence[RunRow]) -> list[NetworkRow]:
    """Trained ones first, the best before the others; then by name."""
    found = [*_zoo_rows(), *map(_imported_row, store.imported())]
    found += [_text_row(name, store) for name in store.names()]
    best, counts = _best_runs(runs)
    rows = [replace(row, best=best.get(row.name), runs=counts.get(row.name, 0)) for row in found]
    return sorted(
        rows, key=lambda row: (row.best is None, -((row.best and row.best.best) or 0.0), row.kind != TEXT, row.name)
    )


def network_count(runs: Path) -> int:
    """How many networks there are."""
    store = NetworkStore(runs)
    return len(FACTS) + len(store.names()) + len(store.imported())


def _best_runs(runs: Sequence[RunRow]) -> tuple[dict[str, RunRow], dict[str, int]]:
    best: dict[str, RunRow] = {}
    counts: dict[str, int] = {}
    for row in runs:
        name = ALIASES.get(row.model, row.model)
        counts[name] = counts.get(name, 0) + 1
        if row.best is None or str(row.best_metric).endswith("loss"):
            continue
        if name not in best or row.best > (best[name].best or 0.0):
            best[name] = row
    return best, counts


@cache
def _zoo_rows() -> tuple[NetworkRow, ...]:
    abouts = zoo_abouts()
    return tuple(
        NetworkRow(
            name,
            ZOO,
            abouts.get(name, ""),
            facts.task,
            facts.input or (),
            facts.parameters,
            facts.macs,
            PROFILES.get(name, ()),
        )
        for name, facts in FACTS.items()
    )


@cache
def zoo_abouts() -> Mapping[str, str]:
    """The first sentence about each network of the zoo, read from its source: nothing is imported."""
    folder = Path(zoo.__file__).parent
    found = {}
    for module in MODULES:
        for statement in ast.parse((folder / f"{module}.py").read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.FunctionDef) and statement.name in FACTS:
                found[statement.name] = (
                    (ast.get_docstring(statement) or "").partition("\n")[0].partition(": ")[0].rstrip(".")
                )
    return found


def _text_row(name: str, store: NetworkStore) -> NetworkRow:
    try:
        text = store.text(name)
    except WeftError as error:
        return NetworkRow(name, TEXT, "", "", problem=error.message)
    return replace(_row_of_text(text), name=name)


@lru_cache(256)
def _row_of_text(text: str) -> NetworkRow:
    check = check_design(text)
    if check.plan is None or check.costs is None:
        return NetworkRow("", TEXT, "", "", problem=str(check.problems[0]))
    profile = feature_profile([layer.output for layer in check.costs.layers if layer.depth == 0])
    about = check.plan.definition.about or "designed in the studio"
    return NetworkRow(
        "",
        TEXT,
        about,
        _task(check.plan.output),
        check.plan.input,
        check.costs.parameters,
        check.costs.macs,
        tuple(profile),
    )


def _task(output: Sequence[int]) -> str:
    return "segmentation" if len(output) == 3 else "classification"


def _imported_row(one: ImportedNetwork) -> NetworkRow:
    kinds = {"program": "saved program", "onnx": "ONNX model", "weights": "weights"}
    about = f"{kinds[one.kind]}, {one.file}" + (f", for {one.network}" if one.network else "")
    task = {"classify": "classification", "regress": "regression"}.get(one.task, one.task)
    return NetworkRow(one.name, IMPORTED, about, task or one.kind, one.shape, one.parameters, None, (), one.problem)


def tasks(rows: Sequence[NetworkRow]) -> dict[str, int]:
    """What networks are for, with how many there are."""
    found: dict[str, int] = {}
    for row in rows:
        found[row.task] = found.get(row.task, 0) + 1
    return dict(sorted(found.items(), key=lambda one: -one[1]))


# --- accuracy against cost ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CostPoint:
    """A network in the chart of accuracy against multiply-adds; places from 0 to 1, from the left and from the bottom."""

    row: NetworkRow
    x: float
    y: float
    radius: float
    is_best: bool  # no other is better and cheaper


@dataclass(frozen=True)
class CostChart:
    """The best runs on one dataset: points, ticks and the front of those that nobody beats."""

    data: str
    points: tuple[CostPoint, ...]
    x_ticks: tuple[tuple[float, float], ...]  # place, multiply-adds
    y_ticks: tuple[tuple[float, float], ...]


def cost_chart(rows: Sequence[NetworkRow]) -> CostChart | None:
    """The chart for the dataset with the most networks; None for fewer than two of them."""
    trained = [row for row in rows if row.best is not None and row.best.best is not None and row.macs]
    counts: dict[str, int] = {}
    for row in trained:
        counts[str(row.best and row.best.data)] = counts.get(str(row.best and row.best.data), 0) + 1
    if not counts or max(counts.values()) < 2:
        return None
    data = max(counts, key=lambda name: counts[name])
    shown = [
        (row, float(row.macs or 1), float(row.best.best or 0.0))
        for row in trained
        if row.best is not None and row.best.data == data
    ]
    x_ticks = _log_ticks(min(m for _, m, _ in shown), max(m for _, m, _ in shown))
    y_ticks = _ticks(min(a for _, _, a in shown), max(a for _, _, a in shown))
    left, right = math.log(x_ticks[0]), math.log(x_ticks[-1])
    low, high = y_ticks[0], y_ticks[-1]
    most = max(row.parameters for row, _, _ in shown)
    points = tuple(
        CostPoint(
            row, (math.log(macs) - left) / (right - left), (value - low) / (high - low), 4 + 8 * math.sqrt(row.parameters / most),
            not any(m <= macs and a >= value and (m, a) != (macs, value) for _, m, a in shown),
        )
        for row, macs, value in sorted(shown, key=lambda one: one[1])
    )  # fmt: skip
    return CostChart(
        data,
        points,
        tuple(((math.log(t) - left) / (right - left), t) for t in x_ticks),
        tuple(((t - low) / (high - low), t) for t in y_ticks),
    )


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten around a range."""
    steps = [m * 10.0**e for e in range(0, 13) for m in (1, 2, 5)]
    inside = [s for s in steps if low / 2.5 <= s <= high * 2.5]
    every = max(1, len(inside) // 7)
    return inside[::every] if len(inside[::every]) > 1 else [low / 2, high * 2]


def _ticks(low: float, high: float) -> list[float]:
    """Round shares around a range."""
    low = min(low, high - LEAST_SPAN)  # networks that are all as good: not a thousandth of a percent from edge to edge
    span = high - low
    step = next(s for s in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if span / s <= 5)
    first = math.floor(low / step + 1e-9)
    return [round(i * step, 4) for i in range(first, math.ceil(high / step - 1e-9) + 1)]


# --- one network ----------------------------------------------------------------------------------------------------------------------


@cache
def layers_of(name: str) -> Summary | None:
    """The layers of a network of the zoo for its usual input; None for networks of text. Nothing is computed or allocated."""
    facts = FACTS[name]
    if name in WRITERS or facts.input is None:
        return None
    channels, height, width = facts.input
    try:
        with without_values():
            if name in VECTORS and name != "lenet_300_100":
                model = build_vector_network(name, channels * height * width, facts.classes or 10)
            else:
                model = build_network(name, facts.classes or 10, channels, (height, width))
            return summary(model, (1, channels, height, width))
    except WeftError:
        return None
