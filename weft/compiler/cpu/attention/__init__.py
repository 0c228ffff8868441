"""Attention on CPUs, tiled over queries and keys: only the scores of one block of queries and one block of keys are in memory at a time."""
