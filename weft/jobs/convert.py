"""Files of networks in other formats: weights to safetensors and .npz, programs to ONNX and back.

The content tells the format of the source, as everywhere; the suffix says which format the target has.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import nn, zoo
from ..errors import UserError
from ..io import load_caffe_network, load_weights, save
from ..io.file_kind import FileKind, file_kind
from ..io.files import replace_with
from ..onnx.export.save import save as save_onnx
from ..onnx.module import OnnxModule, OnnxPort
from ..onnx.module import load as load_onnx
from ..records import dataclass
from ..saved.program import Program
from ..saved.program import load as load_program
from ..saved.save import save as save_program
from ..saved.trace import TensorSpec
from ..tree import flatten, unflatten
from ..zoo.catalogue import FACTS
from ..zoo.published import load_published
from .networks import full_name

WEIGHTS = (".safetensors", ".npz")
SUFFIX: dict[FileKind, str] = {"program": ".weft", "onnx": ".onnx"}
PROGRAMS = (".weft", ".onnx")
PAIRS = (
    "Weights (PyTorch, safetensors, .npz, Keras, Caffe) become .safetensors or .npz, and with model= also .weft or .onnx; "
    ".weft and .onnx become each other, and with their weights alone .safetensors or .npz"
)


@dataclass(frozen=True)
class Converted:
    """What was written: the file, its tensors, the library whose names were translated, and the inputs of a program."""

    file: str
    tensors: int
    library: str | None = None
    inputs: tuple[str, ...] = ()


def convert(
    source: str, target: str, *, model: str | None = None, classes: int | None = None, prototxt: str | None = None,
    mean: str | None = None,
) -> Converted:  # fmt: skip
    """Write `source` in the format that the suffix of `target` names.

    With `model`, published weights are translated to a network of the zoo: its names, or the whole network as a program. `classes` is the
    number of classes of its last layer, if it is another than that of the network. With `prototxt`, which describes it, a network of Caffe
    becomes a program; `mean` is the .binaryproto of the image that it subtracts first.
    """
    read, write = Path(source), Path(target)
    if not read.is_file():
        raise UserError(
            "convert", f"a file is required, got {source!r}, {'a folder' if read.is_dir() else 'which does not exist'}."
        )
    if write.suffix not in (*WEIGHTS, *PROGRAMS):
        raise UserError(
            "convert", f"a file that ends in {', '.join((*WEIGHTS, *PROGRAMS))} is required, got {target!r}. {PAIRS}."
        )
    kind = file_kind(read, "convert")
    if prototxt is not None:
        return _caffe_network(read, write, Path(prototxt), mean)
    if mean is not None:
        raise UserError("convert", "mean= belongs to a network of Caffe: give prototxt= too.")
    if model is not None:
        return _network(read, kind, write, full_name(model), classes)
    if classes is not None:
        raise UserError("convert", "classes= belongs to a network of the zoo: give model= too.")
    if kind in SUFFIX:
        return _program(read, kind, write)
    if write.suffix in PROGRAMS:
        raise UserError(
            "convert", f"{source} holds weights alone, and {write.suffix} a whole network: which? Give model=."
        )
    values = load_weights(read)
    _write_weights(write, values, {"origin": read.name})
    return Converted(str(write), len(values))


def _network(read: Path, kind: FileKind, write: Path, name: str, classes: int | None) -> Converted:
    """Published weights as a network of the zoo."""
    if kind in SUFFIX:
        raise UserError("convert", f"model= is for files of weights, got {read}.")
    values = load_weights(read)
    network = zoo.find(name)(**({} if classes is None else {"classes": classes})).eval()
    loaded = load_published(network, name, values)
    own = network.named_tensors()
    facts: dict[str, Any] = {"origin": read.name, "network": name, "library": loaded.library}
    if write.suffix in WEIGHTS:
        _write_weights(write, {n: t.numpy() for n, t in own.items()}, facts)
        return Converted(str(write), len(own), loaded.library)
    shape = FACTS[name].input
    if shape is None:
        raise UserError(
            "convert", f"{name} takes no images: only its weights can be converted, to {' or '.join(WEIGHTS)}."
        )
    if loaded.statistics is not None:
        mean, deviation = map(list, loaded.statistics)
        facts["images"] = {"mean": mean, "std": deviation, "resize": "crop"}
    spec = TensorSpec(("batch", *shape))
    _write_program(write, network, (spec,), facts)
    return Converted(str(write), len(own), loaded.library, (spec.text,))


def _caffe_network(read: Path, write: Path, prototxt: Path, mean: str | None) -> Converted:
    if write.suffix not in PROGRAMS:
        raise UserError("convert", f"prototxt= makes a network, which ends in {' or '.join(PROGRAMS)}, got {write}.")
    network = load_caffe_network(prototxt, read, mean)
    if network.input_shape is None:
        raise UserError("convert", f"{prototxt} does not say the shape of its images: take the one for deployment.")
    spec = TensorSpec(("batch", *network.input_shape))
    facts = {"origin": read.name, "network": prototxt.name, "images": "blue, green, red, as Caffe reads them"}
    _write_program(write, network, (spec,), facts)
    return Converted(str(write), len(network.named_tensors()), "caffe", (spec.text,))


def _program(read: Path, kind: FileKind, write: Path) -> Converted:
    """A program in another format, with all that it states about itself, or its weights."""
    if SUFFIX[kind] == write.suffix:
        raise UserError("convert", f"{read} has this format already. {PAIRS}.")
    program = (load_onnx(read) if kind == "onnx" else load_program(read)).eval()
    own = program.named_tensors()
    if write.suffix in WEIGHTS:
        _write_weights(write, {n: t.numpy() for n, t in own.items()}, {"origin": read.name})
        return Converted(str(write), len(own))
    if isinstance(program, OnnxModule):
        inputs: Any = tuple(_spec_of(read, number, port) for number, port in enumerate(program.inputs))
    else:
        inputs = _specs_of(read, program)
    _write_program(write, program, inputs, {"origin": program.facts.get("origin", read.name)})
    return Converted(str(write), len(own), None, tuple(spec.text for spec in flatten(inputs)[0]))


def _spec_of(read: Path, number: int, port: OnnxPort) -> TensorSpec:
    """The type of an input; free dimensions without a usable name get one."""
    if port.shape is None:
        raise UserError("convert", f"the input {port.name} of {read} has no shape, which a program needs.")
    sizes = [
        size if isinstance(size, int) else size if size and size.isidentifier() else f"free{number}_{axis}"
        for axis, size in enumerate(port.shape)
    ]
    return TensorSpec(tuple(sizes), port.dtype)


def _specs_of(read: Path, program: Program) -> tuple[Any, ...] | dict[str, Any]:
    """The types of the arguments as `weft.save` takes them: positional ones, or those with names."""
    limits = program.manifest.dimensions
    found = []
    for text in program.argument_types():
        dtype, _, sizes = text.removesuffix("]").partition("[")
        named = [size.strip() for size in sizes.split(",") if size.strip()]
        shape = [int(n) if n.isdecimal() else f"{n}<={limits[n]}" if limits.get(n) else n for n in named]
        found.append(TensorSpec(tuple(shape), dtype))
    args, kwargs = unflatten(next(iter(program.manifest.functions.values())).arguments, found)
    if args and kwargs:
        raise UserError(
            "convert", f"{read} takes arguments with and without names: save it again with those of one kind."
        )
    inputs: tuple[Any, ...] | dict[str, Any] = kwargs or args
    return inputs


# --- writing ----------------------------------------------------------------------------------------------------------------


def _write_program(path: Path, program: nn.Module, inputs: Any, facts: Mapping[str, Any]) -> None:
    if path.suffix == ".weft":
        save_program(path, program, inputs, train=False, **facts)
    else:
        save_onnx(path, program, inputs, metadata=facts)


def _write_weights(path: Path, values: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> None:
    if path.suffix == ".safetensors":
        save(path, values, facts)
        return
    unknown = [name for name, value in values.items() if value.dtype.kind not in "biufc"]
    if unknown:
        raise UserError(
            "convert",
            f"NumPy has no {values[unknown[0]].dtype}, which {unknown[0]} has: convert to .safetensors instead.",
        )
    replace_with(path, lambda file: np.savez(file, **dict(values)), "convert")  # type: ignore[arg-type]
