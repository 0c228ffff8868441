"""A trained network as a page: a folder that classifies pictures in the browser."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import __version__ as pillow

from ..aot.compile import CompiledLibrary
from ..aot.program import compile_library
from ..errors import UserError
from ..records import dataclass
from ..report.text_format import counted
from ..saved.program import Program
from ..version import __version__
from ..web.folder import write_page
from ..web.wasm_linker import link
from .prediction.predictor import Predictor, predictor_of_program

_ACCURACIES = {
    "test_accuracy": "Test accuracy",
    "validation_accuracy": "Validation accuracy",
}  # the first one known is shown


@dataclass(frozen=True)
class ExportedPage:
    """Sizes of a page, in bytes."""

    code: int
    weights: int
    workspace: int


def export_web(program: Program, folder: Path) -> ExportedPage:
    """Write a page that runs the program of an image classifier (or regressor) as WebAssembly."""
    predictor = predictor_of_program(program)
    if not predictor.reads_images:
        raise UserError(
            "export", "a page classifies pictures, and this network does not take pictures. Use to=c, to=onnx or weft."
        )
    library = compile_library(program.eval(), "net", "wasm32", weights_inside=False)
    _check_library(library)
    code = link(library.object, [library.function])
    size = ExportedPage(len(code), len(library.weights), library.workspace)
    write_page(folder, _description(program, predictor, library, size), code, library.weights)
    return size


def _check_library(library: CompiledLibrary) -> None:
    """Refuse what the page does not call: it gives bytes of pixels and reads float32."""
    types = [(f"{a.dtype.name}[{', '.join(map(str, a.shape))}]") for a in (*library.inputs, *library.outputs)]
    dtypes = [a.dtype.name for a in (*library.inputs, *library.outputs)]
    if dtypes != ["uint8", "float32"] or library.state:
        state = " and state" if library.state else ""
        raise UserError(
            "export",
            f"a network from uint8 pixels to float32, without state, is required, got {', '.join(types)}{state}. Use to=c.",
        )


def _description(
    program: Program, predictor: Predictor, library: CompiledLibrary, size: ExportedPage
) -> dict[str, Any]:
    known = program.facts
    channels, height, width = predictor.shape
    data = known["preprocessing"]["data"]
    classes = list(map(str, predictor.classes))
    what = (
        f"Sorts pictures into {counted(len(classes), 'class', 'classes')}"
        if classes
        else "Predicts numbers from pictures"
    )
    return {
        "title": str(known.get("network", "Network")),
        "subtitle": f"{what}; trained on {data['name']}",
        "weft": __version__,
        "labels": classes or None,
        "input": {
            "channels": channels, "height": height, "width": width, "resize": predictor.resize,
            "tallFirst": int(pillow.partition(".")[0]) >= 13, "background": _background(data.get("mean")),
        },
        "run": library.function,
        "memory": {
            "input": library.inputs[0].nbytes, "output": library.outputs[0].nbytes, "workspace": library.workspace,
            "weights": len(library.weights),
        },
        "errors": list(library.errors),
        "facts": _facts(program, known, size),
    }  # fmt: skip


def _background(mean: list[float] | None) -> str:
    """What a drawing begins with: most pixels of training pictures are like it."""
    return "white" if mean is not None and sum(mean) / len(mean) > 0.5 else "black"


def _facts(program: Program, known: Mapping[str, Any], size: ExportedPage) -> list[tuple[str, str]]:
    """What the page says of the network: name and value."""
    found = [
        ("Parameters", f"{sum(tensor.size for tensor in program.parameters()):,}"),
        ("Size", _bytes(size.code + size.weights)),
    ]
    metrics = known.get("metrics")
    for name, shown in _ACCURACIES.items():
        if isinstance(metrics, Mapping) and isinstance(metrics.get(name), float):
            found.append((shown, f"{100 * metrics[name]:.1f} %"))
            break
    return found + [(name.capitalize(), str(known[name])) for name in ("licence", "origin") if known.get(name)]


def _bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
