"""The cross entropy of logits that are split along the classes, without gathering them."""

from __future__ import annotations

from ...errors import UserError
from ...ops.collective import all_reduce, axis_index
from ...ops.elementwise import exp, log, stop_gradient, where
from ...ops.indexing import take_along_axis
from ...ops.movement import expand_dims
from ...ops.reduce import max as reduce_max
from ...ops.reduce import sum as reduce_sum
from ...ops.statistics import mean
from ...tensor import ArrayLike, Tensor, as_tensor


def split_cross_entropy(logits: ArrayLike, target: ArrayLike, *, axis: str = "model") -> Tensor:
    """The mean cross entropy of softmax(logits) and class indices, given this process's part of the logits (the last dimension).

    Three numbers per example are sent: the largest logit, the sum of exponentials, and the logit of the target.

    >>> import math
    >>> from weft import parallel
    >>> parallel.Mesh(model=1).axes
    (('model', 1),)
    >>> split_cross_entropy([[0.0, 0.0]], [1]).item() / math.log(2.0) > 0.999
    True
    """
    logits, target = as_tensor(logits), as_tensor(target)
    if target.shape != logits.shape[:-1] or not target.dtype.is_integer:
        raise UserError(
            "split_cross_entropy",
            f"class indices of shape {logits.shape[:-1]} are required, got {target.dtype.name} {target.shape}.",
        )
    classes = logits.shape[-1]
    largest = all_reduce(reduce_max(stop_gradient(logits), axis=-1), axis, "max", loss="shared")
    total = all_reduce(reduce_sum(exp(logits - expand_dims(largest, -1)), axis=-1), axis, loss="shared")
    place = target - axis_index(axis).astype(target.dtype) * classes
    mine = (place >= 0) & (place < classes)
    found = take_along_axis(logits, expand_dims(where(mine, place, 0), -1), axis=-1)
    wanted = all_reduce(where(mine, reduce_sum(found, axis=-1), 0.0), axis, loss="shared")
    return mean(log(total) + largest - wanted)
