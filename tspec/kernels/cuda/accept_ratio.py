"""Acceptance by rejection sampling: walk each tree from its root, testing drawn candidates against the target's law.

    out_tokens  the accepted candidates, then the bonus token, then -1
    num_out     accepted candidates + 1
    path        the accepted nodes, then -1

A node whose children were drawn (is_sampled) tests them one after the other, each against what the ones before it left
of p; rows whose root says DRAWN_CHAIN are verified as a block. Certain candidates, and rows at temperature 0, are
matched against node_tokens.

Shapes    node_tokens, tokens, ancestors, depth, threshold, first_tie, log_sum, is_sampled, out_tokens, path: [B, T];
          logits: [B, T, V]; draft_logprobs: [B, T, Q]; draft_index: [V] or None: Q is V; others: [B]; T <= 64
Dtypes    ancestors and seed int64; logits, temperature, threshold, log_sum and draft_logprobs fp32; others int32
Layout    all contiguous; offsets of logits and draft_logprobs are int64
Grid      one program a sequence
Cost      sweeps of logits and q at visited nodes only: one to draw a bonus token from a residual, one for each sibling
          after the first that is tested, one for each test of a block; none where the first test of a node succeeds
Rows      independent; sums in an order that follows the vocabulary alone
Errors    ContractError from the launcher for any line above
Oracle    tspec/kernels/reference/accept_ratio.py
"""

import torch
import triton
import triton.language as tl

from tspec.core import noise, sampling
from tspec.core.errors import ContractError
from tspec.core.tree import MAX_NODES
from tspec.kernels.cuda.accept import NO_NODE
from tspec.kernels.cuda.launch import check_tensors
from tspec.kernels.cuda.noise import uniform
from tspec.kernels.cuda.residual import draw_rest, inverse, load_laws, pick, refuse, sum_rest

BLOCK = 2048
"""Tokens of one step of a sweep."""

NUM_WARPS = 8

ACCEPT = tl.constexpr(noise.ACCEPT)
DRAWN_CHAIN = tl.constexpr(sampling.DRAWN_CHAIN)
NO_TOKEN = tl.constexpr(sampling.NO_TOKEN)


@triton.jit
def _test(seed, prefix_len, candidate):
    """The number in (0, 1] that the test of a candidate takes: by its node, at the first position after the root."""
    first = tl.zeros((1,), tl.int64)
    return tl.sum(uniform(first + seed, first + prefix_len + 1, first + candidate, ACCEPT), axis=0)


@triton.jit
def _chance(
    node, candidate, refused, scale_q, scale_rest, count, logits_ptr, temperature, threshold_ptr, first_tie_ptr,
    log_sum_ptr, draft_ptr, draft_index_ptr, vocab, draft_vocab,
):  # fmt: skip
    """(what is left of p, q) of one token after `node`, after `count` refusals. Pointers are those of the root."""
    token, p, q = load_laws(
        logits_ptr + node * vocab, temperature, tl.load(threshold_ptr + node), tl.load(first_tie_ptr + node),
        tl.load(log_sum_ptr + node), 0.0, draft_ptr + node * draft_vocab, draft_index_ptr, candidate, vocab, 1,
    )  # fmt: skip
    rest, q = refuse(token, p, q, refused, scale_q, scale_rest, count)
    return tl.sum(rest, axis=0), tl.sum(q, axis=0)


@triton.jit
def _test_children(
    node, token, is_next, refused, scale_q, scale_rest, seed, prefix_len, logits_ptr, temperature, threshold_ptr,
    first_tie_ptr, log_sum_ptr, draft_ptr, draft_index_ptr, vocab, draft_vocab, BLOCK: tl.constexpr,
):  # fmt: skip
    """(the accepted one of the children `is_next` of `node`, NODES for none; its refusals, and how many)."""
    NODES: tl.constexpr = token.shape[0]
    number = tl.arange(0, NODES)
    threshold, first_tie = tl.load(threshold_ptr + node), tl.load(first_tie_ptr + node)
    log_sum = tl.load(log_sum_ptr + node)
    scale, count, accepted = pick(scale_q, 0), pick(number, 0), pick(number, 0) + NODES
    child = tl.min(tl.where(is_next, number, NODES), axis=0)
    while child < NODES:
        if count > 0:
            over, left = sum_rest(
                logits_ptr + node * vocab, temperature, threshold, first_tie, log_sum, 0.0,
                draft_ptr + node * draft_vocab, draft_index_ptr, refused, scale_q, scale_rest, count, vocab, BLOCK,
            )  # fmt: skip
            scale_rest = tl.where(number == count - 1, inverse(over), scale_rest)
            scale = inverse(left)
        candidate = pick(token, child)
        rest, q = _chance(
            node, candidate, refused, scale_q, scale_rest, count, logits_ptr, temperature, threshold_ptr,
            first_tie_ptr, log_sum_ptr, draft_ptr, draft_index_ptr, vocab, draft_vocab,
        )  # fmt: skip
        if (rest > 0) & (_test(seed, prefix_len, child) * (q * scale) <= rest):
            accepted = child
            child = child * 0 + NODES
        else:
            refused = tl.where(number == count, candidate, refused)
            scale_q = tl.where(number == count, scale, scale_q)
            count += 1
            child = tl.min(tl.where(is_next & (number > child), number, NODES), axis=0)
    return accepted, refused, scale_q, scale_rest, count


@triton.jit
def _verify_block(
    live, token, is_drawn, refused, scale_q, scale_rest, seed, prefix_len, logits_ptr, temperature, threshold_ptr,
    first_tie_ptr, log_sum_ptr, draft_ptr, draft_index_ptr, vocab, draft_vocab, BLOCK: tl.constexpr,
):  # fmt: skip
    """(accepted candidates of a chain, probability of getting as far). The tests are tried from the last one on."""
    NODES: tl.constexpr = token.shape[0]
    number = tl.arange(0, NODES)
    last = tl.sum(live.to(tl.int32), axis=0) - 1
    reaches = tl.where(number == 0, 1.0, 0.0)
    reach = pick(reaches, 0)
    node = pick(number, 1)
    while node <= last:
        p, q = _chance(
            (node - 1).to(tl.int64), pick(token, node), refused, scale_q, scale_rest, 0, logits_ptr, temperature,
            threshold_ptr, first_tie_ptr, log_sum_ptr, draft_ptr, draft_index_ptr, vocab, draft_vocab,
        )  # fmt: skip
        p = p * reach
        reach = tl.where(
            q > 0, tl.div_rn(tl.minimum(p, q), tl.where(q > 0, q, 1.0)), tl.where(p > 0, 1.0, 0.0)
        )
        reaches = tl.where(number == node, reach, reaches)
        node += 1
    node, accepted = last, pick(number, 0)
    while node > 0:
        reach = pick(reaches, node)
        over = reach
        if (reach > 0) & (pick(is_drawn.to(tl.int32), node) > 0):
            here = node.to(tl.int64)
            over, _ = sum_rest(
                logits_ptr + here * vocab, temperature, tl.load(threshold_ptr + here), tl.load(first_tie_ptr + here),
                tl.load(log_sum_ptr + here), tl.log(reach), draft_ptr + here * draft_vocab, draft_index_ptr,
                refused, scale_q, scale_rest, 1, vocab, BLOCK,
            )  # fmt: skip
        is_accepted = (reach > 0) & (_test(seed, prefix_len, node) * (over + (1.0 - reach)) <= over)
        accepted = tl.where(is_accepted, node, accepted)
        node = tl.where(is_accepted, 0, node - 1)
    return accepted, pick(reaches, accepted)


@triton.jit
def _walk(
    live, token, wanted, line, flags, refused, scale_q, scale_rest, seed, prefix_len, logits_ptr, temperature,
    threshold_ptr, first_tie_ptr, log_sum_ptr, draft_ptr, draft_index_ptr, vocab, draft_vocab, BLOCK: tl.constexpr,
):  # fmt: skip
    """(last accepted node, how many, the path to it; its refusals, and how many)."""
    NODES: tl.constexpr = token.shape[0]
    number = tl.arange(0, NODES)
    # A child's ancestors are its parent's and itself; so this is the line of each node's parent.
    above = line ^ (tl.full((NODES,), 1, tl.int64) << number.to(tl.int64))
    path = tl.full((NODES,), NO_NODE, tl.int32)
    none, one, scale = refused, scale_q, scale_rest
    child = pick(number, 0)
    at, accepted, count = child, child, child
    while child < NODES:
        at = child
        is_next = live & (number > at) & (above == pick(line, at))
        if pick(flags, at) > 0:
            child, refused, scale_q, scale_rest, count = _test_children(
                at.to(tl.int64), token, is_next, none, one, scale, seed, prefix_len, logits_ptr, temperature,
                threshold_ptr, first_tie_ptr, log_sum_ptr, draft_ptr, draft_index_ptr, vocab, draft_vocab, BLOCK,
            )  # fmt: skip
        else:
            child = tl.min(tl.where(is_next & (token == pick(wanted, at)), number, NODES), axis=0)
        path = tl.where((number == accepted) & (child < NODES), child, path)
        accepted += (child < NODES).to(tl.int32)
    return at, accepted, path, refused, scale_q, scale_rest, count


@triton.jit
def _accept_ratio(
    out_tokens_ptr, num_out_ptr, path_ptr, node_tokens_ptr, tokens_ptr, ancestors_ptr, depth_ptr, num_nodes_ptr,
    prefix_len_ptr, logits_ptr, temperature_ptr, seed_ptr, threshold_ptr, first_tie_ptr, log_sum_ptr, is_sampled_ptr,
    draft_ptr, draft_index_ptr, vocab, draft_vocab,
    T: tl.constexpr, NODES: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    sequence = tl.program_id(0).to(tl.int64)
    root = sequence * T
    node = tl.arange(0, NODES)
    place, inside, live = root + node, node < T, node < tl.load(num_nodes_ptr + sequence)
    wanted = tl.load(node_tokens_ptr + place, mask=inside, other=NO_NODE)
    token = tl.load(tokens_ptr + place, mask=inside, other=NO_NODE)
    line = tl.load(ancestors_ptr + place, mask=inside, other=0)
    temperature = tl.load(temperature_ptr + sequence)
    flags = tl.where(temperature > 0, tl.load(is_sampled_ptr + place, mask=live, other=0), 0)
    seed, prefix_len = tl.load(seed_ptr + sequence), tl.load(prefix_len_ptr + sequence)
    logits_ptr += root * vocab
    draft_ptr += root * draft_vocab
    threshold_ptr += root
    first_tie_ptr += root
    log_sum_ptr += root
    # One refusal of no token: p - q as it is, for the residual of a block, and of a node whose draw was dropped.
    refused = tl.full((NODES,), -1, tl.int32)
    scale_q, scale_rest = tl.full((NODES,), 1.0, tl.float32), tl.full((NODES,), 1.0, tl.float32)
    reach, count = pick(scale_q, 0), pick(node, 1)
    if pick(flags, 0) == DRAWN_CHAIN:
        at, reach = _verify_block(
            live, token, flags > 0, refused, scale_q, scale_rest, seed, prefix_len, logits_ptr, temperature,
            threshold_ptr, first_tie_ptr, log_sum_ptr, draft_ptr, draft_index_ptr, vocab, draft_vocab, BLOCK,
        )  # fmt: skip
        accepted, path = at, tl.where(node < at, node + 1, NO_NODE)
    else:
        at, accepted, path, refused, scale_q, scale_rest, count = _walk(
            live, token, wanted, line, flags, refused, scale_q, scale_rest, seed, prefix_len, logits_ptr, temperature,
            threshold_ptr, first_tie_ptr, log_sum_ptr, draft_ptr, draft_index_ptr, vocab, draft_vocab, BLOCK,
        )  # fmt: skip
    bonus = pick(wanted, at)
    if pick(flags, at) > 0:
        bonus = _draw(
            at.to(tl.int64), tl.load(depth_ptr + root + at), refused, scale_q, scale_rest, tl.maximum(count, 1),
            tl.log(reach), seed, prefix_len, logits_ptr, temperature, threshold_ptr, first_tie_ptr, log_sum_ptr,
            draft_ptr, draft_index_ptr, vocab, draft_vocab, BLOCK,
        )  # fmt: skip
    out_tokens = tl.where(node == accepted, bonus, NO_NODE)
    for step in range(accepted):
        out_tokens = tl.where(node == step, pick(token, pick(path, step)), out_tokens)
    tl.store(out_tokens_ptr + place, out_tokens, mask=inside)
    tl.store(path_ptr + place, path, mask=inside)
    tl.store(num_out_ptr + sequence, accepted + 1)


@triton.jit
def _draw(
    node, depth, refused, scale_q, scale_rest, count, log_reach, seed, prefix_len, logits_ptr, temperature,
    threshold_ptr, first_tie_ptr, log_sum_ptr, draft_ptr, draft_index_ptr, vocab, draft_vocab, BLOCK: tl.constexpr,
):  # fmt: skip
    """The token after `node`: of what is left; of p where rounding leaves nothing, for then the laws are the same."""
    threshold, first_tie = tl.load(threshold_ptr + node), tl.load(first_tie_ptr + node)
    log_sum = tl.load(log_sum_ptr + node)
    bonus = NO_TOKEN
    while count >= 0:
        bonus = draw_rest(
            logits_ptr + node * vocab, temperature, threshold, first_tie, log_sum, log_reach,
            draft_ptr + node * draft_vocab, draft_index_ptr, refused, scale_q, scale_rest, count, seed,
            prefix_len + depth + 1, vocab, BLOCK,
        )  # fmt: skip
        count = tl.where((bonus < 0) & (count > 0), 0, -1)
    return bonus


def constexprs(nodes: int, launch_pdl: bool) -> dict[str, int | bool]:
    """Compile-time arguments for trees of `nodes`."""
    return {"T": nodes, "NODES": max(2, triton.next_power_of_2(nodes)), "BLOCK": BLOCK, "USE_PDL": launch_pdl}


def accept_ratio(
    out_tokens, num_out, path, node_tokens, tokens, ancestors, depth, num_nodes, prefix_len, logits, temperature, seed,
    threshold, first_tie, log_sum, is_sampled, draft_logprobs, draft_index=None, *, launch_pdl=False,
) -> None:  # fmt: skip
    """Write the verdict of each sequence. See the module."""
    batch, nodes, vocab = logits.shape
    draft_vocab = draft_logprobs.shape[-1]
    if nodes > MAX_NODES:
        raise ContractError(
            "nodes of accept_ratio", got=nodes, need=f"at most {MAX_NODES}", fix="Take a smaller bucket."
        )
    if draft_index is None and draft_vocab != vocab:
        raise ContractError(
            "draft_logprobs of accept_ratio", got=draft_vocab, need=f"{vocab} tokens", fix="Pass draft_index."
        )
    tree, row, i32, f32 = (batch, nodes), (batch,), torch.int32, torch.float32
    per_node = {
        "out_tokens": out_tokens,
        "path": path,
        "node_tokens": node_tokens,
        "tokens": tokens,
        "depth": depth,
    }
    per_node |= {"first_tie": first_tie, "is_sampled": is_sampled}
    shapes: dict[str, tuple[torch.Tensor | None, tuple, torch.dtype]]
    shapes = {name: (tensor, tree, i32) for name, tensor in per_node.items()}
    rows = {"num_out": num_out, "num_nodes": num_nodes, "prefix_len": prefix_len}
    shapes |= {name: (tensor, row, i32) for name, tensor in rows.items()}
    shapes |= {
        "ancestors": (ancestors, tree, torch.int64),
        "seed": (seed, row, torch.int64),
        "temperature": (temperature, row, f32),
        "threshold": (threshold, tree, f32),
        "log_sum": (log_sum, tree, f32),
        "logits": (logits, (batch, nodes, vocab), f32),
        "draft_logprobs": (draft_logprobs, (batch, nodes, draft_vocab), f32),
        "draft_index": (draft_index, (vocab,), i32),
    }
    check_tensors("accept_ratio", shapes)
    if batch == 0:
        return
    options = {"launch_pdl": True} if launch_pdl else {}
    _accept_ratio[(batch,)](
        out_tokens, num_out, path, node_tokens, tokens, ancestors, depth, num_nodes, prefix_len, logits, temperature,
        seed, threshold, first_tie, log_sum, is_sampled, draft_logprobs, draft_index, vocab, draft_vocab,
        **constexprs(nodes, launch_pdl), num_warps=NUM_WARPS, enable_fp_fusion=False, **options,
    )  # fmt: skip
