"""A process that converts chunks of image files: jobs come as lines of JSON, results go back as a line and the bytes.

It runs in a Python of its own, so nothing of the user's program is imported or pickled, and it ends when the
one who asks ends. A decoder that crashes takes only this process with it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO, Any

import numpy as np

from .convert import Converted, Recipe, convert

READY = b"ready\n"


def main() -> None:
    """Answer jobs until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    answers.write(READY)
    answers.flush()
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # what a library prints must not stand among the answers
    os.dup2(silence, 2)
    for line in sys.stdin.buffer:
        job = json.loads(line)
        write_answer(answers, convert(job["paths"], Recipe.from_json(job["recipe"])))


def job_line(paths: list[str], recipe: Recipe) -> bytes:
    return json.dumps({"paths": paths, "recipe": recipe.as_json()}).encode() + b"\n"


def write_answer(file: IO[bytes], found: Converted) -> None:
    lengths = [len(image) for image in found.images]
    head = {"lengths": lengths, "reasons": found.reasons, "counts": found.counts.tolist()}
    file.write(json.dumps(head).encode() + b"\n")
    for image in found.images:
        file.write(image)
    file.flush()


def read_answer(file: IO[bytes]) -> Converted:
    """The answer of a worker; EOFError when it ended before it was through."""
    line = file.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    head: dict[str, Any] = json.loads(line)
    images = [file.read(length) for length in head["lengths"]]
    if [len(image) for image in images] != head["lengths"]:
        raise EOFError
    return Converted(images, head["reasons"], np.array(head["counts"], np.int64))
