"""Published weights for networks of the zoo, under the names that torchvision, timm, Hugging Face and Caffe give their layers.

from weft import io, zoo

model = zoo.mobilenet_v2()
zoo.load_published(model, "mobilenet_v2", io.load_weights("mobilenet_v2-b0353104.pth"))
"""

from .loading import LoadedWeights as LoadedWeights
from .loading import find_naming as find_naming
from .loading import has_all_names as has_all_names
from .loading import load_published as load_published
from .tables import NAMINGS as NAMINGS
