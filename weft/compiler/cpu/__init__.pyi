"""The modules of the CPU backend that others use, each imported when it is first used (see lazy.py)."""

from . import backend as backend
from . import engine as engine
from . import library as library
from . import module as module
from . import planner as planner
from . import roofline as roofline
from . import target as target
from . import team_code as team_code
from .conv import choice as choice

conv_choice = choice
