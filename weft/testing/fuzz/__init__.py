"""A fuzzer: random programs and networks, run in every way there is, against float64.

    python -m weft.testing.fuzz --seconds 60 --kind programs

`random_program` and `random_network` make a program from a seed, `check` runs it, `shrink` makes it small, `script` prints it. Rows of `UNARY`,
`BINARY` and `MAKERS` are the ops: a user's own are added there. See docs/testing.md.
"""

from .check import Finding as Finding
from .check import Unfit as Unfit
from .check import check as check
from .generate import random_program as random_program
from .makers import MAKERS as MAKERS
from .networks import random_network as random_network
from .program import FuzzProgram as FuzzProgram
from .program import script as script
from .session import KINDS as KINDS
from .session import Session as Session
from .shrink import shrink as shrink
from .table import BINARY as BINARY
from .table import UNARY as UNARY
