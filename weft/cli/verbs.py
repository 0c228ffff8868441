"""The verbs of the command line, each imported when it is first used (see weft/lazy.py)."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
