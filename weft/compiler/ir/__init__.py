"""The compiler's data structures: indices, loops, kernels and programs. Nothing here knows a backend."""
