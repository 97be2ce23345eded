"""Linear kernels for few rows: one pass over the weights, with what surrounds a linear fused before and after it.

    linear                out = x @ weight.T (+ bias)
    linear_add            out = x @ weight.T (+ bias) + residual
    linear_silu_mul       out = silu(gate) * up; gate and up are linear with the halves of weight
    norm_linear           out = (x * rsqrt(mean(x**2) + eps) * norm) @ weight.T (+ bias)
    norm_linear_silu_mul  the same of norm_linear

The kernel is the head's, too: head.py.

Shapes    x: [B, R, K]; norm: [K]; weight: [N, K] ([2 N, K], gate over up); bias: [N] ([2 N]) or None;
          residual, out: [B, R, N]; rows = B * R
Dtypes    x, weight, residual, out share one of fp16, bf16, fp32; norm and bias are fp32; sums are fp32
Layout    all contiguous; out may alias residual. x * norm is rounded to the dtype before the product, and scaled by
          the row's rsqrt after it
Limits    fp16: |x * norm| < 65504. Offsets are int64
Grid      (row tiles of 16, 32 or 64 rows, blocks of N, splits of K)
Cost      reads the weights once for each 64 rows; with splits, writes and reads fp32 sums [split_k, rows, N]
Rows      independent: tiles and splits of K come from (kernel, N, K, dtype, architecture), never from the rows
Splits    each program of a block stores its sums; the last to arrive adds them in the order of the splits and sets
          the block's counter back to 0. `partials` and `counters` come from the caller (scratch_bytes); counters
          start at 0 and are 0 again after each launch, so a replay needs no reset
Errors    ContractError from the launchers for any line above; the kernel itself checks nothing
Oracle    tspec/kernels/reference/linear.py, norm.py
"""

from enum import IntEnum

import torch
import triton
import triton.language as tl

from tspec.kernels.cuda.choose import write_best
from tspec.kernels.cuda.launch import (
    NO_SCRATCH,
    LinearLaunch,
    Scratch,
    check_scratch,
    check_tensors,
    plan_linear,
)
from tspec.kernels.cuda.noise import TARGET
from tspec.kernels.cuda.product import is_last_to_arrive, multiply, start_early, store_partial, sum_partials
from tspec.kernels.cuda.scores import NO_REQUEST, Request, clean, find_nodes, next_position, noisy, scaled


class Epilogue(IntEnum):
    """What a program does with its sums."""

    STORE = 0
    ADD = 1
    SILU_MUL = 2
    SAMPLE = 3


ADD = tl.constexpr(int(Epilogue.ADD))
SILU_MUL = tl.constexpr(int(Epilogue.SILU_MUL))
SAMPLE = tl.constexpr(int(Epilogue.SAMPLE))


@triton.jit
def write_samples(
    best_ptr, token_ptr, logits, row, inside, n, N,
    temperature_ptr, seed_ptr, prefix_len_ptr, depth_ptr, num_nodes_ptr, rows_each, nodes,
):  # fmt: skip
    """Write the best noisy score of this block and each row, and its token. logits: float32 [BLOCK_N, M_TILE]."""
    sequence, node, live = find_nodes(num_nodes_ptr, row, inside, rows_each)
    temperature = tl.load(temperature_ptr + sequence, mask=live, other=0.0)
    scores = tl.where(live[None, :] & (n < N)[:, None], clean(logits), float("-inf"))
    if tl.max(temperature, axis=0) > 0:
        scores = scaled(scores, temperature)
        first_token = tl.program_id(1) * scores.shape[0]
        position = next_position(sequence, node, live, prefix_len_ptr, depth_ptr, nodes)
        scores = noisy(scores, temperature, sequence, live, position, TARGET, first_token, seed_ptr)
    write_best(best_ptr, token_ptr, scores, row, inside, n.to(tl.int32))


@triton.jit
def write_outputs(
    out_ptr, residual_ptr, acc, row, live, n, N,
    EPILOGUE: tl.constexpr, M_TILE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Epilogue and store of acc: float32 [BLOCK_N, M_TILE], or gate over up; row, n: int64; `live`: [M_TILE]."""
    if EPILOGUE == SILU_MUL:
        gate, up = tl.split(tl.permute(tl.reshape(acc, (2, BLOCK_N, M_TILE)), (1, 2, 0)))
        acc = gate / (1.0 + tl.exp(-gate)) * up
    place = row[None, :] * N + n[:, None]
    mask = live[None, :] & (n < N)[:, None]
    if EPILOGUE == ADD:
        acc += tl.load(residual_ptr + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "rows_each", "nodes"])
def _linear(
    out_ptr, token_ptr, x_ptr, norm_ptr, weight_ptr, bias_ptr, residual_ptr, partials_ptr, counters_ptr,
    temperature_ptr, seed_ptr, prefix_len_ptr, depth_ptr, num_nodes_ptr, rows_each, nodes,
    rows, N, K, eps,
    EPILOGUE: tl.constexpr, M_TILE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr, EVEN_K: tl.constexpr, POLICY: tl.constexpr,
    USE_PDL: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    HAS_NORM: tl.constexpr = norm_ptr is not None
    WIDTH: tl.constexpr = BLOCK_N * (
        2 if EPILOGUE == SILU_MUL else 1
    )  # gate rows, then the up rows of the same n
    row = tl.program_id(0).to(tl.int64) * M_TILE + tl.arange(0, M_TILE)
    live = row < rows
    n = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.arange(0, WIDTH)
    output = tl.program_id(1).to(tl.int64) * BLOCK_N + column % BLOCK_N
    # Outputs past the last repeat it: their sums are masked at the end.
    output = tl.minimum(output, N - 1) + (column // BLOCK_N) * N
    columns = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLIT_K) * BLOCK_K  # of one split
    start = tl.program_id(2) * columns
    if USE_PDL:
        start_early(weight_ptr, output, start, K, AHEAD)
    acc, squares = multiply(
        x_ptr, norm_ptr, weight_ptr, row, rows, output, start, tl.minimum(start + columns, K), K,
        M_TILE, WIDTH, BLOCK_K, EVEN_K, POLICY,
    )  # fmt: skip
    is_last = True
    if SPLIT_K > 1:
        SLOT: tl.constexpr = (WIDTH + (1 if HAS_NORM else 0)) * M_TILE
        tile = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
        first_ptr = partials_ptr + tile * SPLIT_K * SLOT
        store_partial(first_ptr + tl.program_id(2) * SLOT, acc, squares, live, HAS_NORM, M_TILE, WIDTH)
        is_last = is_last_to_arrive(counters_ptr + tile, SPLIT_K)
        if is_last:
            acc, squares = sum_partials(first_ptr, live, SPLIT_K, SLOT, HAS_NORM, M_TILE, WIDTH)
    if is_last:
        if HAS_NORM:
            acc *= tl.rsqrt(squares / K + eps)[None, :]
        if bias_ptr is not None:
            acc += tl.load(bias_ptr + output)[:, None]
        if EPILOGUE == SAMPLE:
            write_samples(
                out_ptr, token_ptr, acc, row, live, n, N,
                temperature_ptr, seed_ptr, prefix_len_ptr, depth_ptr, num_nodes_ptr, rows_each, nodes,
            )  # fmt: skip
        else:
            write_outputs(out_ptr, residual_ptr, acc, row, live, n, N, EPILOGUE, M_TILE, BLOCK_N)


def launch_linear(
    launch: LinearLaunch, out, token, x, norm, weight, bias, residual, eps: float, scratch: Scratch,
    request: Request = NO_REQUEST,
) -> None:  # fmt: skip
    """Launch one variant; `out` and `token` are the bests of each block where the epilogue is SAMPLE."""
    _linear[launch.grid](
        out, token, x, norm, weight, bias, residual, scratch.partials, scratch.counters, *request,
        launch.rows, launch.n, launch.k, eps, **launch.constexprs, **launch.options,
    )  # fmt: skip


def linear(out, x, weight, bias=None, *, tuned, scratch=NO_SCRATCH, launch_pdl=False) -> None:
    """out = x @ weight.T + bias. See the module."""
    _run("linear", Epilogue.STORE, out, x, None, weight, bias, None, 0.0, tuned, scratch, launch_pdl)


def linear_add(out, x, weight, bias, residual, *, tuned, scratch=NO_SCRATCH, launch_pdl=False) -> None:
    """out = x @ weight.T + bias + residual. See the module."""
    _run("linear_add", Epilogue.ADD, out, x, None, weight, bias, residual, 0.0, tuned, scratch, launch_pdl)


def linear_silu_mul(out, x, weight, bias=None, *, tuned, scratch=NO_SCRATCH, launch_pdl=False) -> None:
    """gate, up = halves of x @ weight.T + bias; out = silu(gate) * up. See the module."""
    kind = "linear_silu_mul"
    _run(kind, Epilogue.SILU_MUL, out, x, None, weight, bias, None, 0.0, tuned, scratch, launch_pdl)


def norm_linear(
    out, x, norm, weight, bias=None, *, eps, tuned, scratch=NO_SCRATCH, launch_pdl=False
) -> None:  # fmt: skip
    """out = rms_norm(x) @ weight.T + bias. See the module."""
    _run("norm_linear", Epilogue.STORE, out, x, norm, weight, bias, None, eps, tuned, scratch, launch_pdl)


def norm_linear_silu_mul(
    out, x, norm, weight, bias=None, *, eps, tuned, scratch=NO_SCRATCH, launch_pdl=False
) -> None:  # fmt: skip
    """gate, up = halves of rms_norm(x) @ weight.T + bias; out = silu(gate) * up. See the module."""
    kind = "norm_linear_silu_mul"
    _run(kind, Epilogue.SILU_MUL, out, x, norm, weight, bias, None, eps, tuned, scratch, launch_pdl)


def _run(
    kind: str, epilogue: Epilogue, out, x, norm, weight, bias, residual, eps, tuned, scratch, launch_pdl
) -> None:  # fmt: skip
    rows, n, k = x.numel() // x.shape[-1], out.shape[-1], x.shape[-1]
    lead, outputs = tuple(x.shape[:-1]), 2 * n if epilogue is Epilogue.SILU_MUL else n
    shapes = {
        "x": (x, (*lead, k), x.dtype),
        "out": (out, (*lead, n), x.dtype),
        "norm": (norm, (k,), torch.float32),
        "weight": (weight, (outputs, k), x.dtype),
        "bias": (bias, (outputs,), torch.float32),
        "residual": (residual, (*lead, n), x.dtype),
    }
    check_tensors(kind, shapes)
    if rows == 0:
        return
    launch = plan_linear(kind, epilogue, rows, n, k, x.dtype, tuned, launch_pdl)
    check_scratch(kind, scratch, rows, n, x.dtype, tuned)
    launch_linear(launch, out, None, x, norm, weight, bias, residual, eps, scratch)
