"""Devices, buffers, and the evaluation of nodes on them."""

from . import null as null
from . import reference as reference
from .device import Buffer as Buffer
from .device import Device as Device
from .device import Program as Program
from .device import device as device
from .device import devices as devices
from .execute import evaluate as evaluate
from .execute import fetch as fetch
from .execute import transfer as transfer
