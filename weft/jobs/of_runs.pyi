"""The names of weft.jobs.of_runs (see weft/lazy.py)."""

from .prediction.run_predictor import predictor_of_run as predictor_of_run
