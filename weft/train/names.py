"""Types that several files of training share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..metrics import Metric
from ..tensor import Tensor

Row = dict[str, float]  # the numbers of an epoch
Loss = Callable[[Any, Any], Tensor]
Metrics = Sequence[str] | Mapping[str, Callable[[], Metric]]
