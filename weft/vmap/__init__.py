"""A function of one example on many at once: `vmap`, and the matrices of derivatives that it makes easy."""

from .functions import hessian as hessian
from .functions import jacobian as jacobian
from .functions import vmap as vmap
