"""The target CPU: its LLVM name and features, vector width and cache sizes."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

LINE = 64  # bytes of a cache line

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
llvm.initialize_native_asmparser()


@dataclass(frozen=True)
class CpuTarget:
    """The properties of a CPU that code generation depends on."""

    arch: str  # "aarch64" or "x86_64"
    cpu: str  # LLVM's name
    features: str  # LLVM's list: "+neon,-sve,..."
    vector_bits: int
    registers: int  # vector registers
    l1: int = 32 << 10  # bytes of one core
    l2: int = 512 << 10

    def lanes(self, bits: int) -> int:
        """How many elements of so many bits a vector register holds."""
        return max(1, self.vector_bits // bits)

    @cached_property
    def machine(self) -> llvm.TargetMachine:
        return self.new_machine()

    def new_machine(self) -> llvm.TargetMachine:
        """A new target machine; an execution engine takes ownership of it."""
        triple = llvm.get_process_triple()
        # Code, its constants and the functions it calls may lie further apart than 2 GiB in a large process.
        where = ("static", "large") if self.arch == "x86_64" else ("pic", "default")
        return llvm.Target.from_triple(triple).create_target_machine(
            cpu=self.cpu, features=self.features, opt=3, reloc=where[0], codemodel=where[1]
        )

    @property
    def key(self) -> str:
        """The part of a cache key that identifies the CPU and the LLVM version."""
        return f"{self.arch} {self.cpu} {self.features} {self.vector_bits} llvmlite {llvmlite.__version__}"


@cache
def host() -> CpuTarget:
    """The CPU of this machine."""
    arch = {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    features = llvm.get_host_cpu_features()
    cpu, text = llvm.get_host_cpu_name(), features.flatten()
    l1, l2 = _cache_size(1, 32 << 10), _cache_size(2, 512 << 10)
    if arch == "aarch64":
        # LLVM's reading of the features of an ARM CPU is incomplete; the name of the CPU implies the rest.
        return CpuTarget(arch, cpu, text, 128, 32, l1, l2)
    if features.get("avx512f") and features.get("avx512vl") and features.get("avx512bw"):
        return CpuTarget(arch, cpu, text + ",-prefer-256-bit", 512, 32, l1, l2)
    return CpuTarget(arch, cpu, text, 256 if features.get("avx2") and features.get("fma") else 128, 16, l1, l2)


def _cache_size(level: int, otherwise: int) -> int:
    """The bytes of a core's data cache, as Linux tells it."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if int((index / "level").read_text()) == level and (index / "type").read_text().strip() != "Instruction":
                return int((index / "size").read_text().strip().removesuffix("K")) << 10
        except (OSError, ValueError):
            continue
    return otherwise
