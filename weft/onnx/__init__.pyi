"""The names of `weft.onnx`, each imported when it is first used (see weft/lazy.py)."""

from .export.save import save as save
from .module import OnnxModule as OnnxModule
from .module import OnnxPort as OnnxPort
from .module import load as load
from .module import loads as loads
from .module import op_types as op_types
from .weights import assign_in_order as assign_in_order
from .weights import load_onnx_weights as load_onnx_weights
