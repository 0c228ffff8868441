"""The names of training_parts.py."""

from ..jobs.compression.compress import resume_compression as resume_compression
from ..jobs.compression.state import is_compression as is_compression
from ..jobs.folds.cross_validation import cross_validate as cross_validate
from ..jobs.folds.cross_validation import find_folds as find_folds
from ..jobs.folds.cross_validation import read_folds as read_folds
from ..jobs.folds.cross_validation import resume_folds as resume_folds
from ..jobs.parallel_training import check_launch as check_launch
from ..jobs.stored import run_of as run_of
from ..jobs.training import resume as resume
from ..jobs.training import resumed_settings as resumed_settings
from ..jobs.training import train as train
