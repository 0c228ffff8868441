"""Fused kernels as Triton source, for NVIDIA GPUs."""
