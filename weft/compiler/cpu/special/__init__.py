"""Sorting, scattering and cumulative sums on CPUs."""
