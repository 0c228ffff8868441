"""The table of functions on tensors, in which operators and methods of `Tensor` look them up.

The functions are defined in weft/ops, a layer above tensors, and register themselves with `@function`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ..errors import UserError, WeftError
from ..lazy import Registry

FUNCTIONS: Registry[Callable[..., Any]] = Registry()
F = TypeVar("F", bound=Callable[..., Any])


def function(f: F) -> F:
    """Register a function in the table of all functions on tensors.

    Errors that Python or NumPy raises inside for invalid arguments (such as a string instead of a number) are converted to
    a UserError with the function's name and the caller's line.
    """

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except WeftError:
            raise
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
            raise UserError(f.__name__, f"these arguments cannot be used: {error}.") from error

    FUNCTIONS[f.__name__] = call
    return cast(F, call)
