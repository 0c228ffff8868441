"""From graphs to kernels to code."""
