"""Handlers of ONNX op types, by family. Importing this package fills the table in registry.py."""

from ..registry import op_types as op_types
from . import activation as activation
from . import casts as casts
from . import control_flow as control_flow
from . import convolution as convolution
from . import indexing as indexing
from . import machine_learning as machine_learning
from . import math as math
from . import normalization as normalization
from . import pooling as pooling
from . import quantized as quantized
from . import random as random
from . import recurrent as recurrent
from . import reduction as reduction
from . import resize as resize
from . import sampling as sampling
from . import scatter as scatter
from . import selection as selection
from . import sequence as sequence
from . import shapes as shapes
from . import signal as signal
from . import strings as strings
from . import training as training
