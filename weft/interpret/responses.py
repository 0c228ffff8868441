"""How strongly the channels of a layer respond to examples: which images excite a channel most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dtypes import float32
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.elementwise import astype
from ..ops.statistics import mean
from ..tensor import Tensor
from ..tracing.jit import jit
from .explainer import Explainer
from .recording import find_call
from .statistics import BATCH, EXAMPLES, batches, channel_axis, spread


@dataclass(frozen=True)
class ChannelResponses:
    """The mean of each channel for each example, (examples, channels), and the places of the examples in their dataset."""

    values: np.ndarray
    indices: np.ndarray

    def strongest(self, channel: int, count: int = 8) -> list[tuple[int, float]]:
        """The examples for which a channel is largest, and its mean there, the largest first."""
        order = np.argsort(-self.values[:, channel], kind="stable")[:count]
        return [(int(self.indices[i]), float(self.values[i, channel])) for i in order]


def channel_responses(
    model: Module | Explainer, data: Any, layer: str, examples: int = EXAMPLES, batch: int = BATCH
) -> ChannelResponses:
    """The responses of a layer's channels to examples spread evenly over a dataset or array."""
    explainer = model if isinstance(model, Explainer) else Explainer(model)
    means = _Means(explainer)
    found = [means(x, layer) for x in batches(data, examples, batch)]
    return ChannelResponses(np.concatenate(found), spread(len(data), examples, batch))


class _Means:
    """The mean of each channel over positions, compiled for each layer."""

    def __init__(self, explainer: Explainer) -> None:
        self.explainer = explainer

    def __call__(self, x: np.ndarray, layer: str) -> np.ndarray:
        with self.explainer.evaluating():
            return self._means(asarray(x), layer).numpy()

    @jit(static="layer")
    def _means(self, x: Tensor, layer: str) -> Tensor:
        found = find_call("channel_responses", self.explainer.recorded(x)[1], layer).tensor
        assert found is not None
        others = tuple(axis for axis in range(1, found.ndim) if axis != channel_axis(found.ndim))
        values = astype(found, float32)
        return mean(values, axis=others) if others else values
