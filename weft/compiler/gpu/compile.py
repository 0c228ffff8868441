"""Compiles the source of a kernel for a GPU architecture. It needs no GPU."""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...dtypes import DType
from ...records import dataclass
from .device_functions import with_helpers
from .source import KernelSource

_SHORT = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "bool": "u8"}
OTHER_WARPS = (8, 16, 2)
_PRODUCT = re.compile(r"tt\.dot .*?tensor<\d+x(\d+)x\w+, #ttg\.dot_op<\{opIdx = 0, parent = #mma\d*, kWidth = (\d+)")
LANES = 4  # of a warp that share a row of a product's operands
ALIGNED = 16  # bytes: the alignment of all memory, on which wide loads rely


@dataclass(frozen=True)
class Binary:
    """A compiled kernel: the code, the name to launch, and what a launch must provide."""

    code: bytes
    symbol: str
    warps: int
    shared: int  # bytes of shared memory


def pointer_type(dtype: DType) -> str:
    """The type of a pointer to elements, as Triton's signatures write it."""
    if dtype.name in _SHORT:
        return f"*{_SHORT[dtype.name]}"
    return f"*{'i' if dtype.kind == 'int' else 'u'}{dtype.bits}"


@dataclass(frozen=True)
class CompileRequest:
    """Everything that the code of a kernel depends on."""

    text: str
    name: str
    types: tuple[str, ...]  # of the pointers, as Triton writes them
    warps: int
    stages: int
    capability: int
    loose: tuple[int, ...] = ()  # pointers that are not aligned

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CompileRequest:
        known = json.loads(text)
        return cls(**(known | {"types": tuple(known["types"]), "loose": tuple(known["loose"])}))


def compile_request(source: KernelSource, capability: int) -> CompileRequest:
    """What to compile for GPUs of a compute capability: 80, 90, ..."""
    types = (*(pointer_type(n.dtype) for n in source.arguments), "*i64")
    text = with_helpers(source.body, capability)
    return CompileRequest(text, source.name, types, source.warps, source.stages, capability, source.loose)


def build(source: KernelSource, capability: int) -> Binary:
    """Compile a kernel for GPUs of a compute capability."""
    return build_request(compile_request(source, capability))


def build_request(wanted: CompileRequest) -> Binary:
    """Compile a kernel. Triton fails to compile some kernels for certain numbers of warps: others are tried before it is an error."""
    with tempfile.TemporaryDirectory(prefix="weft-triton-") as folder:
        function = _loaded(wanted, Path(folder))
        for warps in (wanted.warps, *OTHER_WARPS):
            try:
                return _compiled(function, wanted, warps)
            except RuntimeError as error:
                failed = error
    raise failed


def _compiled(function: Any, wanted: CompileRequest, warps: int) -> Binary:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    count = len(wanted.types)
    names = [*(f"p{i}" for i in range(count - 1)), "status"]
    aligned = {(i,): [["tt.divisibility", ALIGNED]] for i in range(count) if i not in wanted.loose}
    # Sums of products are rounded twice, as everywhere.
    options = {"num_warps": warps, "num_stages": wanted.stages, "enable_fp_fusion": False}
    made = compile(
        ASTSource(function, dict(zip(names, wanted.types, strict=True)), {}, aligned),
        target=GPUTarget("cuda", wanted.capability, 32),
        options=options,
    )
    check_products(made.asm["ttgir"])
    facts = made.metadata
    return Binary(made.asm["cubin"], facts.name, facts.num_warps, facts.shared)


def check_products(text: str) -> None:
    """Reject a kernel, in Triton's IR for GPUs, with a product that adds some of its terms twice and leaves out others.

    Triton gives each lane `kWidth` neighbouring terms, more for operands that are made of narrow numbers. Where all lanes together have
    more than there are, Triton 3.6 silently computes wrong sums.
    """
    for terms, width in _PRODUCT.findall(text):
        if LANES * int(width) > int(terms):
            raise RuntimeError(f"Triton shares out {LANES} x {width} terms of a product that sums {terms}")


def _loaded(wanted: CompileRequest, folder: Path) -> Any:
    """The kernel as an object of Triton, which must read its source from a file."""
    path = folder / f"{wanted.name}.py"
    path.write_text(wanted.text)
    spec = importlib.util.spec_from_file_location(wanted.name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, wanted.name)
