"""Attention on GPUs: kernels in Triton, and cuDNN's."""
