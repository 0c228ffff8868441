"""Sorting, scattering and cumulative sums on GPUs."""
