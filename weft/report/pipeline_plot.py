"""The picture of pipelines at work: a row for each stage, a box for each pass over a micro-batch, and gaps where a stage was idle."""

from __future__ import annotations

from collections.abc import Iterator

from ..parallel.pipeline_report import PipelineReport, StageEvent
from . import svg

WIDTH, LEFT, RIGHT, MARGIN = 960, 96, 132, 20
TOP, ROW, BAR, HEAD = 92, 34, 26, 44  # HEAD: the line above the rows of a step
COLOURS = {"forward": 0, "backward": 1, "update": 3}


def pipeline_svg(*reports: PipelineReport) -> str:
    """Steps below each other on one time scale, as SVG with light and dark colours.

    >>> from weft.parallel.pipeline_report import StageRecord
    >>> stage = StageRecord(0, [StageEvent("forward", 0, 0, 10**6), StageEvent("backward", 0, 10**6, 3 * 10**6)])
    >>> picture = pipeline_svg(PipelineReport("gpipe", 1, (stage,), ("0 to 3",), (1.0,)))
    >>> picture.startswith("<svg"), "backward" in picture
    (True, True)
    """
    longest = max(_seconds(report) for report in reports)
    rows = sum(len(report.stages) for report in reports)
    height = TOP + len(reports) * HEAD + rows * ROW + MARGIN
    parts, y = list(_head()), float(TOP)
    for report in reports:
        parts += _step(report, y, longest)
        y += HEAD + len(report.stages) * ROW
    return svg.document(WIDTH, height, "Passes of pipeline stages over time", parts)


def _seconds(report: PipelineReport) -> float:
    return (max(e.end for s in report.stages for e in s.events) - report.begin) / 1e9


def _head() -> Iterator[str]:
    yield svg.text(MARGIN, 32, "Pipeline stages over time", "title")
    x = float(MARGIN)
    for phase, colour in COLOURS.items():
        yield svg.rect(x, 49, 11, 11, f"f{colour}", corner=2)
        yield svg.text(x + 17, 59, phase)
        x += 34 + svg.text_width(phase)
    yield svg.rect(x, 49, 11, 11, "tile", corner=2)
    yield svg.text(x + 17, 59, "idle")


def _step(report: PipelineReport, top: float, longest: float) -> Iterator[str]:
    yield svg.text(MARGIN, top + 14, report.schedule, "strong")
    words = (
        f"{1e3 * report.seconds:.1f} ms, idle {report.bubble:.0%}; {report.ideal:.0%} for {len(report.stages)} equal "
        f"stages and {report.micro_batches} micro-batches"
    )
    yield svg.text(LEFT, top + 14, words, "soft")
    yield svg.text(WIDTH - MARGIN, top + 14, "idle, stored", "soft", anchor="end", size=11)
    for number, stage in enumerate(report.stages):
        y = top + 26 + number * ROW
        yield svg.text(MARGIN, y + BAR - 8, f"stage {number}", note=report.layers[number])
        width = (WIDTH - LEFT - RIGHT) * _seconds(report) / longest
        yield svg.rect(LEFT, y, width, BAR, "tile", corner=3)
        for event in stage.events:
            if event.phase in COLOURS:
                yield from _box(event, report.begin, y, longest)
        facts = f"{report.idle(number):.0%}, {stage.stored_bytes / 1e6:.2f} MB"
        yield svg.text(WIDTH - MARGIN, y + BAR - 8, facts, "soft", anchor="end", size=11)


def _box(event: StageEvent, begin: int, y: float, longest: float) -> Iterator[str]:
    scale = (WIDTH - LEFT - RIGHT) / longest
    x, width = LEFT + scale * (event.begin - begin) / 1e9, scale * event.seconds
    label = str(event.micro_batch) if event.micro_batch >= 0 else ""
    note = f"{event.phase} of micro-batch {label}" if label else event.phase
    note += f": {1e3 * event.seconds:.2f} ms"
    yield svg.rect(x, y, max(0.8, width - 0.8), BAR, f"f{COLOURS[event.phase]}", note=note, corner=2)
    if label and width > svg.text_width(label, 10) + 4:
        yield svg.text(x + width / 2, y + BAR - 9, label, "over strong", anchor="middle", size=10)
