"""The public names of weft.compress (see weft/lazy.py)."""

from ..packing.packed_tensors import load_packed as load_packed
from ..packing.packed_tensors import save_packed as save_packed
from .codebooks import Codebook as Codebook
from .layer_sizes import CompressionReport as CompressionReport
from .layer_sizes import LayerSize as LayerSize
from .layer_sizes import report as report
from .layers import weights_of as weights_of
from .masks import Mask as Mask
from .pack import pack as pack
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
from .size_search import density_for as density_for
from .size_search import packed_bytes as packed_bytes
from .size_search import scaled_densities as scaled_densities
