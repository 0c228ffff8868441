"""Compares the modelled energy of a network in several forms: number formats, int8, sparse and shared weights, and where the energy changed.

    print(energy_comparison(model, x))

A form is either a separate program, whose kernels are counted, or the float32 program with narrower values where weft has no such program.
Every row says which. Energy is modelled (see `weft.insight.energy`); it does not depend on values, so the network need not be trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..compress.observers import evaluating
from ..errors import RunError, UserError
from ..nn.module import Module
from ..records import dataclass
from .energy_counts import CACHE, kernel_counts
from .energy_forms import DENSITY, FORMS, form_profile
from .energy_model import LEVELS, energy
from .profile import ProgramProfile, profile
from .profile_text import amount, cut, table

GROUPS = {"arithmetic": "arithmetic", "register": "registers", CACHE: "cache", "dram": "DRAM"}
SMALL = 0.005  # fraction of the energy: smaller causes are not listed


@dataclass(frozen=True)
class EnergyForm:
    """The modelled energy of a call of a network in one form, by layer and by cause: `mac float32`, `register`, `l3`, `dram`."""

    name: str
    layers: Mapping[str, Mapping[str, float]]  # joules of each cause, by layer
    own_program: bool  # False: the operations of the float32 program, with values of this format
    note: str = ""

    @property
    def by_cause(self) -> dict[str, float]:
        """Joules of each cause."""
        causes = dict.fromkeys(cause for layer in self.layers.values() for cause in layer)
        return {cause: math.fsum(layer.get(cause, 0.0) for layer in self.layers.values()) for cause in causes}

    @property
    def by_group(self) -> dict[str, float]:
        """Joules of arithmetic in all formats, registers, the last-level cache and DRAM."""
        found = dict.fromkeys(GROUPS, 0.0)
        for cause, joules in self.by_cause.items():
            found[cause if cause in LEVELS else "arithmetic"] += joules
        return found

    @property
    def joules(self) -> float:
        return math.fsum(self.by_cause.values())

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats it computes in, in descending order of energy."""
        found: dict[str, float] = {}
        for cause, joules in self.by_cause.items():
            if cause not in LEVELS:
                format = cause.partition(" ")[2]
                found[format] = found.get(format, 0.0) + joules
        total = sum(found.values())
        return tuple(format for format in sorted(found, key=lambda f: -found[f]) if found[format] > SMALL * total)


@dataclass(frozen=True)
class EnergyComparison:
    """Forms of a network, compared with the first. `print` it."""

    forms: tuple[EnergyForm, ...]
    node_nm: float
    cache_bytes: float
    title: str = ""  # of the network
    left_out: tuple[str, ...] = ()  # forms that the network does not have, and why

    def __getitem__(self, name: str) -> EnergyForm:
        known = {form.name: form for form in self.forms}
        if name not in known:
            raise UserError("energy_comparison", f"there is no form {name!r}. Known are: {', '.join(known)}.")
        return known[name]

    def moved(self, name: str) -> dict[str, float]:
        """The change of each cause in joules from the first form to this one, the largest changes first."""
        before, after = self.forms[0].by_group, self[name].by_group
        changes = {group: after[group] - before[group] for group in GROUPS}
        return dict(sorted(changes.items(), key=lambda item: -abs(item[1])))

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        rows = [
            {
                "name": form.name, "joules": form.joules, "own_program": form.own_program, "formats": form.formats, "note": form.note,
                "by_cause": form.by_cause, "by_layer": form.layers, "moved": self.moved(form.name),
            }
            for form in self.forms
        ]  # fmt: skip
        return {
            "subject": self.title,
            "modelled": True,
            "process_nm": self.node_nm,
            "cache_bytes": self.cache_bytes,
            "forms": rows,
            "left_out": list(self.left_out),
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> EnergyComparison:
        """The comparison that `to_dict` wrote; RunError if something is missing."""
        try:
            forms = tuple(
                EnergyForm(
                    str(one["name"]),
                    {str(layer): {str(cause): float(joules) for cause, joules in causes.items()} for layer, causes in one["by_layer"].items()},
                    bool(one["own_program"]), str(one["note"]),
                )
                for one in found["forms"]
            )  # fmt: skip
            if not forms:
                raise ValueError("it has no forms")
            left_out = tuple(map(str, found["left_out"]))
            return cls(forms, float(found["process_nm"]), float(found["cache_bytes"]), str(found["subject"]), left_out)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError("energy_comparison", f"a comparison of forms is damaged: {error}.") from None

    def text(self, rows: int = 40) -> str:
        """Tables of the forms and of their layers, at most `rows` of them, and the changes."""
        return "\n\n".join(
            [*filter(None, [self.title]), self._forms(), self._changes(), self._layers(rows), self._notes()]
        )

    def __str__(self) -> str:
        return self.text()

    def _forms(self) -> str:
        lines = [["form", "energy", *GROUPS.values(), f"of {self.forms[0].name}", "computes in", "counts"]]
        for form in self.forms:
            share = form.joules / (self.forms[0].joules or 1.0)
            how = "its own program" if form.own_program else "the float32 program's"
            groups = [f"{amount(joules)}J" for joules in form.by_group.values()]
            lines.append([form.name, f"{amount(form.joules)}J", *groups, f"{share:.1%}", ", ".join(form.formats), how])
        return table(lines, left=1, ragged=(len(lines[0]) - 2, len(lines[0]) - 1))

    def _changes(self) -> str:
        first = self.forms[0]
        lines = [f"what moved, against {first.name}"]
        for form in self.forms[1:]:
            parts = [
                f"{GROUPS[group]} {signed(change)} ({change / first.by_group[group]:+.0%})"
                if first.by_group[group]
                else f"{GROUPS[group]} {signed(change)}"
                for group, change in self.moved(form.name).items()
                if abs(change) > SMALL * first.joules
            ]
            lines.append(f"{form.name}: {', '.join(parts) or 'nothing'}")
        return "\n".join(lines)

    def _layers(self, most: int) -> str:
        names = dict.fromkeys(name for form in self.forms for name in form.layers)
        largest = {name: max(math.fsum(form.layers.get(name, {}).values()) for form in self.forms) for name in names}
        shown = set(sorted((name for name in names if largest[name]), key=lambda name: -largest[name])[:most])
        lines = [["layer", *(form.name for form in self.forms)]]
        for name in (name for name in names if name in shown):
            lines.append([cut(name), *(_cell(form.layers.get(name)) for form in self.forms)])
        return table(lines, left=1)

    def _notes(self) -> str:
        cache = f"{amount(self.cache_bytes)}B" if self.cache_bytes else "unknown"
        lines = [
            f"energy: modelled, arithmetic and data movement in a {self.node_nm:g} nm process; last-level cache: {cache}"
        ]
        return "\n".join([*lines, *(f"{form.name}: {form.note}" for form in self.forms if form.note), *self.left_out])


def energy_comparison(
    model: Module,
    *args: Any,
    forms: Sequence[str] = FORMS,
    density: float = DENSITY,
    node_nm: float = 45,
    against: Mapping[str, ProgramProfile] | None = None,
) -> EnergyComparison:
    """Compare the modelled energy of a call of a network in several forms; the network is not changed.

    `forms`: a number format (float32, float16, bfloat16, fixed point such as q7.8), int8, `sparse` (pruned to `density`), `shared` (pruned, weights
    shared by 5 bits) or `int4 weights`. `against` are profiles of other networks to show beside them, such as a compressed one.

    >>> import weft
    >>> from weft import nn
    >>> found = energy_comparison(nn.Sequential(nn.Linear(64, 64)), weft.ones((1, 64)), forms=("float32", "float16", "sparse"))
    >>> found["float16"].joules < found["float32"].joules, found["sparse"].own_program
    (True, True)
    """
    if not forms:
        raise UserError("energy_comparison", "a form or more is required, got none.")
    with evaluating(model):
        base = profile(model, *args, repeats=1, node_nm=node_nm)
        made = [form_profile(base, model, args, form, density) for form in forms]
    pairs = list(zip(forms, made, strict=True))
    rows = [
        EnergyForm(form, energy_by_layer(one.profile), one.own_program, one.note) for form, one in pairs if one.profile
    ]
    left_out = tuple(f"{form}: {one.note}" for form, one in pairs if not one.profile)
    rows += [EnergyForm(name, energy_by_layer(found), True) for name, found in (against or {}).items()]
    if not rows:
        raise UserError("energy_comparison", f"none of the forms can be made. {' '.join(left_out)}")
    return EnergyComparison(tuple(rows), node_nm, base.cache_bytes, left_out=left_out)


def energy_by_layer(found: ProgramProfile) -> dict[str, dict[str, float]]:
    """The modelled joules of each cause, by layer. The energy of a kernel of several layers is divided by their share of the work."""
    layers: dict[str, dict[str, float]] = {}
    cache = found.cache
    for kernel in found.kernels:
        causes = energy(kernel_counts(kernel, cache), found.node_nm).by_cause
        for scope, share in kernel.layers:
            label = scope.label.removeprefix("body.")
            layer = layers.setdefault(label, {})
            for cause, joules in causes.items():
                layer[cause] = layer.get(cause, 0.0) + share * joules
    return layers


def signed(joules: float) -> str:
    """
    >>> signed(-0.002), signed(1.5e-6)
    ('-2.00 mJ', '+1.50 uJ')
    """
    return f"{'-' if joules < 0 else '+'}{amount(abs(joules))}J"


def _cell(causes: Mapping[str, float] | None) -> str:
    return "" if causes is None else f"{amount(math.fsum(causes.values()))}J"
