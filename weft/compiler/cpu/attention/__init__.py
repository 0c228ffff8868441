"""Attention on CPUs, tiled over queries and keys: the scores of a block of queries and a block of keys are all that exists of them."""
