from .config import StudioConfig as StudioConfig
from .serve import serve as serve
