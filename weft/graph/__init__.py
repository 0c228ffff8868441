"""What a computation is: nodes, graphs of them, their text, their picture, and how to rewrite them."""

from .check import check as check
from .check import problems as problems
from .graph import Graph as Graph
from .graph import close as close
from .graph import substitute as substitute
from .node import OPS as OPS
from .node import Cell as Cell
from .node import Node as Node
from .node import Op as Op
from .node import Tracker as Tracker
from .node import Type as Type
from .node import data as data
from .node import item as item
from .node import make as make
from .node import placeholder as placeholder
from .node import tag as tag
from .node import toposort as toposort
from .node import variable as variable
from .rewrite import Pattern as Pattern
from .rewrite import Rule as Rule
from .rewrite import Var as Var
from .rewrite import rewrite as rewrite
from .text import externs as externs
from .text import parse as parse
from .text import to_text as to_text
