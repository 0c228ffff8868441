"""The example program in C of a compiled library: it reads inputs from files, runs the network, and prints its first result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .compile import CompiledLibrary
from .header import c_type

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
        fprintf(stderr, "%s must be a @FORMAT@ picture of @W@ x @H@ pixels (@RESIZE@)\\n", path);
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


# How ImageMagick resizes as weft does; no command is known for half_crop_half_fill.
_RESIZE = {
    "squash": "-resize @W@x@H@!",
    "crop": "-resize @W@x@H@^ -gravity center -extent @W@x@H@",
    "fill": "-resize @W@x@H@ -background black -gravity center -extent @W@x@H@",
}


def example_text(library: CompiledLibrary, labels: Sequence[str], resize: str) -> str:
    """The whole program. `resize`: how pictures were resized for training."""
    return _ExampleWriter(library, labels, resize).text()


def resize_hint(library: CompiledLibrary, resize: str) -> str | None:
    """How a picture gets the size of the network's input; None if it takes no pictures."""
    if not _is_image(library):
        return None
    _, channels, height, width = library.inputs[0].shape
    suffix = "ppm" if channels == 3 else "pgm"
    command = f"magick in.jpg {_RESIZE[resize]} out.{suffix}" if resize in _RESIZE else f"resized by weft's {resize}"
    return _filled(command, {"H": str(height), "W": str(width)})


class _ExampleWriter:
    def __init__(self, library: CompiledLibrary, labels: Sequence[str], resize: str) -> None:
        self.library, self.labels, self.resize = library, labels, resize
        self.name, self.big, self.is_image = library.name, library.name.upper(), _is_image(library)
        self.wanted = " ".join("picture" if self.is_image else f"{a.name}.raw" for a in library.inputs)

    def text(self) -> str:
        body = [*self._check_arguments(), *self._read_inputs(), *self._run(), *self._print(), "return 0;"]
        parts = [
            f"/* An example of {self.name}.h: make && ./example {self.wanted} */",
            f'#include "{self.name}.h"\n\n#include <stdio.h>\n#include <stdlib.h>\n',
            "\n".join(self._buffers()) + "\n",
            *self._functions(),
            "int main(int argc, char **argv) {\n" + "\n".join(f"    {line}" for line in body) + "\n}\n",
        ]
        return _filled("\n".join(parts), {"NAME": self.name, "BIG": self.big})

    def _buffers(self) -> list[str]:
        library, aligned = self.library, f"static _Alignas({self.big}_ALIGNMENT) unsigned char"
        tensors = (*library.inputs, *library.outputs)
        lines = [f"static {c_type(a)} {a.name}[{self.big}_{a.name.upper()}_SIZE];" for a in tensors]
        memory = ["state"] * bool(library.state) + ["weights"] * (not library.weights_inside) + ["workspace"]
        return lines + [f"{aligned} {name}[{self.big}_{name.upper()}_BYTES];" for name in memory]

    def _functions(self) -> list[str]:
        """Those that `main` calls."""
        library = self.library
        found = [_image_reader(library, self.resize)] if self.is_image else []
        if not library.weights_inside or (library.inputs and not self.is_image):
            found.insert(0, _READ)
        if library.outputs:
            first = library.outputs[0]
            values = {"OUTPUTS": first.name.upper(), "TYPE": c_type(first)}
            found.append(_PRINT_CLASSES if self._classifies() else _filled(_PRINT_NUMBERS, values))
        return found

    def _classifies(self) -> bool:
        """Whether the result is a number for each label."""
        first, count = self.library.outputs[0], len(self.labels)
        return (
            bool(count)
            and len(self.library.outputs) == 1
            and first.dtype.name == "float32"
            and first.shape[-1:] == (count,)
        )

    def _check_arguments(self) -> list[str]:
        usage = f'fprintf(stderr, "usage: %s {self.wanted}\\n", argv[0]);'
        return [f"if (argc != {len(self.library.inputs) + 1}) {{", f"    {usage}", "    return 1;", "}"]

    def _read_inputs(self) -> list[str]:
        library, weights = self.library, not self.library.weights_inside
        lines = [f"read_file({self.big}_WEIGHTS_FILE, weights, sizeof weights);"] if weights else []
        lines += [f"{self.name}_init(state{', weights' if weights else ''});"] if library.state else []
        read = "read_image(argv[{0}], {1});" if self.is_image else "read_file(argv[{0}], {1}, sizeof {1});"
        return lines + [read.format(i, a.name) for i, a in enumerate(library.inputs, 1)]

    def _run(self) -> list[str]:
        library = self.library
        passed = [a.name for a in (*library.inputs, *library.outputs)] + ["state"] * bool(library.state)
        passed += ["workspace", *(["weights"] if not library.weights_inside else [])]
        shown = (
            ('": %s"', f', error > 0 ? {self.name}_errors[error - 1] : "misaligned"') if library.errors else ("", "")
        )
        complain = f'fprintf(stderr, "error %d" {shown[0]} "\\n", error{shown[1]});'
        return [
            f"int error = {self.name}_run({', '.join(passed)});",
            "if (error) {",
            f"    {complain}",
            "    return 1;",
            "}",
        ]

    def _print(self) -> list[str]:
        return [f"print_output({self.library.outputs[0].name});"] if self.library.outputs else []


def _is_image(library: CompiledLibrary) -> bool:
    """Whether the input is one picture: gray or colour."""
    if len(library.inputs) != 1 or library.inputs[0].dtype.name != "uint8":
        return False
    shape = library.inputs[0].shape
    return len(shape) == 4 and shape[0] == 1 and shape[1] in (1, 3)


def _image_reader(library: CompiledLibrary, resize: str) -> str:
    _, channels, height, width = library.inputs[0].shape
    format, magic = ("PPM", "6") if channels == 3 else ("PGM", "5")
    sizes = {"C": str(channels), "H": str(height), "W": str(width)}
    return _filled(
        _READ_IMAGE, {**sizes, "FORMAT": format, "MAGIC": magic, "RESIZE": resize_hint(library, resize) or ""}
    )


def _filled(text: str, values: Mapping[str, str]) -> str:
    """The text with values for its words in @."""
    for word, value in values.items():
        text = text.replace(f"@{word}@", value)
    return text
