"""Scaling plans of training over many ranks: time, efficiency and memory of each split, on this machine and on described clusters."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
