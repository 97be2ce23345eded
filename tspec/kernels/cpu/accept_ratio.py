"""Acceptance by rejection sampling: walk each tree from its root, testing drawn candidates against the target's law.

A node whose children were drawn tests them one after the other, each against what the ones before it left of p; chains
that ask for it are verified as a block. Certain candidates, and sequences at temperature 0, are matched.

Rows      one thread a sequence; a verdict follows from the sequence alone
Cost      sweeps of logits and q at visited nodes only: one to draw a bonus token from a residual, one for each sibling
          after the first that is tested, one for each test of a block; none where the first test of a node succeeds
Scratch   SCRATCH_BYTES a thread
Oracle    tspec/kernels/reference/accept_ratio.py
"""

import math
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from tspec.core.noise import ACCEPT
from tspec.core.sampling import DRAWN_CHAIN
from tspec.core.tree import MAX_NODES
from tspec.kernels.cpu import simd
from tspec.kernels.cpu.accept import is_child, matching_child, write_verdict
from tspec.kernels.cpu.noise import random_word
from tspec.kernels.cpu.residual import (
    REFUSAL_BYTES,
    REFUSALS,
    ZERO,
    Law,
    add_refusal,
    draft_chance,
    draw_rest,
    inverse,
    rest_chance,
    set_scale_rest,
    sum_rest,
    target_chance,
)
from tspec.kernels.cpu.simd import load_f32, load_i32, load_i64, store_i32
from tspec.kernels.cpu.sync import atomic_add
from tspec.kernels.jit import native

REACH = REFUSALS + REFUSAL_BYTES * MAX_NODES
"""Offset in scratch: of each node of a block, the probability of reaching it; float64."""

SCRATCH_BYTES = REACH + 8 * MAX_NODES

_DOUBLE = ir.DoubleType()
load_f64, store_f64 = simd._loader(types.float64, _DOUBLE), simd._storer(types.float64, _DOUBLE)


class Trees(NamedTuple):
    """Addresses of what is known of the candidates: [B, T] each, num_nodes and prefix_len [B]."""

    node_tokens: int
    tokens: int
    ancestors: int
    depth: int
    num_nodes: int
    prefix_len: int
    max_nodes: int


class Laws(NamedTuple):
    """Addresses of the two laws after each node: logits by dense row, of which row_start int32 [B] is the first."""

    logits: int
    vocab: int
    row_start: int
    temperature: int
    seed: int
    threshold: int
    first_tie: int
    log_sum: int
    is_sampled: int
    draft: int
    draft_vocab: int
    draft_index: int


@native()
def accept_ratio(counter, num_sequences, trees, laws, out_tokens, num_out, path, scratch):
    """Write the verdict of each sequence: out_tokens and path int32 [B, T], num_out int32 [B]."""
    seq = atomic_add(counter, 1)
    while seq < num_sequences:
        base = seq * trees.max_nodes
        place = path + base * 4
        count = load_i32(trees.num_nodes + seq * 4)
        is_drawn = count > 0 and load_f32(laws.temperature + seq * 4) > ZERO
        if is_drawn and load_i32(laws.is_sampled + base * 4) == DRAWN_CHAIN:
            taken, bonus = _verify_block(trees, laws, seq, count, scratch)
            for node in range(1, taken + 1):
                store_i32(place + (node - 1) * 4, np.int32(node))
        else:
            taken, bonus = _walk(trees, laws, seq, count, is_drawn, place, scratch)
        write_verdict(out_tokens, num_out, path, trees.tokens, seq, trees.max_nodes, taken, bonus)
        seq = atomic_add(counter, 1)


@native()
def _walk(trees, laws, seq, count, is_drawn, path, scratch):
    """Return (accepted candidates, bonus token), and write the accepted nodes to `path`."""
    base = seq * trees.max_nodes
    node, taken = 0, 0
    while True:
        if is_drawn and load_i32(laws.is_sampled + (base + node) * 4) != 0:
            child, bonus = _test_children(trees, laws, seq, node, count, scratch)
        else:
            bonus = load_i32(trees.node_tokens + (base + node) * 4)
            child = matching_child(
                node, base, trees.node_tokens, trees.tokens, trees.ancestors, trees.num_nodes + seq * 4
            )
        if child == 0:
            return taken, bonus
        store_i32(path + taken * 4, np.int32(child))
        taken += 1
        node = child


@native()
def _test_children(trees, laws, seq, node, count, scratch):
    """Return (the accepted child, 0 for none; the bonus token)."""
    base = seq * trees.max_nodes
    law = _law_after(laws, seq, base, node, ZERO)
    refused = 0
    scale_q = 1.0
    for child in range(node + 1, count):
        if not is_child(trees.ancestors + base * 8, node, child):
            continue
        if refused > 0:
            rest, q = sum_rest(law, refused, scratch)
            set_scale_rest(scratch + REFUSALS + (refused - 1) * REFUSAL_BYTES, inverse(rest))
            scale_q = inverse(q)
        token = load_i32(trees.tokens + (base + child) * 4)
        rest, q = rest_chance(law, token, scratch + REFUSALS, refused)
        if rest > 0.0 and _uniform(trees, laws, seq, child) * q * scale_q <= rest:
            return child, np.int32(0)
        add_refusal(scratch + REFUSALS + refused * REFUSAL_BYTES, token, scale_q, 1.0)
        refused += 1
    if refused == 0:
        add_refusal(scratch + REFUSALS, -1, 1.0, 1.0)
        refused = 1
    return 0, _draw(trees, laws, law, seq, node, refused, scratch)


@native()
def _verify_block(trees, laws, seq, count, scratch):
    """Return (accepted candidates, bonus token) of a chain: as many as the last test that succeeds stands for.

    The tests are independent, so that they are tried from the last one on.
    """
    base = seq * trees.max_nodes
    reach = 1.0
    store_f64(scratch + REACH, reach)
    for node in range(1, count):
        law = _law_after(laws, seq, base, node - 1, ZERO)
        token = load_i32(trees.tokens + (base + node) * 4)
        p, q = target_chance(law, token), draft_chance(law, token)
        reach = min(reach * p, q) / q if q > 0.0 else (1.0 if reach * p > 0.0 else 0.0)
        store_f64(scratch + REACH + node * 8, reach)
    add_refusal(scratch + REFUSALS, -1, 1.0, 1.0)
    for node in range(count - 1, 0, -1):
        reach = load_f64(scratch + REACH + node * 8)
        over = reach
        if reach > 0.0 and load_i32(laws.is_sampled + (base + node) * 4) != 0:
            over, _ = sum_rest(_reached(laws, seq, base, node, reach), 1, scratch)
        possible = over + 1.0 - reach
        if _uniform(trees, laws, seq, node) * possible <= over and reach > 0.0:
            return node, _bonus_of_block(trees, laws, seq, node, reach, scratch)
    return 0, _bonus_of_block(trees, laws, seq, 0, 1.0, scratch)


@native()
def _bonus_of_block(trees, laws, seq, node, reach, scratch):
    """The token after the last accepted node: of the residual, or the target's own where nothing was drawn."""
    base = seq * trees.max_nodes
    if load_i32(laws.is_sampled + (base + node) * 4) == 0:
        return load_i32(trees.node_tokens + (base + node) * 4)
    return _draw(trees, laws, _reached(laws, seq, base, node, reach), seq, node, 1, scratch)


@native()
def _draw(trees, laws, law, seq, node, refused, scratch):
    """Draw from what is left of p; from p where rounding leaves nothing, for then the two laws are the same."""
    seed = load_i64(laws.seed + seq * 8)
    depth = load_i32(trees.depth + (seq * trees.max_nodes + node) * 4)
    position = load_i32(trees.prefix_len + seq * 4) + depth + 1
    token = draw_rest(law, refused, seed, position, scratch)
    return token if token >= 0 else draw_rest(law, 0, seed, position, scratch)


@native()
def _uniform(trees, laws, seq, candidate):
    """The number in (0, 1] that the test of a candidate takes: by its node, at the first position after the root."""
    position = load_i32(trees.prefix_len + seq * 4) + 1
    word = random_word(load_i64(laws.seed + seq * 8), position, ACCEPT, candidate)
    return (np.float64(word) + 1.0) * 2.0**-32


@native()
def _reached(laws, seq, base, node, reach):
    """The law after a node of a block that is reached with this probability."""
    return _law_after(laws, seq, base, node, np.float32(math.log(reach)))


@native()
def _law_after(laws, seq, base, node, log_reach):
    place, row = base + node, load_i32(laws.row_start + seq * 4) + node
    return Law(
        laws.logits + row * laws.vocab * 4,
        laws.vocab,
        load_f32(laws.temperature + seq * 4),
        load_f32(laws.threshold + place * 4),
        load_i32(laws.first_tie + place * 4),
        load_f32(laws.log_sum + place * 4),
        log_reach,
        laws.draft + place * laws.draft_vocab * 4,
        laws.draft_index,
    )
