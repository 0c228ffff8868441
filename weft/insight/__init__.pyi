"""The names of `weft.insight`, each imported when it is first used (see weft/lazy.py)."""

from .energy_model import Counts as Counts
from .energy_model import EnergyEstimate as EnergyEstimate
from .energy_model import EnergyTable as EnergyTable
from .energy_model import energy as energy
from .energy_model import energy_table as energy_table
from .layer_profile import KernelProfile as KernelProfile
from .layer_profile import LayerProfile as LayerProfile
from .machines import DescribedMachine as DescribedMachine
from .machines import PublishedResult as PublishedResult
from .machines import machine as machine
from .machines import machines as machines
from .machines import published as published
from .memory_measure import MeasuredMemory as MeasuredMemory
from .memory_measure import measured_memory as measured_memory
from .memory_options import BatchMemory as BatchMemory
from .memory_options import CheckpointSaving as CheckpointSaving
from .memory_options import batch_memory as batch_memory
from .memory_options import checkpoint_savings as checkpoint_savings
from .memory_timeline import MemoryTimeline as MemoryTimeline
from .memory_timeline import memory_timeline as memory_timeline
from .memory_values import LiveValue as LiveValue
from .memory_values import StepKernel as StepKernel
from .profile import ProgramProfile as ProgramProfile
from .profile import profile as profile
from .table_reader import Figure as Figure
