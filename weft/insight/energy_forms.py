"""Profiles of the forms of a network whose energy is compared: a separate program for each where weft can compile one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import compress
from ..errors import UserError
from ..hints import nearest
from ..nn.module import Module
from ..ops.convert import asarray
from ..records import dataclass
from .energy_counts import WIDTHS, format_bits, in_format
from .profile import ProgramProfile, profile, with_energy

FORMS = ("float32", "float16", "int8", "q7.8", "sparse", "shared", "int4 weights")
DENSITY = 0.1  # of pruned weights: about what fully connected layers tolerate
SHARED_BITS = 5


@dataclass(frozen=True)
class FormProfile:
    """A network in one form; without a profile if the form is not available."""

    profile: ProgramProfile | None
    own_program: bool
    note: str = ""


def form_profile(base: ProgramProfile, model: Module, args: Sequence[Any], form: str, density: float) -> FormProfile:
    """One form of a network whose unchanged program was profiled as `base`."""
    if form == "float32":
        return FormProfile(base, True)
    if form not in _MAKERS:
        return FormProfile(in_other_format(base, form), False)
    try:
        made, note = _MAKERS[form](copy.deepcopy(model), args, density)
        return FormProfile(profile(made, *args, repeats=1, node_nm=base.node_nm), True, note)
    except UserError as error:
        if form != "int8":
            return FormProfile(None, True, f"cannot be made of this network: {error.message}")
        return FormProfile(in_other_format(base, form), False, f"no int8 program: {error.message}")


def in_other_format(base: ProgramProfile, format: str) -> ProgramProfile:
    """The same operations on floats of another format: fewer bytes, other energies."""
    if format_bits(format) is None:
        known = [*_MAKERS, *WIDTHS, "q7.8"]
        raise UserError(
            "energy_comparison", f"a form is a number format or one of {', '.join(_MAKERS)}, got {format!r}. {nearest(format, known)}"
        )  # fmt: skip
    kernels = tuple(in_format(kernel, format) for kernel in base.kernels)
    bits = format_bits(format) or 32
    memory = replace(base.explanation.memory, persistent=round(base.explanation.memory.persistent * bits / 32))
    return with_energy(replace(base, kernels=kernels, explanation=replace(base.explanation, memory=memory)))


def _int8(model: Module, args: Sequence[Any], density: float) -> tuple[Module, str]:
    if len(args) != 1:
        raise UserError("int8", f"a network with one input is required, got {len(args)}.")
    x = asarray(args[0])
    values = np.random.default_rng(0).standard_normal(x.shape).astype(np.float32) if x.dtype.is_float else x
    compress.int8(model, values, method="minmax", weight_method="minmax")  # fast: energy does not depend on the grids
    made = compress.to_int8(model)
    floats = made.float_layers
    return made, f"{len(floats)} layers compute in float: {', '.join(floats[:5])}" if floats else ""


def _sparse(model: Module, args: Sequence[Any], density: float) -> tuple[Module, str]:
    compress.prune(model, density)
    return model, _sparse_note(compress.sparse(model, choose="all"), density)


def _shared(model: Module, args: Sequence[Any], density: float) -> tuple[Module, str]:
    compress.prune(model, density)
    compress.share(model, bits=SHARED_BITS)
    note = _sparse_note(compress.sparse(model, choose="all"), density)
    return model, f"{note}; {SHARED_BITS} bits a weight in the file, a byte in memory"


def _sparse_note(found: compress.SparseReport, density: float) -> str:
    count = sum(layer.is_sparse for layer in found.layers)
    return f"{count} linear layers keep {density:.0%} of their weights; convolutions compute dense"


def _int4_weights(model: Module, args: Sequence[Any], density: float) -> tuple[Module, str]:
    stored = compress.weight_only(model, bits=4)
    where = "unpacked once on CPUs, where each call reads floats; inside of products on GPUs"
    return model, f"{len(stored)} linear layers: {where}"


_MAKERS: dict[str, Callable[[Module, Sequence[Any], float], tuple[Module, str]]] = {
    "int8": _int8,
    "sparse": _sparse,
    "shared": _shared,
    "int4 weights": _int4_weights,
}
