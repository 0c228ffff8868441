"""Reports of training runs: SVG charts, an HTML page per run, and a page that compares runs."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
