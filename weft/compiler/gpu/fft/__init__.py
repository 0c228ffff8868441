"""Convolutions by fast Fourier transforms on GPUs."""
