"""The public names of weft.jobs (see weft/lazy.py)."""

from .cross_validation import cross_validate as cross_validate
from .datasets import submit_dataset as submit_dataset
from .energy_job import submit_energy as submit_energy
from .ensemble_job import submit_ensemble as submit_ensemble
from .ensembles import ensemble as ensemble
from .events import Event as Event
from .events import replay as replay
from .fold_jobs import submit_folds as submit_folds
from .profile_job import named_subject as named_subject
from .profile_job import submit_profile as submit_profile
from .queue import JobQueue as JobQueue
from .record import JobRecord as JobRecord
from .runner import Runner as Runner
from .submission import retry as retry
from .submission import submit as submit
from .submission import submit_compression as submit_compression
from .sweep import submit_sweep as submit_sweep
from .sweep import sweep as sweep
from .training import resume as resume
from .training import train as train
