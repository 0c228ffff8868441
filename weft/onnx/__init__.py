"""ONNX models: `weft.onnx.load("model.onnx")` gives a module that runs, compiles and trains;
`weft.onnx.save("model.onnx", model, inputs)` writes one. Requires the extra `onnx`."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
