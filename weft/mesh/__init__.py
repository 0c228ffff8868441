"""Processes that work together: the world, the meshes that they form, and collectives on arrays."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
