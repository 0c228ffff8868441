"""The names of `weft.io`, each imported when it is first used (see weft/lazy.py)."""

from .caffe_file import load_caffe_mean as load_caffe_mean
from .caffe_network import load_caffe_network as load_caffe_network
from .npz_tensors import load_npz as load_npz
from .npz_tensors import save_npz as save_npz
from .safetensors import load as load
from .safetensors import save as save
from .tensorboard import EventWriter as EventWriter
from .weights_file import load_weights as load_weights
