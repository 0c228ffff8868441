"""Tensors: the class `Tensor` and the functions that make one of a node, a number or an operand."""

from .base import TensorBase as TensorBase
from .core import ArrayLike as ArrayLike
from .core import Tensor as Tensor
from .core import as_tensor as as_tensor
from .core import emit as emit
from .core import emit_all as emit_all
from .core import fresh_tensor as fresh_tensor
from .core import number as number
from .core import wrap as wrap
from .indexing import At as At
from .methods import Axis as Axis
from .numbers import LIMITS as LIMITS
from .numbers import checked_number as checked_number
from .operators import OPERANDS as OPERANDS
from .registry import FUNCTIONS as FUNCTIONS
from .registry import function as function
from .tracing_context import TRACING as TRACING
from .tracing_context import Changes as Changes
from .tracing_context import Holder as Holder
from .tracing_context import Tracer as Tracer
