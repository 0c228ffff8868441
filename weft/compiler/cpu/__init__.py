"""The CPU backend: LLVM IR and native functions."""
