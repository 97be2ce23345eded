"""Two candidates, and seeds that test them with the smallest and the largest number there is."""

import numpy as np
import torch
from support.acceptance_cases import Operands
from support.cpu_pass import static_inputs

from tspec.core.sampling import DRAWN, DRAWN_CHAIN
from tspec.core.tree import CandidateTrees

LOWEST_SEED, HIGHEST_SEED, EDGE_NODE = 2225566365, 1098414703, 2
"""Seeds whose accept test of node 2 behind an empty prefix takes the smallest number there is, 2**-32, and 1."""

NEVER = -np.inf
ONLY_0, ONLY_1 = [0.0, NEVER, NEVER, NEVER], [NEVER, 0.0, NEVER, NEVER]
EDGES = [
    (LOWEST_SEED, [0.0, NEVER, 0.0, 0.0], False),
    (HIGHEST_SEED, [0.0, NEVER, 0.0, 0.0], False),
    (LOWEST_SEED, [NEVER, -31 * np.log(2), 0.0, NEVER], True),
    (LOWEST_SEED, [NEVER, -33 * np.log(2), 0.0, NEVER], False),
    (HIGHEST_SEED, ONLY_1, True),
    (HIGHEST_SEED, [NEVER, 0.0, -12.0, NEVER], False),
]
"""Seed, logits after the first candidate, and whether the second one is then accepted as a chain and as a block."""

FORMS = {"siblings": [-1, 0, 0], "chain": [-1, 0, 1], "block": [-1, 0, 1]}


def two_candidates(form: str, logits, draft, seeds: list[int]) -> Operands:
    """Candidates 0 and 1 in each row; logits and draft [3, V]: of the target, and log of q, after each node."""
    parents = np.array([FORMS[form]] * len(seeds), np.int32)
    tokens = np.tile(np.array([3, 0, 1], np.int32), (len(seeds), 1))
    trees = CandidateTrees(tokens, parents, np.full(len(seeds), 3, np.int32))
    flags = {"siblings": (DRAWN, 0, 0), "chain": (DRAWN, DRAWN, 0), "block": (DRAWN_CHAIN, DRAWN_CHAIN, 0)}
    target = torch.from_numpy(np.tile(np.array(logits, np.float32), (len(seeds), 1, 1)))
    return {
        **static_inputs(trees, [0] * len(seeds)),
        "logits": target.numpy(),
        "temperature": np.ones(len(seeds), np.float32),
        "threshold": np.full(tokens.shape, NEVER, np.float32),
        "first_tie": np.zeros(tokens.shape, np.int32),
        "log_sum": target.double().logsumexp(-1).float().numpy(),
        "seed": np.array(seeds),
        "node_tokens": np.full(tokens.shape, 2, np.int32),
        "is_sampled": np.tile(np.array(flags[form], np.int32), (len(seeds), 1)),
        "draft_logprobs": np.tile(np.array(draft, np.float32), (len(seeds), 1, 1)),
        "draft_index": None,
    }
