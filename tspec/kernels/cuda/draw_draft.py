"""One token drawn from each row of a draft's logits, and the law that it was drawn from.

    law       the log of the probabilities at the row's temperature: of softmax(logits / temperature); at temperature 1
              where it is 0
    tokens    the token with the largest score plus noise, of the greatest score where the temperature is 0; of equal
              ones the lowest. As token_ids[token], where a draft counts its tokens otherwise than the target
    logprobs  its law

The noise is that of `stream` at position prefix_len + offset, by the draft's own tokens. NaN counts as minus infinity;
padding, and rows of nothing else, have NO_TOKEN, and minus infinity everywhere.

Shapes    logits, law: [B, R, V]; temperature, seed, prefix_len, num_nodes: [B]; token_ids: [V] or None; tokens,
          logprobs: [B, R, 1]. R is T, W, or 1: the row is live where num_nodes is above 0
Dtypes    logits, law, temperature and logprobs fp32; seed int64; others int32
Layout    all contiguous; offsets of logits and law are int64
Grid      two launches of (rows, blocks of V). The first writes of each block the best token, the largest score and the
          weight to `partials`; each program of the second joins those of its row, and writes its block of the law
Cost      reads live rows twice and writes the law once; 32 bytes for each row and block of V
Rows      independent. Weights are added as whole numbers (of 2**-40 of the likeliest token), which has no order; and
          blocks follow V alone. Scores and noise come from the head's own functions: scores.py
Errors    ContractError from the launcher for any line above, and for `partials` smaller than scratch_bytes
Oracle    tspec/kernels/reference/draft.py::draw_draft
"""

from typing import Any

import torch
import triton
import triton.language as tl

from tspec.kernels.cuda.choose import AFTER_ALL, NO_TOKEN, bests, write_best
from tspec.kernels.cuda.launch import ScratchBytes, best_floats, check_tensors, hold_scratch
from tspec.kernels.cuda.scores import clean, find_nodes, log_weight, noisy, scaled, weigh

BLOCK = 1024
"""Tokens of one program."""

NUM_WARPS = 4


@triton.jit
def _load_scores(logits_ptr, row, temperature, token, inside, vocab):
    """[BLOCK, 1] of logits / temperature; -inf where not `inside`."""
    place = row[None, :] * vocab + token[:, None]
    scores = clean(tl.load(logits_ptr + place, mask=inside, other=float("-inf")))
    if tl.max(temperature, axis=0) > 0:
        scores = scaled(scores, temperature)
    return scores


@triton.jit(do_not_specialize=["rows_each", "stream", "offset"])
def _draw_blocks(
    best_ptr, token_ptr, top_ptr, weight_ptr, logits_ptr,
    temperature_ptr, seed_ptr, prefix_len_ptr, num_nodes_ptr, rows_each, stream, offset, vocab,
    BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    sequence, _, live = find_nodes(num_nodes_ptr, row, row >= 0, rows_each)
    temperature = tl.load(temperature_ptr + sequence, mask=live, other=0.0)
    first_token = tl.program_id(1) * BLOCK
    token = first_token + tl.arange(0, BLOCK)
    inside = live[None, :] & (token < vocab)[:, None]
    scores = _load_scores(logits_ptr, row, temperature, token, inside, vocab)
    top = tl.max(scores, axis=0)
    weight = tl.sum(weigh(scores, tl.where(top > float("-inf"), top, 0.0)[None, :]), axis=0)
    place = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(top_ptr + place, top)
    tl.store(weight_ptr + place, weight.to(tl.float32))
    if tl.max(temperature, axis=0) > 0:
        position = tl.load(prefix_len_ptr + sequence, mask=live, other=0) + offset
        scores = noisy(scores, temperature, sequence, live, position, stream, first_token, seed_ptr)
    write_best(best_ptr, token_ptr, scores, row, row >= 0, token)


@triton.jit(do_not_specialize=["rows_each"])
def _write_law(
    tokens_ptr, logprobs_ptr, law_ptr, best_ptr, token_ptr, top_ptr, weight_ptr, logits_ptr,
    temperature_ptr, num_nodes_ptr, token_ids_ptr, rows_each, vocab,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    sequence, _, live = find_nodes(num_nodes_ptr, row, row >= 0, rows_each)
    temperature = tl.load(temperature_ptr + sequence, mask=live, other=0.0)
    block = tl.arange(0, BLOCKS)
    place = (row * tl.num_programs(1))[None, :] + block[:, None]
    inside = (block < tl.num_programs(1))[:, None]
    tops = tl.load(top_ptr + place, mask=inside, other=float("-inf"))
    top = tl.max(tops, axis=0)
    has_token = live & (top > float("-inf"))
    top = tl.where(has_token, top, 0.0)
    weights = tl.load(weight_ptr + place, mask=inside, other=0.0) * tl.exp(tops - top[None, :])
    log_sum = log_weight(tl.sum(weights.to(tl.int64), axis=0))

    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_vocab = (token < vocab)[:, None]
    scores = _load_scores(logits_ptr, row, temperature, token, live[None, :] & in_vocab, vocab)
    law = tl.where(has_token[None, :], (scores - top[None, :]) - log_sum[None, :], float("-inf"))
    tl.store(law_ptr + row[None, :] * vocab + token[:, None], law, mask=in_vocab)
    if tl.program_id(1) == 0:
        values = tl.load(best_ptr + place, mask=inside, other=float("-inf"))
        found = tl.load(token_ptr + place, mask=inside, other=AFTER_ALL)
        best = tl.max(values, axis=0)
        drawn = tl.min(tl.where(values == best[None, :], found, AFTER_ALL), axis=0)
        drawn = tl.where(has_token, drawn, 0)
        score = _load_scores(logits_ptr, row, temperature, drawn, has_token[None, :], vocab)
        logprob = (tl.max(score, axis=0) - top) - log_sum
        if token_ids_ptr is not None:
            drawn = tl.load(token_ids_ptr + drawn.to(tl.int64))
        tl.store(tokens_ptr + row, tl.where(has_token, drawn, NO_TOKEN))
        tl.store(logprobs_ptr + row, tl.where(has_token, logprob, float("-inf")))


def scratch_bytes(rows: int, vocab: int) -> ScratchBytes:
    """What `draw_draft` needs for `rows` rows: of each block the best, its token, the largest score and the weight."""
    return ScratchBytes(2 * 4 * best_floats(rows, triton.cdiv(vocab, BLOCK)), 0)


def draw_draft(
    tokens, logprobs, law, logits, temperature, seed, prefix_len, num_nodes, token_ids=None,
    *, most: int, stream: int, offset: int, scratch, launch_pdl=False,
) -> None:  # fmt: skip
    """Launch; see the module. `most`, of the tokens of a row, is 1."""
    (batch, rows_each, vocab), row = logits.shape, (logits.shape[0],)
    lead, rows, blocks = (batch, rows_each), batch * rows_each, triton.cdiv(vocab, BLOCK)
    shapes = {
        "tokens": (tokens, (*lead, most), torch.int32),
        "logprobs": (logprobs, (*lead, 1), torch.float32),
        "law": (law, (*lead, vocab), torch.float32),
        "logits": (logits, (*lead, vocab), torch.float32),
        "temperature": (temperature, row, torch.float32),
        "seed": (seed, row, torch.int64),
        "prefix_len": (prefix_len, row, torch.int32),
        "num_nodes": (num_nodes, row, torch.int32),
        "token_ids": (token_ids, (vocab,), torch.int32),
    }
    check_tensors("draw_draft", shapes)
    if logits.numel() == 0:
        return
    need = scratch_bytes(rows, vocab)
    hold_scratch("draw_draft", scratch, need)
    count = rows * blocks
    sums = scratch.partials[:count], scratch.partials[count : 2 * count]
    found = (*bests(scratch, need.partials, rows, blocks), *sums)
    options = {
        "num_warps": NUM_WARPS,
        "enable_fp_fusion": False,
        **({"launch_pdl": True} if launch_pdl else {}),
    }
    _draw_blocks[(rows, blocks)](
        *found, logits, temperature, seed, prefix_len, num_nodes, rows_each, stream, offset, vocab,
        BLOCK=BLOCK, USE_PDL=launch_pdl, **options,
    )  # fmt: skip
    _write_law[(rows, blocks)](
        tokens, logprobs, law, *found, logits, temperature, num_nodes, token_ids, rows_each, vocab,
        **law_constexprs(vocab, launch_pdl), **options,
    )  # fmt: skip


def law_constexprs(vocab: int, launch_pdl: bool) -> dict[str, Any]:
    """Compile-time arguments of the second launch."""
    return {
        "BLOCK": BLOCK,
        "BLOCKS": triton.next_power_of_2(triton.cdiv(vocab, BLOCK)),
        "USE_PDL": launch_pdl,
    }
