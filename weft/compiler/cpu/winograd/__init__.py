"""Winograd convolutions on CPUs."""
