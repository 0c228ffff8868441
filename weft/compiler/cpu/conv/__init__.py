"""Convolutions and their gradients on CPUs."""

from ....lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
