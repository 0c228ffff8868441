"""Collectives on CPUs: the native functions by which the processes of a mesh exchange data."""
