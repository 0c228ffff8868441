"""The names of `weft.train`, each imported when it is first used (see weft/lazy.py)."""

from ..runtime.free_memory import free_bytes as free_bytes
from ..signals import Terminated as Terminated
from .fit import Result as Result
from .fit import find_batch as find_batch
from .fit import find_rate as find_rate
from .fit import fit as fit
from .folder import RunFolder as RunFolder
from .rates import Rates as Rates
from .results import Evaluation as Evaluation
from .results import evaluated as evaluated
from .results import write_results as write_results
from .state import Training as Training
from .transfer import transfer as transfer
from .watch import Now as Now
