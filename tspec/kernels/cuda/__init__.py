"""Kernels of the cuda backend, in Triton: the fused ops of a verify pass over static buffers. Knows no graph."""
