"""What each request changes about its logits, before anything is chosen: bias, penalties, masks, in this order.

    out = logits, NaN as -inf
        + bias                                                      where edits has EDIT_BIAS
        / repetition (* below 0) of tokens seen before,
        - frequency * times - presence of tokens of the output      where edits has EDIT_PENALTIES
        -inf of tokens whose bit of the mask is 0                   where edits has EDIT_MASK

counts is twice the times a token is in the output, plus 1 if it is in the prompt. Candidates above a node and the node
itself count as output, the root is counted already; so does all where R is 1.

Shapes    logits, out: [B, R, V]; edits, num_nodes: [B]; penalties: [B, 3], repetition, presence, frequency;
          counts, bias: [B, V]; mask: [B, R, ceil(V / 32)]; tokens, ancestors: [B, T]. R is T, or 1: the last node's
Dtypes    logits, out, penalties, bias fp32; ancestors int64; others int32
Layout    all contiguous; offsets are int64
Grid      (rows, blocks of V). Padding is neither read nor written
Cost      reads and writes live rows once, and once the tables that `edits` names; one compare a token and candidate
          above the node
Rows      independent; elementwise. Divisions are rounded once, as the reference's
Errors    ContractError from the launcher for any line above
Oracle    tspec/kernels/reference/sampling.py::edit_logits
"""

import torch
import triton
import triton.language as tl

from tspec.core import sampling
from tspec.core.shapes import mask_words
from tspec.kernels.cuda.launch import check_tensors
from tspec.kernels.cuda.scores import clean, find_nodes

BLOCK = 1024
"""Tokens of one program."""

NUM_WARPS = 4

BIAS = tl.constexpr(sampling.EDIT_BIAS)
PENALTIES = tl.constexpr(sampling.EDIT_PENALTIES)
MASK = tl.constexpr(sampling.EDIT_MASK)


@triton.jit
def _penalised(line, seen, penalties_ptr):
    repetition, presence = tl.load(penalties_ptr), tl.load(penalties_ptr + 1)
    times = (seen >> 1).to(tl.float32)
    scaled = tl.where(line > 0, tl.div_rn(line, repetition), line * repetition)
    taken = tl.load(penalties_ptr + 2) * times + tl.where(times > 0, presence, 0.0)
    return tl.where(seen > 0, scaled, line) - taken


@triton.jit(do_not_specialize=["rows_each", "nodes", "words"])
def _edit_logits(
    out_ptr, logits_ptr, edits_ptr, penalties_ptr, counts_ptr, bias_ptr, mask_ptr,
    tokens_ptr, ancestors_ptr, num_nodes_ptr, rows_each, nodes, vocab, words,
    BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    sequence, node, live = find_nodes(num_nodes_ptr, row, row >= 0, rows_each)
    if live:
        token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = token < vocab
        line = clean(tl.load(logits_ptr + row * vocab + token, mask=inside, other=0.0))
        edits = tl.load(edits_ptr + sequence)
        if edits & BIAS:
            line += tl.load(bias_ptr + sequence * vocab + token, mask=inside, other=0.0)
        if edits & PENALTIES:
            seen = tl.load(counts_ptr + sequence * vocab + token, mask=inside, other=0)
            path = tl.load(ancestors_ptr + sequence * nodes + node)
            for above in range(1, tl.where(rows_each == 1, 0, node + 1)):
                if (path >> above) & 1:
                    seen += 2 * (token == tl.load(tokens_ptr + sequence * nodes + above)).to(tl.int32)
            line = _penalised(line, seen, penalties_ptr + 3 * sequence)
        if edits & MASK:
            word = tl.load(mask_ptr + row * words + token // 32, mask=inside, other=0)
            line = tl.where((word >> (token % 32)) & 1 != 0, line, float("-inf"))
        tl.store(out_ptr + row * vocab + token, line, mask=inside)


def edit_logits(
    out, logits, edits, penalties, counts, bias, mask, tokens, ancestors, num_nodes, *, launch_pdl=False
) -> None:
    """Launch; see the module."""
    (batch, rows_each, vocab), nodes = logits.shape, tokens.shape[-1]
    tree = (batch, nodes if rows_each == 1 else rows_each)
    shapes = {
        "out": (out, (batch, rows_each, vocab), torch.float32),
        "logits": (logits, (batch, rows_each, vocab), torch.float32),
        "edits": (edits, (batch,), torch.int32),
        "penalties": (penalties, (batch, 3), torch.float32),
        "counts": (counts, (batch, vocab), torch.int32),
        "bias": (bias, (batch, vocab), torch.float32),
        "mask": (mask, (batch, rows_each, mask_words(vocab)), torch.int32),
        "tokens": (tokens, tree, torch.int32),
        "ancestors": (ancestors, tree, torch.int64),
        "num_nodes": (num_nodes, (batch,), torch.int32),
    }
    check_tensors("edit_logits", shapes)
    if logits.numel() == 0:
        return
    options = {"launch_pdl": True} if launch_pdl else {}
    _edit_logits[(batch * rows_each, triton.cdiv(vocab, BLOCK))](
        out, logits, edits, penalties, counts, bias, mask, tokens, ancestors, num_nodes,
        rows_each, nodes, vocab, mask_words(vocab),
        BLOCK=BLOCK, USE_PDL=launch_pdl, num_warps=NUM_WARPS, enable_fp_fusion=False, **options,
    )  # fmt: skip
