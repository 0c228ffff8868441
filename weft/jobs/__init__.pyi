"""The public names of weft.jobs (see weft/lazy.py)."""

from .datasets.create import submit_dataset as submit_dataset
from .ensembles.ensemble import ensemble as ensemble
from .ensembles.job import submit_ensemble as submit_ensemble
from .evaluations import evaluate_run as evaluate_run
from .evaluations import find_evaluation as find_evaluation
from .evaluations import submit_evaluation as submit_evaluation
from .events import Event as Event
from .events import replay as replay
from .folds.cross_validation import cross_validate as cross_validate
from .folds.jobs import submit_folds as submit_folds
from .profiles.energy_job import submit_energy as submit_energy
from .profiles.job import named_subject as named_subject
from .profiles.job import submit_profile as submit_profile
from .queue.job_queue import JobQueue as JobQueue
from .queue.record import JobRecord as JobRecord
from .queue.runner import Runner as Runner
from .queue.submission import retry as retry
from .queue.submission import submit as submit
from .queue.submission import submit_compression as submit_compression
from .sweeps.sweep import submit_sweep as submit_sweep
from .sweeps.sweep import sweep as sweep
from .training import resume as resume
from .training import train as train
