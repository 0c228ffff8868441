"""A worker process that converts chunks of image files. Jobs arrive on stdin as lines of JSON; each result is a line
of JSON followed by the image bytes.

The worker is a fresh Python process: nothing of the user's program is imported or pickled, it exits with its parent,
and a decoder that crashes ends only this process.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO, Any

import numpy as np

from .convert import ConversionOptions, ConvertedChunk, convert

READY = b"ready\n"


def main() -> None:
    """Process jobs until stdin is closed."""
    results = os.fdopen(os.dup(1), "wb")
    results.write(READY)
    results.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # output printed by libraries must not mix with the results
    os.dup2(null, 2)
    for line in sys.stdin.buffer:
        job = json.loads(line)
        write_result(results, convert(job["paths"], ConversionOptions.from_json(job["options"])))


def encode_job(paths: list[str], options: ConversionOptions) -> bytes:
    return json.dumps({"paths": paths, "options": options.as_json()}).encode() + b"\n"


def write_result(file: IO[bytes], chunk: ConvertedChunk) -> None:
    lengths = [len(image) for image in chunk.images]
    header = {"lengths": lengths, "reasons": chunk.reasons, "counts": chunk.counts.tolist()}
    file.write(json.dumps(header).encode() + b"\n")
    for image in chunk.images:
        file.write(image)
    file.flush()


def read_result(file: IO[bytes]) -> ConvertedChunk:
    """Read one result of a worker; raises EOFError if the worker ended before it was complete."""
    line = file.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    header: dict[str, Any] = json.loads(line)
    images = [file.read(length) for length in header["lengths"]]
    if [len(image) for image in images] != header["lengths"]:
        raise EOFError
    return ConvertedChunk(images, header["reasons"], np.array(header["counts"], np.int64))
