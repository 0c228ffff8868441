"""What a trained network does: activations, statistics, Grad-CAM, occlusion, embeddings, and maps of them."""

from ..lazy import lazy_attributes as _lazy_attributes

_lazy_attributes(__name__)
