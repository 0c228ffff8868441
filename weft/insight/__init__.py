"""Time, bytes, joules and dollars of networks: described machines, and the energy of operations and of moving data."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
