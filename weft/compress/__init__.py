"""Smaller networks. Methods replace parameters of layers by others (`parametrize`), so they compose and are trained in the compiled step.

parametrize   a parameter of a layer as a function of other tensors
layers        the weights of a network that compression works on
masks         pruned weights: a mask that stays in force through every optimizer
prune         masks by magnitude, in each layer or in all, at once or gradually
codebooks     shared weights: centroids that are trained, and the index of each weight
share         k-means: which weights share a value
pack          saved programs with packed weights (weft/packing)
layer_sizes   the report: bits and bytes of each layer after each step

The names of `__init__.pyi` are imported when they are first used.
"""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
