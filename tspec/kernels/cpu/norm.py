"""RMSNorm of one row: the prologue of products, and of heads before their rotation.

    y = weight * (x * (1 / sqrt(mean(x**2) + eps)))

Rows      independent: 16 partial sums over cols in order, folded by halves, then the odd columns one by one
Oracle    tspec/kernels/reference/norm.py
Source    RMSNorm, arXiv:1910.07467, eq. 4; rounding order follows HF LlamaRMSNorm
"""

import math

import numpy as np

from tspec.kernels.cpu.simd import LANES, fma, load, load_f32, mul, splat, store, store_f32, total
from tspec.kernels.jit import native

ZERO = np.float32(0.0)


@native()
def normalise(y, x, weight, cols, eps):
    """One row: y = weight * (x * rsqrt(mean(x**2) + eps)); y may be x."""
    whole = cols - cols % LANES
    sums = splat(ZERO)
    for col in range(0, whole, LANES):
        part = load(x + col * 4)
        sums = fma(part, part, sums)
    squares = total(sums)
    for col in range(whole, cols):
        squares += load_f32(x + col * 4) * load_f32(x + col * 4)
    scale = np.float32(1.0 / math.sqrt(squares / np.float32(cols) + eps))
    for col in range(0, whole, LANES):
        store(y + col * 4, mul(load(weight + col * 4), mul(load(x + col * 4), splat(scale))))
    for col in range(whole, cols):
        store_f32(y + col * 4, load_f32(weight + col * 4) * (load_f32(x + col * 4) * scale))
