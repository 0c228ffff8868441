"""The public names of weft.compress (see weft/lazy.py)."""

from .channels import ChannelGroup as ChannelGroup
from .channels import channel_groups as channel_groups
from .channels import prune_channels as prune_channels
from .channels import shrink as shrink
from .codebooks import Codebook as Codebook
from .layers import weights_of as weights_of
from .masks import Mask as Mask
from .parametrize import Parametrization as Parametrization
from .parametrize import bake as bake
from .parametrize import is_parametrized as is_parametrized
from .parametrize import parametrization_of as parametrization_of
from .parametrize import parametrizations as parametrizations
from .parametrize import parametrize as parametrize
from .patterns import prune_blocks as prune_blocks
from .patterns import prune_n_of_m as prune_n_of_m
from .prune import densities as densities
from .prune import gradual as gradual
from .prune import prune as prune
from .share import kmeans as kmeans
from .share import share as share
from .snip import snip as snip
