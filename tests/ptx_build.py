"""Compiles kernels to PTX: reads a request per line, and answers with the PTX and what a launch must provide.

A process of its own: where tests run, Triton only interprets.
"""

import json
import sys
from typing import Any

import triton.compiler

from weft.compiler.gpu.compile import CompileRequest, build_request

_compile = triton.compiler.compile


def _to_ptx(*given: Any, **options: Any) -> Any:
    made = _compile(*given, **options)
    made.asm = {**made.asm, "cubin": made.asm["ptx"].encode()}
    return made


def main() -> None:
    triton.compiler.compile = _to_ptx
    for line in sys.stdin:
        made = build_request(CompileRequest.from_json(line))
        print(json.dumps({"ptx": made.code.decode(), "warps": made.warps, "shared": made.shared}), flush=True)


if __name__ == "__main__":
    main()
