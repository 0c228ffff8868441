from .control import ControlPage as ControlPage
from .mesh import Axes as Axes
from .mesh import Mesh as Mesh
from .mesh import current as current
from .programs import CollectiveProgram as CollectiveProgram
from .world import World as World
from .world import world as world
