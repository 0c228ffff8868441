"""The process that decodes images of strangers, with limits on its memory and files. decoding.py starts it, and ends it when it is too slow.

A request is a line of JSON and the content of an image file; an answer is a line of JSON and pixels. Nothing is unpickled on either side.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any, BinaryIO

import numpy as np

from ..data.convert import to_array
from ..data.images import Unreadable, decode_image
from ..data.resize import resize


def main() -> None:
    """Answer requests until the input ends."""
    limit(int(sys.argv[1]))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    _send(sink, {})  # ready
    while line := source.readline():
        request = json.loads(line)
        content = source.read(request["bytes"])
        try:
            pixels = pixels_of(content, request)
        except Unreadable as reason:
            _send(sink, {"reason": str(reason)})
        except MemoryError:
            _send(sink, {"reason": "needs more memory than there is"})
        else:
            _send(sink, {"shape": pixels.shape}, pixels.tobytes())


def limit(memory: int) -> None:
    """No more memory than this, no files, no core dumps."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))


def pixels_of(content: bytes, request: dict[str, Any]) -> np.ndarray:
    """The pixels as (channels, height, width): resized to a size, or scaled down to a longest side."""
    image = decode_image(content, request["colour"])
    if "size" in request:
        height, width = request["size"]
        image = resize(image, (height, width), request["resize"])
    else:
        image.thumbnail((request["longest"], request["longest"]))
    return to_array(image)


def _send(sink: BinaryIO, head: dict[str, Any], content: bytes = b"") -> None:
    sink.write(json.dumps(head).encode() + b"\n" + content)
    sink.flush()


if __name__ == "__main__":
    main()
