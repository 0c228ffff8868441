"""Data: sources of every kind, datasets made from image files, and the handwritten digits that ship with weft."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
