from .client import Client as Client
from .config import StudioConfig as StudioConfig
from .serve import serve as serve
