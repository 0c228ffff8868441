"""From a network and data to a trained network."""

from .fit import Result as Result
from .fit import fit as fit
from .folder import RunFolder as RunFolder
from .results import write_results as write_results
from .state import Training as Training
