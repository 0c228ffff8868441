"""From the source of a kernel to code for a GPU. No GPU is needed for it."""

from __future__ import annotations

import importlib.util
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...dtypes import DType
from .source import KernelSource

_SHORT = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "bool": "u8"}
ALIGNED = 16  # bytes: all memory begins at a multiple of it, and wide loads may rely on that


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


def build(source: KernelSource, capability: int) -> Binary:
    """Compile a kernel for GPUs of a compute capability: 80, 90, ..."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    names = [*(f"p{i}" for i in range(len(source.arguments))), "status"]
    types = [*(pointer_type(n.dtype) for n in source.arguments), "*i64"]
    aligned = {(i,): [["tt.divisibility", ALIGNED]] for i in range(len(names))}
    with tempfile.TemporaryDirectory(prefix="weft-triton-") as folder:
        function = _loaded(source, Path(folder))
        made = compile(
            ASTSource(function, dict(zip(names, types, strict=True)), {}, aligned),
            target=GPUTarget("cuda", capability, 32), options={"num_warps": source.warps, "num_stages": source.stages, "enable_fp_fusion": False},  # sums of products are rounded twice, as everywhere
        )  # fmt: skip
    facts = made.metadata
    return Binary(made.asm["cubin"], facts.name, facts.num_warps, facts.shared)


def _loaded(source: KernelSource, folder: Path) -> Any:
    """The kernel as an object of Triton, which wants to read its source from a file."""
    path = folder / f"{source.name}.py"
    path.write_text(source.text)
    spec = importlib.util.spec_from_file_location(source.name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, source.name)
