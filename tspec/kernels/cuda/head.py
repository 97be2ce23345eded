"""The head: logits in memory, or a token from each row with no logits in memory.

    head_logits       out = x @ weight.T (+ bias), in fp32 whatever the rows are in
    norm_head_logits  out = (x * rsqrt(mean(x**2) + eps) * norm) @ weight.T (+ bias), likewise
    head_sample, norm_head_sample
                      out = `sample` of those logits: divided by the temperature, noise added, the best one's token

The lowest token wins a tie; NaN counts as -inf; rows of nothing else and padding give NO_TOKEN; none is ever >= V.
A launch whose rows are all greedy makes no noise.

Shapes    x: [B, R, K]; norm: [K]; weight: [V, K]; bias: [V] or None; temperature, seed, prefix_len, num_nodes: [B];
          depth: [B, T]; out: [B, R, V] fp32, [B, R] int32. R is T, or 1: then the row is the last node's
Dtypes    x and weight share one of fp16, bf16, fp32; norm, bias and temperature fp32; seed int64; others int32.
          Logits are fp32 and never rounded
Layout    all contiguous
Grid      the linear kernel's, whose programs write logits, or the best of their block of V; then one program a row
Cost      the weights once for each 64 rows, and 4 V bytes a row; or two launches and 8 bytes for each row and block
          of V, and in tiles with a sampled row one random counter for four logits
Rows      independent: linear.py, noise.py; a maximum has no order. One configuration of tiles serves all kernels, so
          that a row has the same logits whether written or sampled from, and gets the token that `sample` chooses
          from them in memory
Errors    ContractError from the launchers for any line above
Oracle    tspec/kernels/reference/head.py, norm.py
"""

import torch

from tspec.kernels.cuda.choose import bests, choose
from tspec.kernels.cuda.launch import NO_SCRATCH, check_scratch, check_tensors, plan_linear
from tspec.kernels.cuda.linear import Epilogue, launch_linear
from tspec.kernels.cuda.scores import Request


def head_logits(out, x, weight, bias=None, *, tuned, scratch=NO_SCRATCH, launch_pdl=False) -> None:
    """out = x @ weight.T + bias in float32. See the module."""
    _write_logits("head_logits", out, x, None, weight, bias, 0.0, tuned, scratch, launch_pdl)


def norm_head_logits(
    out, x, norm, weight, bias=None, *, eps, tuned, scratch=NO_SCRATCH, launch_pdl=False
) -> None:  # fmt: skip
    """out = rms_norm(x) @ weight.T + bias in float32. See the module."""
    _write_logits("norm_head_logits", out, x, norm, weight, bias, eps, tuned, scratch, launch_pdl)


def head_sample(
    out, x, weight, bias, temperature, seed, prefix_len, depth, num_nodes,
    *, tuned, scratch, launch_pdl=False,
) -> None:  # fmt: skip
    """out = the token of each row of x @ weight.T + bias. See the module."""
    request = Request(temperature, seed, prefix_len, depth, num_nodes, x.shape[1], depth.shape[-1])
    _sample("head_sample", out, x, None, weight, bias, request, 0.0, tuned, scratch, launch_pdl)


def norm_head_sample(
    out, x, norm, weight, bias, temperature, seed, prefix_len, depth, num_nodes,
    *, eps, tuned, scratch, launch_pdl=False,
) -> None:  # fmt: skip
    """out = the token of each row of rms_norm(x) @ weight.T + bias. See the module."""
    request = Request(temperature, seed, prefix_len, depth, num_nodes, x.shape[1], depth.shape[-1])
    _sample("norm_head_sample", out, x, norm, weight, bias, request, eps, tuned, scratch, launch_pdl)


def _write_logits(kind: str, out, x, norm, weight, bias, eps, tuned, scratch, launch_pdl) -> None:
    rows, k, vocab = x.numel() // x.shape[-1], x.shape[-1], weight.shape[0]
    shapes = {"out": (out, (*x.shape[:-1], vocab), torch.float32)}
    check_tensors(kind, shapes | _product_shapes(x, norm, weight, bias))
    if rows == 0:
        return
    launch = plan_linear(kind, Epilogue.STORE, rows, vocab, k, x.dtype, tuned, launch_pdl)
    check_scratch(kind, scratch, rows, vocab, x.dtype, tuned)
    launch_linear(launch, out, None, x, norm, weight, bias, None, eps, scratch)


def _sample(
    kind: str, out, x, norm, weight, bias, request: Request, eps, tuned, scratch, launch_pdl
) -> None:  # fmt: skip
    (batch, rows_each, k), vocab = x.shape, weight.shape[0]
    rows = batch * rows_each
    shapes = {"out": (out, (batch, rows_each), torch.int32)} | request.shapes(batch)
    check_tensors(kind, shapes | _product_shapes(x, norm, weight, bias))
    if rows == 0:
        return
    launch = plan_linear(kind, Epilogue.SAMPLE, rows, vocab, k, x.dtype, tuned, launch_pdl)
    need, blocks = check_scratch(kind, scratch, rows, vocab, x.dtype, tuned), launch.grid[1]
    best, token = bests(scratch, need.partials, rows, blocks)
    launch_linear(launch, best, token, x, norm, weight, bias, None, eps, scratch, request)
    choose(out, best, token, rows, blocks, launch_pdl)


def _product_shapes(x, norm, weight, bias) -> dict[str, tuple]:
    k, vocab = x.shape[-1], weight.shape[0]
    return {
        "x": (x, tuple(x.shape), x.dtype),
        "norm": (norm, (k,), torch.float32),
        "weight": (weight, (vocab, k), x.dtype),
        "bias": (bias, (vocab,), torch.float32),
    }
