"""Files: tensors as safetensors, events for TensorBoard."""

from .safetensors import load as load
from .safetensors import save as save
from .tensorboard import EventWriter as EventWriter
