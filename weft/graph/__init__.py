"""The graph: nodes, closed graphs, their text form and drawing, and pattern rewriting."""

from ..lazy import lazy_attributes as _lazy_attributes
from ..lazy import registered_by as _registered_by
from . import text as text  # registers itself: the text of a graph is the key of its compiled code

_lazy_attributes(__name__)
_registered_by("weft.graph.picture")
