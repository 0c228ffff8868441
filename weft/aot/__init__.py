"""Ahead-of-time compilation: a saved program as a C library that needs no Python, for this CPU or another."""
