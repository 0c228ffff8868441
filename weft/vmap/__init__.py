"""Vectorization: `vmap`, and the Jacobians and Hessians built on it."""

from .functions import hessian as hessian
from .functions import jacobian as jacobian
from .functions import vmap as vmap
