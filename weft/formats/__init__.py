"""Number formats: their properties, rounding to them, and what they do to the tensors and the accuracy of a network."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
