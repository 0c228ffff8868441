"""From a network and data to a trained network."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
