"""The public names of weft.compress (see weft/lazy.py)."""

from .codebooks import Codebook as Codebook
from .masks import Mask as Mask
from .parametrize import Parametrization as Parametrization
from .parametrize import bake as bake
from .parametrize import is_parametrized as is_parametrized
from .parametrize import parametrization_of as parametrization_of
from .parametrize import parametrizations as parametrizations
from .parametrize import parametrize as parametrize
