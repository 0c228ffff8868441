"""The verb `convert`: a file of a network or of weights in another format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..errors import UserError
from ..jobs.convert import PAIRS
from ..jobs.convert import convert as convert_file
from ..jobs.schema import Setting, count, flag
from .arguments import read
from .contents import size_text
from .table import as_json, pairs


def convert(words: Sequence[str]) -> None:
    """Convert weights and networks between file formats: weft convert net.pth net.safetensors, weft convert net.onnx net.weft.

    The suffix of the second file says which format: .safetensors and .npz hold weights; a whole network ends in .onnx or .weft. Names of tensors
    stay as they are; with model=mobilenet_v2, published weights are translated to that network of the zoo; with prototxt=deploy.prototxt, a
    .caffemodel becomes the network that it describes.
    """
    known = {
        "model": Setting(str, None, "network of the zoo that published weights are for"),
        "classes": Setting(count, None, "number of classes of that network; default: its own"),
        "prototxt": Setting(str, None, "description of the network of a .caffemodel"),
        "mean": Setting(str, None, ".binaryproto of the mean image that a network of Caffe subtracts"),
        "exist_ok": Setting(flag, False, "replace a file that is there"),
        "json": Setting(flag, False, "print JSON, for programs"),
    }
    given = read("convert", words, known, 2)
    if len(given.plain) != 2:
        raise UserError("weft convert", f"two files are required: weft convert net.pth net.safetensors. {PAIRS}.")
    source, target = given.plain
    if Path(target).exists() and not given["exist_ok"]:
        raise UserError("weft convert", f"{target} already exists. Choose another name, or pass exist_ok=true.")
    settings = {name: given[name] for name in ("model", "classes", "prototxt", "mean")}
    found = convert_file(source, target, **settings)
    if given["json"]:
        print(as_json(asdict(found)))
        return
    facts = {"file": found.file, "size": size_text(Path(found.file).stat().st_size), "tensors": str(found.tensors)}
    facts |= {"names of": found.library} if found.library else {}
    facts |= {"inputs": ", ".join(found.inputs)} if found.inputs else {}
    print(pairs(facts))
