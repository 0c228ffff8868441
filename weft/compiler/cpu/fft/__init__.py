"""Convolutions by fast Fourier transforms on CPUs."""

LEAST_TAPS = 25  # of a filter: smaller ones have faster algorithms
SIZES = (8, 10, 12, 16, 20, 24, 32, 40, 48, 64)  # points of a transform; and 1, for an axis without taps
