"""Trainings on a Ray cluster: `runner` runs the jobs of a queue there, `remote_training` is one on its node, `file_copies` its files."""
