"""NVIDIA GPUs as devices. NVIDIA's packages, and weft's compiler for GPUs, are imported when a GPU is first used."""

from __future__ import annotations

import sys

from ...lazy import lazy_attributes as _lazy_attributes
from ..device import Device
from ..device import offer as _offer


def _find() -> list[Device]:
    found: list[Device] = sys.modules[__name__].find()
    return found


_offer("cuda", _find)
_lazy_attributes(__name__)
