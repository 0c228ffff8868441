"""The ops: primitives, each declared once (see declare.py), and functions composed of them."""

from . import activation as activation
from . import attention as attention
from . import contract as contract
from . import conv as conv
from . import convert as convert
from . import creation as creation
from . import elementwise as elementwise
from . import float8 as float8
from . import grouped as grouped
from . import indexing as indexing
from . import loss as loss
from . import math as math
from . import movement as movement
from . import normalize as normalize
from . import numpy as numpy
from . import pooling as pooling
from . import quantize as quantize
from . import reduce as reduce
from . import selection as selection
from . import slice_update as slice_update
from . import sorting as sorting
from . import sparse as sparse
from . import standard as standard
from . import statistics as statistics
from . import subscript as subscript
from . import window as window
