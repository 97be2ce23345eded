"""Kernels: `reference` says what each computes, `cpu` computes it fast, `jit` compiles. Knows no graph."""
