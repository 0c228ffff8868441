"""The target CPU: its LLVM name and features, vector width and cache sizes.

Code is generated for `current_target()`: this machine, unless `compiling_for` names another one around it.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from ...errors import UserError
from ...hints import nearest
from ...records import dataclass
from ..host import usable_cores

LINE = 64  # bytes of a cache line
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18  # Linux: arch/x86/include/uapi/asm/prctl.h

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
llvm.initialize_native_asmparser()


@dataclass(frozen=True)
class CpuTarget:
    """The properties of a CPU that code generation depends on."""

    arch: str  # "aarch64", "x86_64", "arm", "riscv64" or "wasm32"
    cpu: str  # LLVM's name
    features: str  # LLVM's list: "+neon,-sve,..."
    vector_bits: int
    registers: int  # vector registers
    l1: int = 32 << 10  # bytes of one core
    l2: int = 512 << 10
    triple: str = ""  # LLVM's name of the platform; empty for that of this process
    abi: str = ""  # LLVM's name of the calling convention, where a platform has several
    fma: bool = True  # whether products and sums can be rounded once, in one instruction
    half: bool = True  # whether an instruction converts float16
    dot: str = ""  # LLVM's name of its dot products of 8-bit integers: "dotprod", "avx512vnni", "avxvnni" or none
    matrix: str = ""  # LLVM's name of its matrix unit for 8-bit integers: "amx-int8" or none
    pointer_bytes: int = 8
    cores: int = 1  # that the choice of algorithms is made for

    def lanes(self, bits: int) -> int:
        """How many elements of so many bits a vector register holds."""
        return max(1, self.vector_bits // bits)

    @cached_property
    def machine(self) -> llvm.TargetMachine:
        return self.new_machine()

    def new_machine(self, optimize: bool = True) -> llvm.TargetMachine:
        """A new target machine for code that is loaded into this process; an execution engine takes ownership of it."""
        # Code, its constants and the functions it calls may lie further apart than 2 GiB in a large process.
        where = ("static", "large") if self.arch == "x86_64" else ("pic", "default")
        return self._new_machine(*where, level=3 if optimize else 0)

    def new_linker_machine(self) -> llvm.TargetMachine:
        """A new target machine for object files that a linker reads. They can become part of a shared library."""
        return self._new_machine(
            "static" if self.arch == "wasm32" else "pic", "medium" if self.arch == "riscv64" else "default"
        )

    def _new_machine(self, relocation: str, code_model: str, level: int = 3) -> llvm.TargetMachine:
        if self.triple:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
        return llvm.Target.from_triple(self.triple or llvm.get_process_triple()).create_target_machine(
            cpu=self.cpu, features=self.features, opt=level, reloc=relocation, codemodel=code_model, abiname=self.abi
        )

    @property
    def key(self) -> str:
        """The part of a cache key that identifies the CPU and the LLVM version."""
        return (
            f"{self.arch} {self.triple} {self.cpu} {self.features} {self.vector_bits} {self.dot} {self.matrix} "
            f"llvmlite {llvmlite.__version__}"
        )


@cache
def host() -> CpuTarget:
    """The CPU of this machine."""
    arch = {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    features = llvm.get_host_cpu_features()
    cpu, text = llvm.get_host_cpu_name(), features.flatten()
    l1, l2 = _cache_size(1, 32 << 10), _cache_size(2, 512 << 10)
    cores = usable_cores()
    if arch == "aarch64":
        # LLVM's reading of the features of an ARM CPU is incomplete; the name of the CPU implies the rest.
        dot = "dotprod" if _has_dot_products() else ""
        return CpuTarget(arch, cpu, text + (",+dotprod" if dot else ""), 128, 32, l1, l2, dot=dot, cores=cores)
    if features.get("avx512f") and features.get("avx512vl") and features.get("avx512bw"):
        dot = "avx512vnni" if features.get("avx512vnni") else ""
        matrix = "amx-int8" if dot and features.get("amx-int8") and _may_use_tiles() else ""
        return CpuTarget(arch, cpu, text + ",-prefer-256-bit", 512, 32, l1, l2, dot=dot, matrix=matrix, cores=cores)
    has_fma = bool(features.get("fma"))
    bits = 256 if features.get("avx2") and has_fma else 128
    dot = "avxvnni" if features.get("avxvnni") and bits == 256 else ""
    has_half = bool(features.get("f16c"))
    return CpuTarget(arch, cpu, text, bits, 16, l1, l2, fma=has_fma, half=has_half, dot=dot, cores=cores)


def _may_use_tiles() -> bool:
    """Whether Linux allows this process to use the tile registers of AMX. It must be asked, because they enlarge the state that it saves for each thread."""
    if platform.system() != "Linux":
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA) == 0)


def _has_dot_products() -> bool:
    """Whether this ARM CPU has sdot and udot: all of Apple's have them, Linux lists features."""
    if platform.system() == "Darwin":
        return True
    try:
        return "asimddp" in Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False


_X86 = "x86_64-unknown-linux-gnu"
_RISCV = "+m,+a,+f,+d,+c"
_WASM = "+simd128,+bulk-memory,+sign-ext,+nontrapping-fptoint,+mutable-globals"

# CPUs that code can be compiled for ahead of time. riscv64 has no vectors: LLVM puts each
# into four of its 32 scalar registers.
TARGETS = {
    "x86-64-v2": CpuTarget("x86_64", "x86-64-v2", "", 128, 16, triple=_X86, fma=False, half=False),
    "x86-64-v3": CpuTarget("x86_64", "x86-64-v3", "", 256, 16, triple=_X86),
    "x86-64-v4": CpuTarget("x86_64", "x86-64-v4", "-prefer-256-bit", 512, 32, triple=_X86),
    "aarch64": CpuTarget("aarch64", "generic", "+neon", 128, 32, triple="aarch64-unknown-linux-gnu"),
    "armv7": CpuTarget(
        "arm", "generic", "+v7,+neon,+vfp4,+thumb2", 128, 16, l2=256 << 10, triple="armv7-unknown-linux-gnueabihf", pointer_bytes=4
    ),
    "riscv64": CpuTarget("riscv64", "generic-rv64", _RISCV, 128, 8, l2=256 << 10, triple="riscv64-unknown-linux-gnu", abi="lp64d", half=False),
    "wasm32": CpuTarget("wasm32", "generic", _WASM, 128, 16, triple="wasm32-unknown-unknown", fma=False, half=False, pointer_bytes=4),
}  # fmt: skip


def find_target(name: str) -> CpuTarget:
    """The CPU of this name; "host" is this machine, without the matrix unit: a process must ask for that before it runs such code."""
    if name == "host":
        return replace(host(), matrix="")
    if name not in TARGETS:
        known = ("host", *TARGETS)
        raise UserError("target", f"a target is one of {', '.join(known)}, got {name!r}. {nearest(name, known)}")
    return TARGETS[name]


_TARGET: ContextVar[CpuTarget | None] = ContextVar("target", default=None)


def current_target() -> CpuTarget:
    """The CPU that code is generated for now."""
    return _TARGET.get() or host()


@contextmanager
def compiling_for(target: CpuTarget) -> Iterator[None]:
    """Plan and generate code for another CPU than this machine's inside the `with` block."""
    before = _TARGET.set(target)
    try:
        yield
    finally:
        _TARGET.reset(before)


def _cache_size(level: int, otherwise: int) -> int:
    """The bytes of a core's data cache, as Linux tells it."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if int((index / "level").read_text()) == level and (index / "type").read_text().strip() != "Instruction":
                return int((index / "size").read_text().strip().removesuffix("K")) << 10
        except (OSError, ValueError):
            continue
    return otherwise
