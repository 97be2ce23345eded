"""Times verify passes on the machine at hand, once, before the first request."""

import time
from collections.abc import Sequence

import numpy as np

from tspec.core.pass_costs import PassCosts
from tspec.core.shapes import BLOCK_TOKENS, blocks_for
from tspec.core.tree import MAX_NODES, CandidateTrees, chain
from tspec.runtime.buckets import smallest_bucket
from tspec.runtime.inputs import Executor, PassInputs

REPEATS = 2
"""Each pass counts as the fastest of so many: what others do on the machine only makes passes slower."""
LONG_CONTEXT = 1024
"""Tokens of context that the second time of a pass is taken with, where there is room for them."""


def time_passes(
    executor: Executor, num_nodes: Sequence[int], max_context: int, *, is_padded: bool
) -> PassCosts:
    """Time passes of one sequence with each number of nodes, on a short context and on a long one.

    Uses KV blocks, so nobody else may yet; their content does not matter. Takes turns, so that a moment in which the
    machine is slow does not meet one number alone.
    num_nodes    rising, from 1 on
    max_context  most tokens that a context may have
    """
    context = min(LONG_CONTEXT, max_context, executor.num_blocks * BLOCK_TOKENS - MAX_NODES)
    context = max(0, context) // BLOCK_TOKENS * BLOCK_TOKENS
    # What a token of context costs rises evenly, without the steps of products: fewer numbers tell all.
    widest = [count for count in num_nodes if count & (count - 1) == 0 or count == num_nodes[-1]]
    short, long = dict.fromkeys(num_nodes, np.inf), dict.fromkeys(widest, np.inf)
    for _ in range(1 + REPEATS):  # one more, that warms up
        for count in num_nodes:
            short[count] = min(short[count], pass_s(executor, count, 0))
            if context and count in long:
                long[count] = min(long[count], pass_s(executor, count, context))
    seconds = np.maximum.accumulate(list(short.values()))
    rising = np.zeros(len(widest))
    if context:
        more_s = np.array([long[count] for count in widest]) - np.interp(widest, num_nodes, seconds)
        rising = np.maximum.accumulate(np.maximum(0.0, more_s) / context)
    per_token = np.interp(num_nodes, widest, rising)
    return PassCosts(tuple(num_nodes), tuple(seconds.tolist()), tuple(per_token.tolist()), is_padded)


def pass_s(executor: Executor, num_nodes: int, context: int, num_rows: int = 1) -> float:
    """Seconds of one pass over a chain a sequence, on KV blocks from 0 on: each sequence has its own."""
    one = chain(np.zeros(num_nodes, dtype=np.int32))
    trees = CandidateTrees(
        *(np.repeat(each, num_rows, axis=0) for each in (one.tokens, one.parents, one.num_nodes))
    )
    blocks = max(1, blocks_for(context + num_nodes))
    table = np.arange(num_rows * blocks, dtype=np.int32).reshape(num_rows, blocks)
    inputs = PassInputs(trees, np.full(num_rows, context, dtype=np.int32), table)
    start_s = time.perf_counter()
    executor.run("all", smallest_bucket(num_rows, num_nodes), inputs)
    return time.perf_counter() - start_s
