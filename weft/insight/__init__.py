"""Time, memory, energy and cost of networks: profiles, described machines, and models of the energy of operations and data movement."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
