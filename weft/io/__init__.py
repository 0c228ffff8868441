"""File formats: safetensors for tensors, event files for TensorBoard."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
