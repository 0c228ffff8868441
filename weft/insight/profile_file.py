"""Reads profiles stored as JSON: to show them later, to compare them, or to project them to another machine.

There is one format, `ProfileRecord.to_json`: the figures that are shown, and their program. Files of two older formats are read, too:
records without their program, and programs (`weft.profile(...).to_json()`) without figures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..compiler.cpu.roofline import Roof
from ..errors import RunError, Scope, UserError
from ..explain import Explanation, MemoryUse
from ..runtime.facts import GpuRoof, Roofline
from ..tpu.machine import TpuMachine
from ..tpu.roof import TpuRoof
from .layer_flow import flow_from_json
from .layer_profile import KernelProfile
from .profile import ProgramProfile
from .profile_record import (
    FORMAT,
    CallTimes,
    LayerRecord,
    MemoryRecord,
    MemoryStep,
    Offender,
    ProfileRecord,
    profile_record,
)
from .roof_lines import RoofLines

_WITHOUT_PROGRAM = 1  # the format of records that held no program


def profile_from_json(known: Mapping[str, Any]) -> ProgramProfile:
    """The profile that `ProgramProfile.to_json` wrote, after `json.loads`. The lifetimes of single values are not stored.

    >>> import weft
    >>> found = weft.profile(weft.nn.Linear(4, 2), weft.ones((3, 4)))
    >>> again = profile_from_json(json.loads(found.to_json()))
    >>> again.kernels == found.kernels and again.total == found.total
    True
    """
    found = _record(known, "profile").program
    if not isinstance(found, ProgramProfile):
        raise UserError("profile", "a profile with its kernels is required, got one of an older version of weft. Measure again.")  # fmt: skip
    return found


def record_from_json(text: str, where: str = "profile") -> ProfileRecord:
    """The record of the profile in a file. A file of a newer format, or a damaged one, is rejected."""
    try:
        known = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunError(where, f"this profile is damaged: {error}. Measure again.") from None
    return _record(known, where)


def _record(known: Mapping[str, Any], where: str) -> ProfileRecord:
    try:
        format = known.get("format")
        if format is None:
            return profile_record(_older_program(known))
        if format not in (_WITHOUT_PROGRAM, FORMAT):
            made_by = known.get("weft", "unknown")
            raise RunError(where, f"this profile was made by another version of weft ({made_by}). Measure again.")
        return _of_fields({name: value for name, value in known.items() if name != "format"})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(where, f"this profile is damaged: {error}. Measure again.") from None


def _of_fields(known: Mapping[str, Any]) -> ProfileRecord:
    names = {field.name for field in fields(ProfileRecord)}
    if odd := (names ^ known.keys()) - {"program"}:
        raise ValueError(f"{', '.join(sorted(odd))}: unknown or missing")
    memory, program = known["memory"], known.get("program")
    return ProfileRecord(
        **{
            **known,
            "times": None if known["times"] is None else CallTimes(**known["times"]),
            "roof": RoofLines(**known["roof"]),
            "layers": tuple(LayerRecord(**one) for one in known["layers"]),
            "worst": tuple(Offender(**one) for one in known["worst"]),
            "memory": MemoryRecord(**{**memory, "steps": tuple(MemoryStep(**one) for one in memory["steps"])}),
            "program": None if program is None else _program(program),
        }
    )


def _program(known: Mapping[str, Any]) -> ProgramProfile:
    told = known["explanation"]
    explanation = Explanation(**{**told, "rows": (), "memory": _memory(told["memory"]), "roof": _roof(told["roof"])})
    kernels, flow = tuple(map(_kernel, known["kernels"])), flow_from_json(known.get("flow", ()))
    return ProgramProfile(kernels, explanation, known["node_nm"], flow, known["cache_bytes"])


def _older_program(known: Mapping[str, Any]) -> ProgramProfile:
    """A program in the format without figures."""
    measured = known["where"], known["runs"], known["seconds"], known["clock_overhead"]
    explanation = Explanation((), _memory(known["memory"]), _roof(known["roof"]), *measured)
    flow = flow_from_json(known.get("flow", ()))
    return ProgramProfile(tuple(map(_kernel, known["kernels"])), explanation, known["energy"]["process_nm"], flow)


def _memory(known: Mapping[str, Any]) -> MemoryUse:
    return MemoryUse(**{**known, "largest": ()})


def _roof(known: Mapping[str, Any]) -> Roofline:
    if "machine" in known:
        return TpuRoof(TpuMachine(**known["machine"]))
    return Roof(**known) if "flops" in known else GpuRoof(**known)


def _kernel(known: Mapping[str, Any]) -> KernelProfile:
    own = {field.name: known[field.name] for field in fields(KernelProfile) if field.name in known}
    layers = tuple((Scope(*scope), share) for scope, share in own["layers"])
    starts = own.get("starts", _starts(own["name"]))
    return KernelProfile(**{**own, "layers": layers, "sources": tuple(own["sources"]), "starts": starts})


def _starts(name: str) -> int:
    """The launches of a kernel in a file without them: a scan's name has its number of steps and of kernels per step.

    >>> _starts("scan of 128 steps (2 kernels)"), _starts("matmul 16x10x84")
    (256, 1)
    """
    found = re.match(r"scan of (\d+) steps \((\d+) kernels?\)", name)
    return int(found[1]) * int(found[2]) if found else 1
