"""The names of weft.jobs.of_runs (see weft/lazy.py)."""

from .run_predictor import predictor_of_run as predictor_of_run
