"""Convolutions and their gradients on CPUs."""
