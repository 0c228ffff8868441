"""Profiles of runs and networks: measured as jobs, stored, reported."""
