"""RMSNorm, alone or after a residual add. Rows are claimed one by one; a row is one thread's.

    h = x + residual;  y = weight * (h * (1 / sqrt(mean(h**2) + eps)))

Shapes    x, residual, h, y: float32 [rows, cols]; weight: float32 [cols]; h may be x or residual
Rows      independent: 16 partial sums over cols in order, folded by halves, then the odd columns one by one
Oracle    tspec/kernels/reference/norm.py
Source    RMSNorm, arXiv:1910.07467, eq. 4; rounding order follows HF LlamaRMSNorm
"""

import math

import numpy as np

from tspec.kernels.cpu.simd import LANES, add, fma, load, load_f32, mul, splat, store, store_f32, total
from tspec.kernels.cpu.sync import atomic_add
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


@native()
def rms_norm(counter, rows, y, x, weight, cols, eps):
    """y = rms_norm(x) * weight, row by row."""
    row = atomic_add(counter, 1)
    while row < rows:
        normalise(y + row * cols * 4, x + row * cols * 4, weight, cols, eps)
        row = atomic_add(counter, 1)


@native()
def add_rms_norm(counter, rows, y, h, x, residual, weight, cols, eps):
    """h = x + residual; y = rms_norm(h) * weight, row by row."""
    row = atomic_add(counter, 1)
    while row < rows:
        at = row * cols * 4
        _add_row(h + at, x + at, residual + at, cols)
        normalise(y + at, h + at, weight, cols, eps)
        row = atomic_add(counter, 1)


@native()
def _add_row(out, left, right, cols):
    whole = cols - cols % LANES
    for col in range(0, whole, LANES):
        store(out + col * 4, add(load(left + col * 4), load(right + col * 4)))
    for col in range(whole, cols):
        store_f32(out + col * 4, load_f32(left + col * 4) + load_f32(right + col * 4))
