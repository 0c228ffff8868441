"""Compressing a run: prune, share, quantize and pack, with a Pareto page."""
