"""The names of `weft.insight`, each imported when it is first used (see weft/lazy.py)."""

from .energy_counters import EnergyReading as EnergyReading
from .energy_counters import idle_power as idle_power
from .energy_counters import measured_energy as measured_energy
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
from .profile import ProgramProfile as ProgramProfile
from .profile import profile as profile
from .table_reader import Figure as Figure
from .throughput import throughput as throughput
from .throughput_plot import throughput_svg as throughput_svg
from .throughput_table import ThroughputRow as ThroughputRow
from .throughput_table import ThroughputTable as ThroughputTable
