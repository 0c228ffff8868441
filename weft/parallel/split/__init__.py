"""Tensor parallelism: every process along an axis of a mesh computes a part of each layer."""
