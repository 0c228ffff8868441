"""Parts of `weft train` and `weft resume` that need arrays or the compiler, each imported when it is first used (see weft/lazy.py)."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
