"""Which number formats the processor and the GPUs of this machine compute in."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ..compiler.cpu.target import CpuTarget, host
from ..runtime.device import devices
from .number_format import FixedFormat, NumberFormat

ARITHMETIC, CONVERSIONS, DOT, MATRIX = "arithmetic", "conversions", "dot products", "matrix units"


def hardware(format: NumberFormat) -> dict[str, str]:
    """What each device of this machine has for a format: arithmetic, dot products, matrix units, or only conversions; {} for nothing."""
    found = {"cpu": cpu_support(format, *_cpu())}
    for device in devices():
        if device.compute_capability is not None:
            found[device.name] = gpu_support(format, device.compute_capability)
    return {name: what for name, what in found.items() if what}


@cache
def _cpu() -> tuple[CpuTarget, frozenset[str]]:
    return host(), cpu_features(host())


def cpu_features(target: CpuTarget) -> frozenset[str]:
    """LLVM's names of features; on ARM also those that Linux lists, because LLVM's reading is incomplete there."""
    found = {word[1:] for word in target.features.split(",") if word.startswith("+")}
    if target.arch == "aarch64":
        try:
            found |= set(Path("/proc/cpuinfo").read_text().split())
        except OSError:
            pass
    return frozenset(found)


def cpu_support(format: NumberFormat, target: CpuTarget, features: frozenset[str]) -> str:
    """What a processor has for a format."""
    if isinstance(format, FixedFormat):
        return _integer_support(format.bits, target, features)
    name = format.name
    if name in ("float64", "float32"):
        return ARITHMETIC
    if name == "float16":
        if features & {"fullfp16", "asimdhp", "avx512fp16"}:
            return ARITHMETIC
        return CONVERSIONS if target.arch == "aarch64" or "f16c" in features else ""
    if name == "bfloat16":
        matrix = features & {"amx-bf16"}
        return MATRIX if matrix else DOT if features & {"bf16", "avx512bf16"} else ""
    return ""


def _integer_support(bits: int, target: CpuTarget, features: frozenset[str]) -> str:
    """Fixed point is computed by integer instructions of the next width; the radix point is the program's business."""
    if bits <= 8:
        dot = target.dot or features & {"asimddp", "dotprod"}
        note = "" if bits == 8 else " of int8"
        return (MATRIX if "amx-int8" in features else DOT if dot else ARITHMETIC) + note
    return ARITHMETIC if bits <= 64 else ""


def gpu_support(format: NumberFormat, capability: int) -> str:
    """What an NVIDIA GPU of a compute capability (90 for 9.0) has for a format (CUDA C++ Programming Guide, arithmetic instructions)."""
    if isinstance(format, FixedFormat):
        if format.bits <= 8:
            if format.bits <= 4 and 75 <= capability < 90:
                return MATRIX
            note = "" if format.bits == 8 else " of int8"
            return (MATRIX if capability >= 72 else DOT if capability >= 61 else ARITHMETIC) + note
        return ARITHMETIC
    least = {
        "float64": ((80, MATRIX), (13, ARITHMETIC)),
        "float32": ((0, ARITHMETIC),),
        "tf32": ((80, MATRIX),),
        "float16": ((70, MATRIX), (53, ARITHMETIC), (0, CONVERSIONS)),
        "bfloat16": ((80, MATRIX),),
        "float8_e4m3": ((89, MATRIX),),
        "float8_e5m2": ((89, MATRIX),),
    }[format.name]
    return next((what for capable, what in least if capability >= capable), "")
