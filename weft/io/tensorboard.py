"""TensorBoard event files: scalars, text, images and histograms over the steps of a run, and the graph of a network.

A file is a sequence of records: eight bytes of length, their checksum, the bytes, their checksum. The bytes are a protobuf message
(`Event`, containing a `Summary`), encoded here: a field is its number and wire type in one byte, then its value. TensorBoard skips
a record that was truncated by a crash; all records before it stay readable.
"""

from __future__ import annotations

import os
import struct
import time as clock
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import RunError, UserError
from ..nn.module import Module
from .files import cannot_write, write_whole
from .graph_def import graph_def
from .protobuf import bytes_field, doubles_field, float_field, int_field, key, utf8

MOST_WAITING = 1 << 16  # bytes that are buffered before a flush
PNG_START = b"\x89PNG\r\n\x1a\n"


class EventWriter:
    """Writes one event file into a folder; a resumed run opens another writer, with another file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, EventWriter(folder) as events:
    ...     events.scalar("train/loss", 2.3, step=1)
    ...     events.text("notes", "the **first** run")
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.path = _next_path(Path(folder))
            self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise RunError("EventWriter", f"{folder} cannot be written to: {error.strerror or error}.") from error
        self._waiting = bytearray()  # records that are not in the file yet
        self._write(_event(clock.time(), 0, bytes_field(3, b"brain.Event:2")))
        try:
            self.flush()
        except RunError:
            self._file.close()
            raise

    def scalar(self, tag: str, value: Any, step: int, time: float | None = None) -> None:
        """A scalar at a step. A slash in the tag groups charts: "train/loss"."""
        self._summary(tag, float_field(2, float(value)), step, time)

    def text(self, tag: str, text: str, step: int = 0, time: float | None = None) -> None:
        """A text in Markdown."""
        tensor = int_field(1, _STRING) + bytes_field(2, b"") + bytes_field(8, utf8(text))
        self._summary(tag, bytes_field(8, tensor) + bytes_field(9, _TEXT_PLUGIN), step, time)

    def hparams(self, settings: Mapping[str, Any], time: float | None = None) -> None:
        """The settings of a run, as a Markdown table in the text tab."""
        rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in settings.items()]
        self.text("hparams", "\n".join(["| setting | value |", "|---|---|", *rows]), time=time)

    def image(self, tag: str, png: bytes, step: int, time: float | None = None) -> None:
        """An image, as the bytes of a PNG file (`weft.report.png` encodes an array)."""
        if png[:8] != PNG_START or len(png) < 33:
            raise UserError(
                "EventWriter.image",
                f"an image must be the bytes of a PNG file, got {png[:8]!r}. Use weft.report.png(array).",
            )
        width, height = struct.unpack(">II", png[16:24])
        channels = {0: 1, 4: 2, 2: 3, 3: 3, 6: 4}.get(png[25], 3)
        picture = int_field(1, height) + int_field(2, width) + int_field(3, channels) + bytes_field(4, png)
        self._summary(tag, bytes_field(4, picture), step, time)

    def histogram(self, tag: str, values: Any, step: int, time: float | None = None, *, bins: int = 30) -> None:
        """A histogram of values; values that are not finite are skipped."""
        if bins < 1:
            raise UserError("EventWriter.histogram", f"bins must be at least 1, got {bins}.")
        self._summary(tag, bytes_field(5, _histogram(np.asarray(values, np.float64).reshape(-1), bins)), step, time)

    def graph(self, model: Module, *examples: Any, time: float | None = None) -> None:
        """The graph of a network, for the graphs page: each layer is a scope that opens, and edges are labelled with shapes.

        Examples are tensors, arrays or shapes (with the batch), one for each input.
        """
        self.encoded_graph(graph_def(model, *examples), time=time)

    def encoded_graph(self, content: bytes, *, time: float | None = None) -> None:
        """A graph that `graph_def` has encoded."""
        self._check_open()
        self._write(_event(clock.time() if time is None else time, 0, bytes_field(4, content)))

    def flush(self) -> None:
        """Write all buffered records to the file, so that they survive if this process is killed."""
        self._check_open()
        records, self._waiting = bytes(self._waiting), bytearray()
        try:
            write_whole(self._file, records)
        except OSError as error:
            raise cannot_write("EventWriter", self.path, error) from error

    def close(self) -> None:
        """Flush and close; closing again does nothing."""
        if not self._file.closed:
            try:
                self.flush()
            finally:
                self._file.close()

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _summary(self, tag: str, value: bytes, step: int, time: float | None) -> None:
        self._check_open()
        summary = bytes_field(1, bytes_field(1, utf8(tag)) + value)
        self._write(_event(clock.time() if time is None else time, step, bytes_field(5, summary)))

    def _write(self, event: bytes) -> None:
        self._waiting += record(event)
        if len(self._waiting) > MOST_WAITING:
            self.flush()

    def _check_open(self) -> None:
        if self._file.closed:
            raise UserError("EventWriter", f"{self.path.name} is closed. Open a new EventWriter on the same folder.")


def _next_path(folder: Path) -> Path:
    """A name that sorts last in the folder: TensorBoard reads files in the order of their names."""
    seconds = [int(clock.time())]
    for path in folder.glob("events.out.tfevents.*"):
        digits = path.name.split(".")[3]
        seconds += [int(digits) + 1] if digits.isdecimal() else []
    return folder / f"events.out.tfevents.{max(seconds):010d}.weft.{os.getpid()}"


def _event(time: float, step: int, what: bytes) -> bytes:
    return key(1, 1) + struct.pack("<d", time) + int_field(2, int(step)) + what


def _histogram(values: np.ndarray, bins: int) -> bytes:
    values = values[np.isfinite(values)]
    counts, edges = np.histogram(values, bins) if values.size else (np.zeros(1), np.zeros(2))
    low, high = (values.min(), values.max()) if values.size else (0.0, 0.0)
    numbers = [low, high, values.size, values.sum(), np.square(values).sum()]
    fields = [key(place, 1) + struct.pack("<d", number) for place, number in enumerate(numbers, 1)]
    return b"".join(fields) + doubles_field(6, edges[1:].tolist()) + doubles_field(7, counts.tolist())


def _cell(value: Any) -> str:
    """A text escaped for a cell of a Markdown table, where a bar or a newline would end the cell."""
    return " ".join(str(value).replace("\\", "\\\\").replace("|", "\\|").split())


_STRING = 7  # the number of the dtype of texts
_TEXT_PLUGIN = bytes_field(1, bytes_field(1, b"text")) + int_field(
    4, 2
)  # shown by the plugin "text"; the value is a tensor


# Records.


def record(data: bytes) -> bytes:
    """Bytes with their length and the checksums of both."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    """The masked CRC of the record format (rotated, plus a constant)."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) checksum.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_crc_of_byte(byte) for byte in range(256)]
