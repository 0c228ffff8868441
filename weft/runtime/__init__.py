"""Devices, buffers, and the evaluation of nodes on them."""

from ..knobs import knobs
from . import cpu as cpu
from . import cuda as cuda
from . import dlpack as dlpack
from . import null as null
from . import reference as reference
from .device import STATE_LOCK as STATE_LOCK
from .device import Buffer as Buffer
from .device import Device as Device
from .device import NodeProgram as NodeProgram
from .device import accelerator_of as accelerator_of
from .device import device as device
from .device import devices as devices
from .device import offer_modules
from .execute import evaluate as evaluate
from .execute import fetch as fetch
from .execute import transfer as transfer

offer_modules()
knobs.device = knobs.device  # what WEFT_DEVICE says can be checked only now that the devices are known
