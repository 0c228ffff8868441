"""The kit our tests and a user's own ops both use: `check_op` and `check_grads`, and a count of what was checked."""

from .checks import check_errors as check_errors
from .checks import check_grads as check_grads
from .checks import check_op as check_op
from .checks import close as close
from .counter import checks_run as checks_run
from .counter import counted as counted
from .counter import generator as generator
from .counter import seed as seed
from .layers import LayerCase as LayerCase
from .layers import check_layer as check_layer
