"""The process of a training on a node: `python -m weft.jobs.cluster.remote_worker JOB`. It ends when its parent ends, for whatever reason."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from ..queue.worker import work


def end_with_parent() -> None:
    """Wait for the end of stdin, which the kernel closes when the process that started this one ends: then the results are no longer needed."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    work(Path(sys.argv[1]))
