"""NVIDIA's management library (NVML), through the package nvidia-ml-py: the one place that opens it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def open_nvml() -> Any | None:
    """The package with its library open; None without the package, the driver or a GPU. `nvmlShutdown` closes it again."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # there is no driver, or it has no GPU
        return None
    return nvml


@contextmanager
def nvml_library() -> Iterator[Any | None]:
    """The same inside of a `with`, which closes it."""
    nvml = open_nvml()
    try:
        yield nvml
    finally:
        if nvml is not None:
            nvml.nvmlShutdown()
