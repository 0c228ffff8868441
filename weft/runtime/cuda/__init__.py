"""NVIDIA GPUs as devices. Nothing of NVIDIA's is imported before somebody asks for one."""

from __future__ import annotations

from ..device import offer
from .device import find
from .device import synchronize as synchronize

offer("cuda", find)
