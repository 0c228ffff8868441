"""File formats: safetensors for tensors, event files for TensorBoard."""

from .safetensors import load as load
from .safetensors import save as save
from .tensorboard import EventWriter as EventWriter
