"""A profile as text: the layers, the phases, the kernels furthest from the roof, and how it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..explain import Explanation
from ..report.text_format import counted
from .bounds import Bound
from .layer_profile import KernelProfile, LayerProfile

LONGEST = 44  # characters of a name
LAYERS, WORST = 40, 10
UNEXPLAINED = 0.2  # fraction of a call: more than this outside of kernels is reported


class PrintableProfile(Protocol):
    """The attributes of a profile that the text needs: see `ProgramProfile`."""

    @property
    def where(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def node_nm(self) -> float: ...
    @property
    def explanation(self) -> Explanation: ...
    @property
    def kernels(self) -> tuple[KernelProfile, ...]: ...
    @property
    def layers(self) -> tuple[LayerProfile, ...]: ...
    @property
    def by_layer(self) -> tuple[LayerProfile, ...]: ...
    @property
    def by_phase(self) -> dict[str, LayerProfile]: ...
    @property
    def total(self) -> LayerProfile: ...
    def bound(self, one: KernelProfile) -> Bound: ...
    def worst(self, most: int) -> list[KernelProfile]: ...
    def without_rows(self) -> PrintableProfile: ...


def profile_text(found: PrintableProfile, layers: int = LAYERS, worst: int = WORST) -> str:
    """The whole report; `layers` and `worst` limit its two tables."""
    parts = [_head(found), _layers(found, layers), _phases(found), _worst(found, worst), _notes(found)]
    return "\n\n".join(part for part in parts if part)


def _head(found: PrintableProfile) -> str:
    total = found.total
    return (
        f"{duration(found.seconds)} a call on {found.where}: {amount(total.flops)}FLOP ({amount(total.flops / found.seconds)}FLOP/s), "
        f"{amount(total.nbytes)}B moved ({amount(total.nbytes / found.seconds)}B/s), {total.roof:.0%} of the roof"
    )


def _layers(found: PrintableProfile, most: int) -> str:
    every = found.by_layer
    shown = sorted(sorted(every, key=lambda one: -one.seconds)[:most], key=every.index)
    phases = [phase for phase in ("forward", "backward", "update") if phase in found.by_phase]
    times = {(one.path, one.kind, one.root, one.phase): one.seconds for one in found.layers}
    titles = [
        "layer",
        "",
        *(phases if len(phases) > 1 else ()),
        "time",
        "share",
        "FLOP",
        "bytes",
        "FLOP/B",
        "roof",
        "memory",
        "energy",
    ]
    rows = [titles]
    for one in [*shown, found.total]:
        name, kind = ("total", "") if one is found.total else (one.label, one.kind if one.path else "")
        apart = [_phase_time(found, times, one, phase) for phase in phases] if len(phases) > 1 else []
        rows.append([cut(name), kind, *apart, *_numbers(found, one)])
    text = table(rows, left=2)
    hidden = len(every) - len(shown)
    return f"{text}\n{hidden} layers with less time are not shown" if hidden else text


def _phase_time(
    found: PrintableProfile, times: dict[tuple[str, str, int, str], float], one: LayerProfile, phase: str
) -> str:
    if one is found.total:
        return duration(found.by_phase[phase].seconds)
    if (one.phase == "update") != (phase == "update"):
        return ""
    seconds = times.get((one.path, one.kind, one.root, phase))
    return duration(seconds) if seconds else ""


def _numbers(found: PrintableProfile, one: LayerProfile) -> list[str]:
    return [
        duration(one.seconds), f"{one.seconds / max(found.total.seconds, 1e-12):.1%}", amount(one.flops), amount(one.nbytes),
        f"{one.intensity:.1f}", f"{one.roof:.0%}", amount(one.live), f"{amount(one.joules)}J",
    ]  # fmt: skip


def _phases(found: PrintableProfile) -> str:
    if len(found.by_phase) < 2:
        return ""
    parts = (
        f"{phase} {duration(one.seconds)} ({one.seconds / found.total.seconds:.0%})"
        for phase, one in found.by_phase.items()
    )
    return f"phases: {', '.join(parts)}"


def _worst(found: PrintableProfile, most: int) -> str:
    kernels = [k for k in found.worst(most) if k.seconds > k.least]
    if not kernels:
        return ""
    rows = [["kernels furthest from the roof", "lost", "roof", "bound by", "what would help"]]
    for kernel in kernels:
        bound = found.bound(kernel)
        rows.append(
            [cut(kernel.name), duration(kernel.seconds - kernel.least), f"{kernel.roof:.0%}", bound.limit, bound.advice]
        )
    return table(rows, left=1, ragged=(3, 4))


def _notes(found: PrintableProfile) -> str:
    explanation = found.explanation
    lines = [f"roof: {explanation.roof}"]
    if explanation.prepared:
        lines.append(
            f"constants: {counted(explanation.prepared, 'kernel')} that run once to prepare constants are not included"
        )
    if explanation.overhead is not None:
        lines.append(
            f"timing: kernels are timed inside the program, medians of {explanation.runs} runs; timed runs take "
            f"{max(explanation.overhead, 0):.1%} longer than others"
        )
    if found.total.seconds < (1 - UNEXPLAINED) * found.seconds:
        lines.append(
            f"waiting: kernels take {duration(found.total.seconds)} of the {duration(found.seconds)} of a call; the rest of the time threads wait for a core "
            "(other programs are running)"
        )
    lines.append(
        f"memory: peak of {amount(explanation.memory.needed)}B, plus {amount(explanation.memory.inputs)}B of inputs and parameters"
    )
    lines.append(
        f"energy: modelled, arithmetic and data movement in a {found.node_nm:g} nm process (see weft.insight.energy)"
    )
    return "\n".join(lines)


# --- small helpers ----------------------------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """A time with a suitable unit.

    >>> duration(0.0123), duration(4.2e-6), duration(0.0)
    ('12.3 ms', '4.20 us', '0 s')
    """
    if not seconds:
        return "0 s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds / 1e-9)} ns"


def amount(number: float) -> str:
    """A number with a decimal prefix, to precede a unit.

    >>> amount(1.23e9) + "FLOP", amount(0.0042) + "J"
    ('1.23 GFLOP', '4.20 mJ')
    """
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)):
        if abs(number) >= size:
            return f"{_three(number / size)} {prefix}"
    for prefix, size in (("m", 1e-3), ("u", 1e-6), ("n", 1e-9), ("p", 1e-12)):
        if abs(number) >= size:
            return f"{_three(number / size)} {prefix}"
    return "0 "


def _three(x: float) -> str:
    return f"{x:.0f}" if x >= 99.95 else f"{x:.1f}" if x >= 9.995 else f"{x:.2f}"


def cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def table(rows: Sequence[Sequence[str]], left: int, ragged: Sequence[int] = ()) -> str:
    """Rows under the titles in the first one. The first `left` columns and the `ragged` ones are left-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            c.ljust(w) if i < left or i in ragged else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
