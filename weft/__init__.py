"""weft: from data to a trained, small, fast and measured network.

The top level follows the Python array API standard 2024.12 and adds what neural networks need. Its names are listed in the stub
beside this file and are imported when they are first used: `import weft` alone loads only the settings.
"""

from math import e as e
from math import inf as inf
from math import nan as nan
from math import pi as pi

from .knobs import knobs as knobs  # now, so that a wrong environment variable stops the program where it begins
from .lazy import DEVICE_MODULES as _DEVICE_MODULES
from .lazy import lazy_attributes as _lazy_attributes
from .lazy import registered_by as _registered_by
from .version import __version__ as __version__

__array_api_version__ = "2024.12"

newaxis = None

_registered_by("weft.ops", "weft.derivatives", "weft.random", "weft.control")
_DEVICE_MODULES["tpu"] = "weft.tpu.device"
_lazy_attributes(__name__)
