"""What a call of a compiled function costs when there is no work in it: one number plus one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from . import with_jax, with_torch, with_weft
from .measure import Case, Ready
from .peers import need

GROUP = "call"


def cases(quick: bool) -> Iterator[Case]:
    one = [np.ones(1, np.float32)]
    contestants = {
        "torch": lambda: with_torch.function(lambda x: [x + 1.0], one),
        "jax": lambda: with_jax.function(lambda x: [x + 1.0], one),
        "weft": lambda: with_weft.function(lambda x: [x + 1.0], one),
    }
    if not quick:
        contestants["torch compiled"] = lambda: _compiled(one)
    yield Case(GROUP, "x + 1 of one number (goal: 10 us)", contestants)


def _compiled(arrays: list[np.ndarray]) -> Ready:
    return with_torch.function(need("torch").compile(lambda x: [x + 1.0]), arrays)
