"""Matrix products with packed weights, with a norm before and an epilogue behind.

    linear           out[row, n] = sum over k of x[row, k] * weight[n, k]  (+ bias[n]) (+ residual[row, n])
    linear_silu_mul  out[row, n] = silu(gate[row, n]) * up[row, n], gate and up as above
    head_logits      linear, into rows of logits
    head_sample      out[row] = lowest n with the largest logit / temperature + noise, of logits at temperature 0;
                     NaN counts as -inf; logits are not written

In each, x may be normalised first (RMSNorm): every thread does it for itself, which costs less than to wait for one.

Shapes    x float32 [rows, K], K even; norm float32 [K]; weight packed by pack.py; out and residual float32
          [rows, N], or out int32 [place]
Rows      independent: one accumulator an output, k in order (register_block.py)
Cost      streams the weights once for each TALLEST rows of a panel; the repeats come from L1 or L2
Threads   panels are claimed a few at a time; a panel is computed by one thread
Tuned     `Limits`, of which no bit depends (tuned.py has their defaults and choices)
Oracle    tspec/kernels/reference/linear.py, head.py; noise.py and sampling.py, which gives the same tokens
"""

from typing import NamedTuple

import numpy as np

from tspec.core.noise import TARGET
from tspec.core.sampling import NO_TOKEN
from tspec.kernels.cpu import simd
from tspec.kernels.cpu.host import read_host
from tspec.kernels.cpu.noise import LARGEST_GUMBEL, fill_panel
from tspec.kernels.cpu.norm import normalise
from tspec.kernels.cpu.register_block import make_product
from tspec.kernels.cpu.requests import draw_of
from tspec.kernels.cpu.simd import (
    BF16,
    F16,
    LANES,
    load,
    load_f32,
    load_i32,
    load_i64,
    splat,
    store,
    store_f32,
    store_i32,
    store_i64,
)
from tspec.kernels.cpu.sync import atomic_add, barrier
from tspec.kernels.jit import native

ONE = np.float32(1.0)
ZERO = np.float32(0.0)
LOWEST = np.float32(-np.inf)
NO_CHANCE = np.float32(LARGEST_GUMBEL)

BEST_BYTES = 24
"""Of a thread's best of one row, see `head_sample`."""

_HOST = read_host()
TALLEST = _HOST.row_blocks[0]
PANEL = 3 * _HOST.lanes
"""Outputs of one panel: three registers of weights, so that the tallest block fills the register file."""


class Limits(NamedTuple):
    """How a launch is cut into pieces.

    claims    claims of panels a thread, about: many, so that a delayed thread costs little
    row_block rows that share a loop over k, at most TALLEST
    k_block   steps of k that a panel is worked through at a time where it is used for several row blocks, even: a
              short one stays in L1
    prefetch  bytes ahead of the stream at which weights are prefetched
    threads   threads that take part: the first ones
    """

    claims: int
    row_block: int
    k_block: int
    prefetch: int
    threads: int


_panel_product = make_product(
    _HOST.row_blocks, paired=True, vectors=3, lanes=_HOST.lanes, prefetches=True, accumulate=True
)


@native()
def whole_blocks(rows):
    """Rows that a scratch for `rows` has to hold: the last register block may be taller than what is left."""
    return -(-rows // TALLEST) * TALLEST


@native()
def panel_product(storage, x, k, rows, panel, out, limits):
    """out float32 [whole_blocks(rows), PANEL] = x float32 [rows, k] times one packed panel.

    The sums go on from block to block of k where there are several: cutting k changes no bit.
    """
    for at in range(0, rows * PANEL, LANES):
        store(out + at * 4, splat(ZERO))
    pair = 2 if storage == BF16 else 1
    step = PANEL * (4 if storage != F16 else 2)
    length = k if rows <= limits.row_block else limits.k_block
    for first in range(0, k, length):
        steps = min(length, k - first) // pair
        place = panel + first // pair * step
        _panel_product(
            storage,
            x + first * 4,
            k * 4,
            rows,
            place,
            step,
            steps,
            out,
            PANEL * 4,
            limits.row_block,
            limits.prefetch,
        )


@native()
def panel_bytes(storage, k):
    """Bytes of one packed panel."""
    return k * PANEL * (4 if storage == simd.F32 else 2)


def scratch_bytes(rows: int, k: int, has_norm: bool) -> int:
    """Bytes of scratch that one thread needs for a product of `rows` rows."""
    tall = -(-rows // TALLEST) * TALLEST
    return ((rows * k if has_norm else 0) + 2 * tall * PANEL + LANES) * 4


@native()
def panels_a_claim(num_panels, limits):
    """Panels that a thread takes at once."""
    return max(1, num_panels // (limits.claims * limits.threads))


@native()
def normed_rows(norm, eps, x, k, rows, scratch):
    """Normalise all rows into `scratch` and return its address; `x` itself where `norm` is 0."""
    if norm == 0:
        return x
    for row in range(rows):
        normalise(scratch + row * k * 4, x + row * k * 4, norm, k, eps)
    return scratch


@native()
def linear(counter, storage, rows, x, k, norm, eps, weight, bias, residual, out, n, scratch, limits):
    """See the module. `norm`, `bias`, `residual` are 0 for none.

    scratch  of this thread, float32: with a norm [rows, K] for normalised rows; then [2, whole_blocks(rows), PANEL]
    """
    num_panels = (n + PANEL - 1) // PANEL
    claim = panels_a_claim(num_panels, limits)
    stride = panel_bytes(storage, k)
    sums = scratch if norm == 0 else scratch + rows * k * 4
    first = atomic_add(counter, claim)
    if first < num_panels:
        x = normed_rows(norm, eps, x, k, rows, scratch)
    while first < num_panels:
        for panel in range(first, min(first + claim, num_panels)):
            panel_product(storage, x, k, rows, weight + panel * stride, sums, limits)
            start = panel * PANEL
            if bias != 0:
                _add_bias(sums, rows, bias + start * 4, min(PANEL, n - start))
            _write_panel(sums, rows, residual, start, out, n)
        first = atomic_add(counter, claim)


@native()
def _write_panel(sums, rows, residual, start, out, n):
    count = min(PANEL, n - start)
    for row in range(rows):
        source = sums + row * PANEL * 4
        place = (row * n + start) * 4
        if residual != 0:
            for at in range(count):
                store_f32(
                    out + place + at * 4, load_f32(source + at * 4) + load_f32(residual + place + at * 4)
                )
        else:
            for at in range(count):
                store_f32(out + place + at * 4, load_f32(source + at * 4))


@native()
def linear_silu_mul(counter, storage, rows, x, k, norm, eps, weight, bias, out, n, scratch, limits):
    """See the module. `n` outputs; weight holds panel pairs gate, up. `scratch` as for `linear`."""
    num_panels = (n + PANEL - 1) // PANEL
    claim = panels_a_claim(num_panels, limits)
    stride = panel_bytes(storage, k)
    gate = scratch if norm == 0 else scratch + rows * k * 4
    up = gate + whole_blocks(rows) * PANEL * 4
    first = atomic_add(counter, claim)
    if first < num_panels:
        x = normed_rows(norm, eps, x, k, rows, scratch)
    while first < num_panels:
        for panel in range(first, min(first + claim, num_panels)):
            panel_product(storage, x, k, rows, weight + 2 * panel * stride, gate, limits)
            panel_product(storage, x, k, rows, weight + (2 * panel + 1) * stride, up, limits)
            start = panel * PANEL
            if bias != 0:
                _add_bias(gate, rows, bias + start * 4, min(PANEL, n - start))
                _add_bias(up, rows, bias + (n + start) * 4, min(PANEL, n - start))
            _silu_mul(gate, up, rows)
            _write_panel(gate, rows, 0, start, out, n)
        first = atomic_add(counter, claim)


@native()
def _add_bias(sums, rows, bias, count):
    for row in range(rows):
        for at in range(count):
            place = sums + (row * PANEL + at) * 4
            store_f32(place, load_f32(place) + load_f32(bias + at * 4))


@native()
def _silu_mul(gate, up, rows):
    """gate = gate / (1 + exp(-gate)) * up, over [rows, PANEL]; PANEL rows are padded to whole vectors."""
    for at in range(0, rows * PANEL, LANES):
        g = simd.load(gate + at * 4)
        silu = simd.div(g, simd.add(simd.splat(ONE), simd.exp(simd.mul(g, simd.splat(-ONE)))))
        simd.store(gate + at * 4, simd.mul(silu, simd.load(up + at * 4)))


@native()
def head_sample(
    control, counter, thread, num_threads, storage, rows, x, k, norm, eps, weight, bias, out, place, n, scratch, best,
    requests, limits,
):  # fmt: skip
    """See the module. Row `row` of x goes to out[place[row]]. `scratch` as for `linear`.

    `best` is scratch of [num_threads, rows, BEST_BYTES]: of each thread and row the largest value (float32) and its
    token (int32), then what the row is drawn with: temperature (float32), position (int32), seed (int64).
    """
    num_panels = (n + PANEL - 1) // PANEL
    claim = panels_a_claim(num_panels, limits)
    stride = panel_bytes(storage, k)
    sums = scratch if norm == 0 else scratch + rows * k * 4
    noise = sums + whole_blocks(rows) * PANEL * 4
    mine = best + thread * rows * BEST_BYTES
    for row in range(rows):
        _start_best(mine + row * BEST_BYTES, requests, row)
    first = atomic_add(counter, claim) if thread < limits.threads else num_panels
    if first < num_panels:
        x = normed_rows(norm, eps, x, k, rows, scratch)
    while first < num_panels:
        for panel in range(first, min(first + claim, num_panels)):
            panel_product(storage, x, k, rows, weight + panel * stride, sums, limits)
            start = panel * PANEL
            if bias != 0:
                _add_bias(sums, rows, bias + start * 4, min(PANEL, n - start))
            for row in range(rows):
                _keep_best_draw(sums + row * PANEL * 4, noise, mine + row * BEST_BYTES, start, n)
        first = atomic_add(counter, claim)
    barrier(control, num_threads)
    if thread == 0:
        for row in range(rows):
            store_i32(out + load_i32(place + row * 4) * 4, _best_of_threads(best, num_threads, rows, row))
    barrier(control, num_threads)


@native()
def _start_best(entry, requests, row):
    """Nothing was seen of the row yet."""
    temperature, seed, position = draw_of(requests, row)
    store_f32(entry, LOWEST)
    store_i32(entry + 4, np.int32(NO_TOKEN))
    store_f32(entry + 8, temperature)
    store_i32(entry + 12, np.int32(position))
    store_i64(entry + 16, seed)


@native()
def _keep_best_draw(logits, noise, entry, start, n):
    """Update a row's best value and token with one panel. Draws nothing where the largest noise would not win."""
    top, temperature = _panel_top(logits), load_f32(entry + 8)
    if temperature > ZERO:
        if top / temperature + NO_CHANCE < load_f32(entry):
            return
        fill_panel(noise, load_i64(entry + 16), load_i32(entry + 12), TARGET, start)
        for at in range(0, PANEL * 4, LANES * 4):
            score = simd.div(load(logits + at), splat(temperature))
            store(noise + at, simd.add(score, load(noise + at)))
        logits, top = noise, _panel_top(noise)
    if top > load_f32(entry):
        _keep_best(logits, entry, start, n)


@native()
def _panel_top(values):
    """At least the largest value of a panel: whole lanes may reach into the next row. NaN counts as -inf."""
    top = splat(LOWEST)
    for at in range(0, PANEL * 4, LANES * 4):
        top = simd.maximum(load(values + at), top)
    return simd.largest(top)


@native()
def _keep_best(values, entry, start, n):
    """Update a row's best value and token, number by number."""
    value, token = load_f32(entry), load_i32(entry + 4)
    for at in range(min(PANEL, n - start)):
        found = load_f32(values + at * 4)
        # A thread's claims ascend, so that the first of equal values stays: the lowest token.
        if found > value:
            value, token = found, np.int32(start + at)
    store_f32(entry, value)
    store_i32(entry + 4, token)


@native()
def _best_of_threads(best, num_threads, rows, row):
    """The token of the largest value of all threads, the lowest among equals; NO_TOKEN if all are NaN or -inf."""
    value, token = LOWEST, np.int32(NO_TOKEN)
    for thread in range(num_threads):
        entry = best + (thread * rows + row) * BEST_BYTES
        found, candidate = load_f32(entry), load_i32(entry + 4)
        if found > value or (found == value and candidate < token):
            value, token = found, candidate
    return token
