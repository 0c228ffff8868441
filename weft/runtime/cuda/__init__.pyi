"""What is imported when it is first used (see lazy.py)."""

from .device import find as find
from .device import synchronize as synchronize
