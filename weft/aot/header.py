"""The C header of a compiled library."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..compiler.ir.storage import ALIGN
from ..version import __version__
from .compile import MISALIGNED, Argument, CompiledLibrary

_C_TYPES = {
    "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t", "bool": "uint8_t",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip


def c_type(argument: Argument) -> str:
    """The type of an argument's elements in C. 16-bit floats are their bits."""
    return _C_TYPES[argument.dtype.name]


def header_text(library: CompiledLibrary, target: str, labels: Sequence[str]) -> str:
    """The header: sizes, labels, errors and functions."""
    name, big = library.name, library.name.upper()
    lines = [
        f"/* {name}.h: a network compiled by weft {__version__} for {target}. Tensors are contiguous, the last axis fastest. */",
        f"#ifndef {big}_H", f"#define {big}_H", "", "#include <stdint.h>", "", "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
    ]  # fmt: skip
    for argument in (*library.inputs, *library.outputs):
        lines += [*_argument(big, argument), ""]
    lines += [
        f"#define {big}_ALIGNMENT {ALIGN} /* of the workspace{' and the state' if library.state else ''} */",
        f"#define {big}_WORKSPACE_BYTES {max(library.workspace, ALIGN)}",
    ]
    if library.state:
        lines.append(f"#define {big}_STATE_BYTES {library.state}")
    if not library.weights_inside:
        lines += [
            f"#define {big}_WEIGHTS_BYTES {len(library.weights)}",
            f'#define {big}_WEIGHTS_FILE "{name}.weights"',
        ]
    lines += ["", *_texts(big, "label", labels), *_texts(big, "error", library.errors)]
    lines += [f"#define {big}_MISALIGNED ({MISALIGNED})", "", *_functions(library)]
    return "\n".join([*lines, "", "#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {big}_H */", ""])


def _argument(big: str, argument: Argument) -> list[str]:
    prefix, shape = f"#define {big}_{argument.name.upper()}", argument.shape
    return [
        f"/* {argument.name}: {argument.dtype.name}[{', '.join(map(str, shape))}] */",
        f"{prefix}_SIZE {prod(shape)} /* elements */",
        f"{prefix}_DIMENSIONS {len(shape)}",
        *(f"{prefix}_DIMENSION_{i} {size}" for i, size in enumerate(shape)),
    ]


def _texts(big: str, what: str, texts: Sequence[str]) -> list[str]:
    """An array of texts, and how many there are."""
    count = f"#define {big}_{what.upper()}S {len(texts)}"
    if not texts:
        return [count]
    own = ",\n".join(f"    {c_string(text)}" for text in texts)
    return [count, f"static const char *const {big.lower()}_{what}s[{big}_{what.upper()}S] = {{\n{own}\n}};", ""]


def c_string(text: str) -> str:
    """A text as a literal of C, in UTF-8."""
    shown = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in text.encode()
    )
    return f'"{shown}"'


def signature(library: CompiledLibrary) -> str:
    """The declaration of the function that runs the network."""
    arguments = [f"{'' if a.changed else 'const '}{c_type(a)} *{a.name}" for a in library.inputs]
    arguments += [f"{c_type(a)} *{a.name}" for a in library.outputs]
    arguments += ["void *state"] if library.state else []
    arguments += ["void *workspace", *(["const void *weights"] if not library.weights_inside else [])]
    return f"int {library.function}({', '.join(arguments)})"


def _functions(library: CompiledLibrary) -> list[str]:
    name, big, weights = library.name, library.name.upper(), "" if library.weights_inside else ", const void *weights"
    errors = f", or a number n with the text {name}_errors[n - 1]" if library.errors else ""
    lines = [
        f"/* Run the network. It returns 0, or an error: {big}_MISALIGNED{errors}.",
        f"   `workspace` has {big}_WORKSPACE_BYTES; its content need not be kept between calls. There is no other memory that",
        "   changes, so several threads may call it, each with its own workspace. */",
        f"{signature(library)};",
    ]
    if library.state:
        lines += [
            "",
            f"/* Set the state to its first values. Every run reads and changes it: {big}_STATE_BYTES, one for each sequence of runs. */",
            f"void {name}_init(void *state{weights});",
        ]
    return lines
