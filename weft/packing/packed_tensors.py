"""A small file of tensors. What is zero costs little, values that repeat are numbers of a codebook, and both are entropy coded; nothing is rounded.

    "WPK", version    4 bytes
    coder             0: rANS with contexts, 1: Huffman codes as in Deep Compression
    names             of all tensors, deflated if that is shorter
    for each tensor   dtype, shape, form (see below), values and tables
    streams           rANS only: classes of rows and columns; then masks of zeros and numbers of values
    padding           zeros, so that the file is not smaller than its tensors allow (see below)
    checksum          CRC-32 of all before, 4 bytes

Numbers are varints. Forms are sums of MASKED (zeros are left out), CODEBOOK (values are numbers of a codebook), HALF (float32 values that are
float16 without loss are stored so) and DISTANCES (the zeros between two weights are counted; there is no mask); 0 is the plain tensor. A file can unpack to much more than its size, but not to anything: see MOST_BYTES.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import RunError, UserError
from ..io.files import replace_file
from ..records import dataclass
from .byte_stream import ByteReader, ByteWriter, Damaged
from .context_coding import write_segments
from .tensor_content import split_tensor
from .tensor_forms import (
    DTYPES,
    TensorForm,
    decode_tensors,
    distances_form,
    huffman_form,
    plain_form,
    rans_form,
    read_head,
)

Coder = Literal["rans", "huffman"]
# Version 2 has distances in rANS, version 3 padding. A file has the lowest version that reads it.
MAGIC, VERSION, PADDED = b"WPK", 3, 3
CODERS: tuple[Coder, ...] = ("rans", "huffman")
MOST_BYTES, MOST_RATIO = 1 << 26, 1 << 14  # that all tensors have: so many, or so many times the bytes of the file


@dataclass(frozen=True)
class PackedTensors:
    """The content of a file, and the form of each tensor. Their bytes add up to nearly the whole; names, states of streams and checksum are the rest."""

    content: bytes
    forms: dict[str, TensorForm]


def save_packed(path: str | os.PathLike[str], tensors: Mapping[str, Any], coder: Coder = "rans") -> int:
    """Write tensors by name as a packed file; its bytes.

    >>> import tempfile
    >>> pruned = np.where(np.arange(10_000) % 50 == 0, 0.5, 0.0).astype(np.float32).reshape(100, 100)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     size = save_packed(f"{folder}/w.packed", {"weight": pruned})
    ...     same = load_packed(f"{folder}/w.packed")["weight"] == pruned
    >>> size < 400, bool(same.all())
    (True, True)
    """
    found = pack_tensors(tensors, coder).content
    replace_file(Path(path), [found])
    return len(found)


def load_packed(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The tensors of a packed file by name. Damaged files are rejected."""
    try:
        return unpack_tensors(Path(path).read_bytes(), path)
    except OSError as error:
        raise RunError("load", f"{path} cannot be read: {error.strerror or error}.") from None


def pack_tensors(tensors: Mapping[str, Any], coder: Coder = "rans") -> PackedTensors:
    """Tensors by name as the bytes of a packed file."""
    if coder not in CODERS:
        raise UserError("pack", f"coder must be 'rans' or 'huffman', got {coder!r}.")
    arrays = {name: _native(np.asarray(value)) for name, value in tensors.items()}
    unknown = [name for name, array in arrays.items() if array.dtype.name not in DTYPES]
    if unknown:
        raise UserError("pack", f"{unknown[0]!r} is {arrays[unknown[0]].dtype}; packed are {', '.join(DTYPES)}.")
    out = ByteWriter()
    forms = {name: shortest_form(array, coder) for name, array in arrays.items()}
    out.content += MAGIC + bytes([2 if any(form.has_distances for form in forms.values()) else 1, CODERS.index(coder)])
    _write_names(out, list(arrays))
    for form in forms.values():
        out.content += form.head
    write_segments(out, [one for form in forms.values() for one in form.classes])
    write_segments(out, [one for form in forms.values() for one in form.symbols])
    _pad(out, sum(array.nbytes for array in arrays.values()))
    out.content += zlib.crc32(out.content).to_bytes(4, "little")
    return PackedTensors(bytes(out.content), forms)


def _native(array: np.ndarray) -> np.ndarray:
    """An array in the byte order of this machine."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _pad(out: ByteWriter, unpacked: int) -> None:
    """Lengthen a file that would be too small for the memory that its tensors claim."""
    missing = -(-unpacked // MOST_RATIO) - len(out.content) - 4
    if unpacked > MOST_BYTES and missing > 0:
        out.content += bytes(missing)
        out.content[len(MAGIC)] = PADDED


def shortest_form(array: np.ndarray, coder: Coder) -> TensorForm:
    """The shortest of the forms that this coder has for a tensor."""
    content, plain = split_tensor(array), plain_form(array)
    if content.mask is None and content.indices is None:
        return plain
    forms = [plain, *([rans_form(content), distances_form(content)] if coder == "rans" else [huffman_form(content)])]
    return min((form for form in forms if form is not None), key=lambda form: form.bytes)


def unpack_tensors(content: bytes, path: object) -> dict[str, np.ndarray]:
    """The tensors of a packed file; errors name `path`."""
    try:
        return _unpacked(content)
    except (Damaged, RunError) as error:
        why = error.message if isinstance(error, RunError) else str(error)
        raise RunError("load", f"{path} is not a file of packed tensors, or is damaged: {why.rstrip('.')}.") from None


def _unpacked(content: bytes) -> dict[str, np.ndarray]:
    if len(content) < len(MAGIC) + 6 or content[: len(MAGIC)] != MAGIC:
        raise Damaged("it does not begin as one")
    if content[len(MAGIC)] > VERSION:
        raise Damaged(f"it has version {content[len(MAGIC)]}, this weft reads up to {VERSION}: install a newer weft")
    if zlib.crc32(content[:-4]) != int.from_bytes(content[-4:], "little"):
        raise Damaged("its checksum is wrong")
    reader = ByteReader(content[:-4])
    reader.take(len(MAGIC) + 1)
    coder = CODERS[reader.at_most(len(CODERS) - 1, "the coder")]
    names = _read_names(reader)
    left, heads = max(MOST_BYTES, MOST_RATIO * len(content)), []
    for _ in names:
        heads.append(read_head(reader, left, with_contexts=coder == "rans"))
        left -= math.prod(heads[-1].shape) * heads[-1].dtype.itemsize
    found = decode_tensors(reader, heads)
    rest = reader.take(reader.left)
    if any(rest) or (rest and content[len(MAGIC)] < PADDED):
        raise Damaged(f"{len(rest)} bytes are left over")
    return dict(zip(names, found, strict=True))


def _write_names(out: ByteWriter, names: list[str]) -> None:
    plain = ByteWriter()
    plain.varint(len(names))
    for name in names:
        plain.text(name)
    deflated = zlib.compress(bytes(plain.content), 9, -15)
    is_shorter = len(deflated) < len(plain.content)
    out.varint(len(plain.content) if is_shorter else 0)
    out.block(deflated if is_shorter else bytes(plain.content))


def _read_names(reader: ByteReader) -> list[str]:
    length, given = reader.at_most(MOST_BYTES, "the length of names"), reader.block()
    if length:
        try:
            given = zlib.decompressobj(-15).decompress(given, length)
        except zlib.error as error:
            raise Damaged(f"names cannot be inflated ({error})") from None
    inner = ByteReader(given)
    names = [inner.text() for _ in range(inner.at_most(len(given), "the number of tensors"))]
    if len(set(names)) < len(names) or inner.left:
        raise Damaged("names are repeated, or are not what they should be")
    return names
