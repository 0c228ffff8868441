"""The files around a compiled library: a Makefile and a README."""

from __future__ import annotations

from .compile import CompiledLibrary
from .header import signature

COMPILERS = {
    "host": "cc", "x86-64-v2": "x86_64-linux-gnu-gcc", "x86-64-v3": "x86_64-linux-gnu-gcc", "x86-64-v4": "x86_64-linux-gnu-gcc",
    "aarch64": "aarch64-linux-gnu-gcc", "armv7": "arm-linux-gnueabihf-gcc", "riscv64": "riscv64-linux-gnu-gcc",
}  # fmt: skip


def makefile_text(library: CompiledLibrary, target: str) -> str:
    """Builds the example; for WebAssembly, links the module."""
    name = library.name
    if target == "wasm32":
        return (
            f"{name}.wasm: lib{name}.a\n\twasm-ld --no-entry --export={library.function} --export=__heap_base -z stack-size=65536 "
            f"--whole-archive $< -o $@\n\nclean:\n\trm -f {name}.wasm\n\n.PHONY: clean\n"
        )
    libraries = " ".join(
        ["-lm"] * bool(set(library.summary.undefined) - {"memcpy", "memset", "memmove"})
        + ["-pthread"] * (library.threads > 1)
    )
    return (
        f"CC = {COMPILERS[target]}\nCFLAGS = -O2 -Wall -Wextra\n\n"
        f"example: example.c {name}.h lib{name}.a\n\t$(CC) $(CFLAGS) example.c -L. -l{name} {libraries} -o $@\n\n"
        "clean:\n\trm -f example\n\n.PHONY: clean\n"
    ).replace("  -o", " -o")


def readme_text(library: CompiledLibrary, target: str, resize: str | None) -> str:
    """What is in the folder, its sizes, and how pictures are resized."""
    name, weights = library.name, len(library.weights)
    needs = ", ".join(library.summary.undefined) or "nothing"
    files = [
        f"lib{name}.a    the code{' and the weights' if library.weights_inside else ''}",
        f"{name}.h       sizes, labels, errors, functions",
        *(
            []
            if library.weights_inside
            else [f"{name}.weights the weights: read the file, or map it, and pass its address"]
        ),
        *(["example.c    a program that uses it"] if target != "wasm32" else []),
        f"Makefile     builds {f'{name}.wasm (needs lld)' if target == 'wasm32' else 'the example'}",
    ]
    listed = "\n".join(f"    {line}" for line in files)
    pictures = f"\nPictures are resized as in training: {resize}\n" if resize else ""
    several = f" Each call starts {library.threads} threads and waits for them." if library.threads > 1 else ""
    return f"""# {name}

A network compiled by weft for {target} ({library.target.cpu}).

{listed}

    {signature(library)};

| memory | bytes |
|---|---:|
| code | {library.summary.code:,} |
| weights | {weights:,} |
| workspace | {library.workspace:,} |
| state | {library.state:,} |
| inputs | {sum(a.nbytes for a in library.inputs):,} |
| outputs | {sum(a.nbytes for a in library.outputs):,} |

Functions that the code needs of its surroundings: {needs}. It allocates no memory and has no global variables.{several}
{pictures}"""
