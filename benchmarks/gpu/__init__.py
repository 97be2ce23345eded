"""Parts of the check of a CUDA machine; `benchmarks/gpu_check.py` runs them."""
