"""The GPU backend: Triton kernels and NVIDIA's libraries."""
