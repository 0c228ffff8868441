"""The `onnx` package, imported when a model is read or written: weft works without it."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import UserError
from ..hints import install


def onnx_package(submodule: str = "") -> Any:
    """The package `onnx`, or one of its modules."""
    try:
        return importlib.import_module(f"onnx.{submodule}" if submodule else "onnx")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(("onnx", "google", "ml_dtypes")):
            raise
        message = f"ONNX files require the package onnx, which is not installed. {install('onnx')}"
        raise UserError("onnx", message) from None
