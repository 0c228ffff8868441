"""What the card "Energy in other forms" shows: a bar for each form, what moved, and the layers of the form that is selected."""

from __future__ import annotations

import math

from ...insight.energy_comparison import GROUPS, EnergyComparison, EnergyForm
from ...insight.profile_text import amount
from ...records import dataclass

COLOURS = dict(zip(GROUPS, ("s1", "s4", "s3", "s2"), strict=True))
MOST_LAYERS = 12
SMALL = 0.005  # of the energy of the first form: changes below are not named


@dataclass(frozen=True)
class BarPart:
    """A cause in a bar: its width in percent of the longest bar."""

    group: str
    colour: str
    width: float
    text: str


@dataclass(frozen=True)
class EnergyBar:
    """A form."""

    name: str
    energy: str
    share: str  # of the first form
    parts: tuple[BarPart, ...]
    computes_in: str
    own_program: bool
    note: str
    is_less: bool


def joules_text(joules: float) -> str:
    """An energy with its unit.

    >>> joules_text(6.9e-05), joules_text(0)
    ('69.0 µJ', '0 J')
    """
    return f"{amount(joules)}J".replace("u", "µ")


def energy_bars(found: EnergyComparison) -> list[EnergyBar]:
    """A bar for each form, as long as its energy."""
    longest = max(form.joules for form in found.forms) or 1.0
    return [_bar(found, form, longest) for form in found.forms]


def _bar(found: EnergyComparison, form: EnergyForm, longest: float) -> EnergyBar:
    first = found.forms[0]
    parts = tuple(
        BarPart(group, COLOURS[group], 100 * joules / longest, f"{GROUPS[group]} {joules_text(joules)}, {joules / (form.joules or 1.0):.0%}")
        for group, joules in form.by_group.items()
        if joules > 0
    )  # fmt: skip
    share = "" if form is first else f"{100 * form.joules / (first.joules or 1.0):.0f} %"
    return EnergyBar(
        form.name, joules_text(form.joules), share, parts, ", ".join(form.formats), form.own_program, form.note,
        form.joules < first.joules,
    )  # fmt: skip


def moved_text(found: EnergyComparison, name: str) -> list[tuple[str, str, bool]]:
    """What changed from the first form to this one: the cause, by how much, and whether it is less."""
    first = found.forms[0]
    rows = []
    for group, change in found.moved(name).items():
        if abs(change) > SMALL * first.joules:
            before = first.by_group[group]
            relative = f" ({100 * change / before:+.0f} %)".replace("-", "−") if before else ""
            rows.append(
                (GROUPS[group], f"{'−' if change < 0 else '+'}{joules_text(abs(change))}{relative}", change < 0)
            )
    return rows


def layer_energies(found: EnergyComparison, name: str) -> list[tuple[str, str, str, float]]:
    """Layers with their energy in the first form and in this one, and the ratio; those that cost most first."""
    first, form = found.forms[0], found[name]
    labels = dict.fromkeys((*first.layers, *form.layers))
    sums = {label: tuple(math.fsum(one.layers.get(label, {}).values()) for one in (first, form)) for label in labels}
    ordered = sorted((label for label in labels if max(sums[label]) > 0), key=lambda label: -max(sums[label]))
    return [
        (label, joules_text(sums[label][0]), joules_text(sums[label][1]), sums[label][1] / (sums[label][0] or math.inf))
        for label in ordered[:MOST_LAYERS]
    ]  # fmt: skip
