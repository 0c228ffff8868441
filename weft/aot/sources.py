"""The files around a compiled library: an example program in C, a Makefile and a README."""

from __future__ import annotations

from collections.abc import Sequence

from .compile import CompiledLibrary
from .header import c_type, signature

COMPILERS = {
    "host": "cc", "x86-64-v2": "x86_64-linux-gnu-gcc", "x86-64-v3": "x86_64-linux-gnu-gcc", "x86-64-v4": "x86_64-linux-gnu-gcc",
    "aarch64": "aarch64-linux-gnu-gcc", "armv7": "arm-linux-gnueabihf-gcc", "riscv64": "riscv64-linux-gnu-gcc",
}  # fmt: skip

_READ = """\
/* Read a file of exactly so many bytes. */
static void read_file(const char *path, void *target, size_t size) {
    FILE *file = fopen(path, "rb");
    if (!file || fread(target, 1, size, file) != size || fgetc(file) != EOF) {
        fprintf(stderr, "%s must have %zu bytes\\n", path, size);
        exit(1);
    }
    fclose(file);
}
"""

_READ_IMAGE = """\
/* Read a picture (PGM or PPM, binary) of the network's size: pixels as they are, one plane for each colour. */
static void read_image(const char *path, uint8_t *target) {
    unsigned width, height, most;
    FILE *file = fopen(path, "rb");
    if (!file || fscanf(file, "P@MAGIC@ %u %u %u", &width, &height, &most) != 3 || fgetc(file) == EOF || width != @W@ || height != @H@ ||
        most != 255) {
        fprintf(stderr, "%s must be a @FORMAT@ picture of @W@ x @H@ pixels (magick in.jpg -resize @W@x@H@! out.@SUFFIX@)\\n", path);
        exit(1);
    }
    for (unsigned i = 0; i < width * height; i++)
        for (unsigned colour = 0; colour < @C@; colour++) target[colour * width * height + i] = (uint8_t)fgetc(file);
    fclose(file);
}
"""

_PRINT_CLASSES = """\
/* Print the most probable classes of each row. */
static void print_output(const float *values) {
    for (unsigned row = 0; row < @BIG@_OUTPUT_SIZE / @BIG@_LABELS; row++, values += @BIG@_LABELS) {
        char done[@BIG@_LABELS] = {0};
        for (unsigned place = 0; place < 5 && place < @BIG@_LABELS; place++) {
            unsigned best = @BIG@_LABELS;
            for (unsigned i = 0; i < @BIG@_LABELS; i++)
                if (!done[i] && (best == @BIG@_LABELS || values[i] > values[best])) best = i;
            done[best] = 1;
            printf("%.9g %s\\n", values[best], @NAME@_labels[best]);
        }
    }
}
"""

_PRINT_NUMBERS = """\
static void print_output(const @TYPE@ *values) {
    for (unsigned i = 0; i < @BIG@_@OUTPUTS@_SIZE; i++) printf("%.17g\\n", (double)values[i]);
}
"""


def is_image(library: CompiledLibrary) -> bool:
    """Whether the input is one picture: gray or colour."""
    [*_, first] = library.inputs[:1] or [None]
    return (
        len(library.inputs) == 1 and first is not None and first.dtype.name == "uint8"
        and len(first.shape) == 4 and first.shape[0] == 1 and first.shape[1] in (1, 3)
    )  # fmt: skip


def example_text(library: CompiledLibrary, labels: Sequence[str]) -> str:
    """A program that reads inputs from files, runs the network, and prints its first result."""
    name, big, image = library.name, library.name.upper(), is_image(library)
    first = library.outputs[0]
    classifies = bool(labels) and len(library.outputs) == 1 and first.dtype.name == "float32"
    classifies = classifies and bool(first.shape) and first.shape[-1] == len(labels)
    buffers = [
        f"static {c_type(a)} {a.name}[{big}_{a.name.upper()}_SIZE];" for a in (*library.inputs, *library.outputs)
    ]
    state = [f"static _Alignas({big}_ALIGNMENT) unsigned char state[{big}_STATE_BYTES];"] if library.state else []
    weights = (
        []
        if library.weights_inside
        else [f"static _Alignas({big}_ALIGNMENT) unsigned char weights[{big}_WEIGHTS_BYTES];"]
    )
    passed = [a.name for a in (*library.inputs, *library.outputs)] + ["state"] * bool(library.state)
    passed += ["workspace", *(["weights"] if weights else [])]
    reads = [
        f"read_image(argv[{i}], {a.name});" if image else f"read_file(argv[{i}], {a.name}, sizeof {a.name});"
        for i, a in enumerate(library.inputs, 1)
    ]
    wanted = " ".join("picture" if image else f"{a.name}.raw" for a in library.inputs)
    body = [
        f"if (argc != {len(library.inputs) + 1}) {{", f'    fprintf(stderr, "usage: %s {wanted}\\n", argv[0]);', "    return 1;", "}",
        *([f"read_file({big}_WEIGHTS_FILE, weights, sizeof weights);"] if weights else []),
        *([f"{name}_init(state{', weights' if weights else ''});"] if state else []), *reads,
        f"int error = {name}_run({', '.join(passed)});", "if (error) {",
        f'    fprintf(stderr, "error %d{": %s" if library.errors else ""}\\n", error'
        + (f', error > 0 ? {name}_errors[error - 1] : "misaligned");' if library.errors else ");"), "    return 1;", "}",
        f"print_output({first.name});", "return 0;",
    ]  # fmt: skip
    parts = [
        f"/* An example of {name}.h: make && ./example {wanted} */",
        f'#include "{name}.h"\n\n#include <stdio.h>\n#include <stdlib.h>\n',
        "\n".join([*buffers, *state, *weights, f"static _Alignas({big}_ALIGNMENT) unsigned char workspace[{big}_WORKSPACE_BYTES];"])
        + "\n",
        *([] if image and not weights else [_READ]), *([_image_reader(library)] if image else []),
        _PRINT_CLASSES if classifies else _PRINT_NUMBERS,
        "int main(int argc, char **argv) {\n" + "\n".join(f"    {line}" for line in body) + "\n}\n",
    ]  # fmt: skip
    text = "\n".join(parts)
    for word, value in {"NAME": name, "BIG": big, "OUTPUTS": first.name.upper(), "TYPE": c_type(first)}.items():
        text = text.replace(f"@{word}@", value)
    return text


def _image_reader(library: CompiledLibrary) -> str:
    _, channels, height, width = library.inputs[0].shape
    format = ("PPM", "6") if channels == 3 else ("PGM", "5")
    values = {
        "C": channels,
        "H": height,
        "W": width,
        "FORMAT": format[0],
        "MAGIC": format[1],
        "SUFFIX": format[0].lower(),
    }
    text = _READ_IMAGE
    for word, value in values.items():
        text = text.replace(f"@{word}@", str(value))
    return text


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


def readme_text(library: CompiledLibrary, target: str) -> str:
    """What is in the folder, and its sizes."""
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
"""
