"""Training over many processes: meshes, collectives, and how a step is split between them."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
