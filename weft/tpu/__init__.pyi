"""The names of `weft.tpu`, each imported when it is first used (see lazy.py)."""

from .animation import animate_systolic as animate_systolic
from .device import TpuDevice as TpuDevice
from .device import register_machine as register_machine
from .device import to_tpu as to_tpu
from .instructions import TpuProgram as TpuProgram
from .machine import TpuMachine as TpuMachine
from .published import PUBLISHED as PUBLISHED
from .published import PublishedNetwork as PublishedNetwork
from .report import TpuReport as TpuReport
from .roof import TpuRoof as TpuRoof
from .simulate import changes_table as changes_table
from .simulate import simulate as simulate
from .simulate import simulate_program as simulate_program
from .simulate import what_changes as what_changes
from .systolic import SystolicRun as SystolicRun
from .systolic import systolic_product as systolic_product
