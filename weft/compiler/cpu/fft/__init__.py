"""Convolutions by fast Fourier transforms on CPUs."""
