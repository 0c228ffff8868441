"""The names of run_parts.py."""

from .checkpoints import branch as branch
from .checkpoints import checkpoints as checkpoints
from .compare import compare as compare
