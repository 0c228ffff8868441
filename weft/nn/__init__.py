"""Modules, layers and losses.

Every layer and network is a `Module`:

    model = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))

The names are listed in the stub beside this file and are imported when they are first used.
"""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
