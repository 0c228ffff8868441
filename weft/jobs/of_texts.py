"""What is needed of the modules that generate text, to predict with a network for text; imported when it is first used (see weft/lazy.py)."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
