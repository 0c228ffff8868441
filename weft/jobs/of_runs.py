"""The parts of training that using a run needs; imported when they are first used (see weft/lazy.py)."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
