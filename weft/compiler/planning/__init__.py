"""From a graph to a program: fusion, schedule, memory, cost model."""

from ...lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
