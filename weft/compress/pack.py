"""Packed programs: `.weft` files with entropy-coded weights. `weft.load` decodes them once; their results are bit-identical.

    prune(model, 0.1); fit(...); share(model, bits=5); fit(...)
    pack(model, "small.weft", weft.zeros((1, 784)))        # or pack("net.weft", "small.weft")

Packing itself rounds nothing, except with `half`. All sizes that it reports are those of a file.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..nn.module import Module
from ..packing.packed_tensors import Coder, pack_tensors
from ..saved.archive import write_archive
from ..saved.manifest import PACKED_VERSION, packed_head
from ..saved.packed_text import pack_text
from ..saved.program import PACKED_TEXT, PACKED_WEIGHTS, Program, load
from ..saved.save import save
from ..tensor import Tensor
from ..version import __version__
from .layers import weights_of
from .parametrize import Parametrization, bake, parametrizations, restore
from .product_quantization import ProductCodebook
from .qdq import IntegerWeight, store_integers
from .weight_only import GroupedWeight

_STORED = (
    IntegerWeight,
    GroupedWeight,
    ProductCodebook,
)  # stored directly in files, since they are smaller than their values
_HALF_ERROR = 1e-3  # relative error of float16; tensors with a larger one stay float32


def pack(
    program: Module | str | os.PathLike[str],
    out: str | os.PathLike[str],
    inputs: Any = None,
    *,
    half: bool = False,
    coder: Coder = "rans",
    **facts: Any,
) -> int:
    """Write a network, or a program that `weft.save` wrote, as a program with packed weights; returns the bytes of the file.

    For a network, `inputs` and `facts` are those of `weft.save`; its evaluation mode is saved (`train=True`: the training mode too). Computed parameters
    (masks, codebooks) become plain ones in the file, weights of up to 8 bits integers; the network itself is not changed. `half` rounds float32 values to float16
    where they are in its range: biases, centroids and other stored tensors. `coder`: 'rans', or 'huffman' as in the Deep Compression paper.

    >>> import tempfile, weft
    >>> from weft import nn
    >>> net = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10)).eval()
    >>> _ = weft.compress.prune(net, 0.1), weft.compress.share(net, bits=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     size = pack(net, f"{folder}/small.weft", weft.zeros((1, 100)))
    ...     small = weft.load(f"{folder}/small.weft").eval()
    >>> x = weft.random.normal((3, 100))
    >>> size < 4000, small(x).tolist() == net(x).tolist()
    (True, True)
    """
    if not isinstance(program, Module):
        if inputs is not None or facts:
            raise UserError("pack", "a saved program has its inputs and facts already: give them only with a network.")
        return _packed_file(load(program), Path(out), half, coder)
    if isinstance(program, Program):
        raise UserError("pack", "a network or the path of a saved program is required, got a loaded program.")
    if inputs is None:
        raise UserError("pack", "inputs are required to save a network, as in weft.save: pack(model, out, inputs).")
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.weft"
        facts = {"train": False, **facts}
        save(plain, baked(program, integers=not facts["train"]), inputs, **facts)
        return _packed_file(load(plain), Path(out), half, coder)


def baked(model: Module, *, integers: bool = True) -> Module:
    """A copy of a network in which computed parameters become plain ones, except for integers and product codebooks, which are stored as such. `integers`: quantized
    weights become integers, which cannot be trained."""
    found = copy.deepcopy(model)
    if integers:
        for one in weights_of(found).values():
            store_integers(one)
    plain: dict[Parametrization, Tensor] = {}  # shared weights stay shared
    for _, layer, name, made in list(parametrizations(found)):
        if isinstance(made, _STORED):
            continue
        if made in plain:
            restore(layer, name, plain[made])
        else:
            plain[made] = bake(layer, name)
    return found


def packed_weights(model: Module, half: bool = False) -> dict[str, np.ndarray]:
    """The tensors of a network as stored in a packed file."""
    return rounded({name: t.numpy() for name, t in baked(model).named_tensors().items()}, half)


def rounded(tensors: Mapping[str, np.ndarray], half: bool) -> dict[str, np.ndarray]:
    """float32 tensors rounded to float16 values, if `half`; tensors outside the range of float16 are unchanged."""
    return {name: _half(value) if half else value for name, value in tensors.items()}


def _half(value: np.ndarray) -> np.ndarray:
    if value.dtype != np.float32:
        return value
    with np.errstate(over="ignore", invalid="ignore"):
        found = value.astype(np.float16).astype(np.float32)
        largest = np.abs(value).max(initial=0.0)  # a tensor of tiny values only is not in the range of float16
        least = min(float(np.finfo(np.float16).smallest_subnormal), _HALF_ERROR * float(largest))
        near = np.abs(found - value) <= _HALF_ERROR * np.abs(value) + least
    return found if bool(near.all()) else value


def _packed_file(program: Program, out: Path, half: bool, coder: Coder) -> int:
    arrays = rounded(program.stored_tensors(), half)
    manifest = program.manifest
    texts = {function.graph: program.graph_text(name) for name, function in manifest.functions.items()}
    entries = {
        "manifest.json": [packed_head(__version__).encode()],
        PACKED_TEXT: [pack_text(manifest.as_text(PACKED_VERSION, indent=None), list(texts.values()))],
        PACKED_WEIGHTS: [pack_tensors(arrays, coder).content],
    }
    write_archive(out, entries, aligned=False)
    return out.stat().st_size
