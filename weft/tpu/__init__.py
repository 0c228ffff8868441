"""A simulated Tensor Processing Unit of 2015 (Jouppi et al. 2017), as the device `tpu` and as a model to explore.

machine       sizes and rates, all of them settings
products      products of int8 in a graph, and their exact sums
partition     which nodes run on the array, on the activation unit, on the host
compile       from a graph to stages; `stages` are the operations of a program before tiling
lowering      from stages to `instructions`; `buffer` plans the unified buffer
timing        cycles by cause; `report` prints them, `simulate` runs functions and varies the machine
executable    programs of the device: exact values by `interpreter`, modelled times by `stage_times`; `device` registers it
systolic      the array cell by cell and cycle by cycle; `animation` draws it
published     the six networks of the paper

The names in `__init__.pyi` are imported on first use.
"""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
