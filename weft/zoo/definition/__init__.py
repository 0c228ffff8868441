"""Networks as text: a YAML list of layers, parsed and checked, never executed.

    layers:
      - conv_norm: {out: 32, stride: 2}
      - residual:
          - conv_norm: same
          - conv: same
      - global_avg_pool
      - linear: classes

problems     what is wrong, where, and a change that repairs it
yaml_tree    bounded YAML with positions
values       types of arguments; counts as formulas
schema       the layers and their arguments, from the classes of nn
parse        text to layers as written
plan         layers with all sizes, by tracing; modules
costs        multiply-adds, memory and weights by layer
convert      a network of nn modules as text
"""

from ...lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
