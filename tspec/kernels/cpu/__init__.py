"""CPU kernels: native functions on addresses, and the program that runs them, one call a pass."""
