"""What a training run leaves behind to be looked at: charts as SVG, and one page that shows the run."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
