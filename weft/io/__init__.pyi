"""The names of `weft.io`, each imported when it is first used (see weft/lazy.py)."""

from .npz_file import load_npz as load_npz
from .npz_file import save_npz as save_npz
from .safetensors import load as load
from .safetensors import save as save
from .tensorboard import EventWriter as EventWriter
from .weights_file import load_weights as load_weights
