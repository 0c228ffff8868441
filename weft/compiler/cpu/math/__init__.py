"""Elementary functions as vector polynomials."""
