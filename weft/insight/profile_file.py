"""Profiles that were kept as JSON: read again on another machine, to compare them or to project them to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..compiler.cpu.roofline import Roof
from ..errors import Scope, UserError
from ..explain import Explanation, MemoryUse
from ..runtime.facts import GpuRoof, Roofline
from .layer_flow import flow_from_json
from .layer_profile import KernelProfile
from .profile import ProgramProfile


def profile_from_json(known: Mapping[str, Any]) -> ProgramProfile:
    """The profile that `ProgramProfile.to_json` wrote, after `json.loads`. The lives of single values are not kept.

    >>> import json, weft
    >>> found = weft.profile(weft.nn.Linear(4, 2), weft.ones((3, 4)))
    >>> again = profile_from_json(json.loads(found.to_json()))
    >>> again.kernels == found.kernels and again.total == found.total
    True
    """
    try:
        memory = MemoryUse(**{**known["memory"], "largest": ()})
        plain, runs, overhead = known["seconds"], known["runs"], known["clock_overhead"]
        explanation = Explanation((), memory, _roof(known["roof"]), known["where"], runs, plain, overhead)
        kernels, flow = tuple(map(_kernel, known["kernels"])), flow_from_json(known.get("flow", ()))
        return ProgramProfile(kernels, explanation, known["energy"]["process_nm"], flow)
    except (KeyError, TypeError) as error:
        raise UserError("profile", f"a profile as JSON is required, got one without {error}.") from None


def _roof(known: Mapping[str, Any]) -> Roofline:
    return Roof(**known) if "flops" in known else GpuRoof(**known)


def _kernel(known: Mapping[str, Any]) -> KernelProfile:
    own = {field.name: known[field.name] for field in fields(KernelProfile)}
    layers = tuple((Scope(*scope), share) for scope, share in own["layers"])
    return KernelProfile(**{**own, "layers": layers, "sources": tuple(own["sources"])})
