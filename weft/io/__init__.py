"""Files: tensors as safetensors."""

from .safetensors import load as load
from .safetensors import save as save
