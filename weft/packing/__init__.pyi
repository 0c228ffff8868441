"""The public names of weft.packing (see weft/lazy.py)."""

from .packed_tensors import load_packed as load_packed
from .packed_tensors import save_packed as save_packed
from .packed_tensors import unpack_tensors as unpack_tensors
