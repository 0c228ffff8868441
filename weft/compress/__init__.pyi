"""The public names of weft.compress (see weft/lazy.py)."""

from .codebooks import Codebook as Codebook
from .equalize import ClippedReLU as ClippedReLU
from .equalize import equalize as equalize
from .fake_quantize import FakeQuantize as FakeQuantize
from .fake_quantize import QuantizedWeight as QuantizedWeight
from .folding import fold as fold
from .grids import Grid as Grid
from .int8 import LayerQuantization as LayerQuantization
from .int8 import int8 as int8
from .int8 import quantization as quantization
from .int8 import quantize as quantize
from .layers import weights_of as weights_of
from .masks import Mask as Mask
from .parametrize import Parametrization as Parametrization
from .parametrize import bake as bake
from .parametrize import is_parametrized as is_parametrized
from .parametrize import parametrization_of as parametrization_of
from .parametrize import parametrizations as parametrizations
from .parametrize import parametrize as parametrize
from .prune import densities as densities
from .prune import gradual as gradual
from .prune import prune as prune
from .share import kmeans as kmeans
from .share import share as share
