"""File formats: safetensors and .npz for tensors, event files for TensorBoard, and files of weights of other programs."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
