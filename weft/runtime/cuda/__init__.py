"""NVIDIA GPUs as devices. NVIDIA's packages are imported when a GPU is first asked for."""

from __future__ import annotations

from ..device import offer
from .device import find
from .device import synchronize as synchronize

offer("cuda", find)
