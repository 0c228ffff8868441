"""What is needed of the modules that train, to use a run; imported when it is first used (see weft/lazy.py)."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
