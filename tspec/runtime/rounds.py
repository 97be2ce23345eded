"""What goes into a round, from sequences to arrays, and what a proposer may not give back. No state."""

from collections.abc import Sequence as List

import numpy as np

from tspec.core.errors import ConfigError
from tspec.core.proposer import CacheRows, DraftBatch, DraftSampling
from tspec.core.sampling import FILTERED, FUSED, pass_kind
from tspec.core.shapes import BLOCK_TOKENS
from tspec.core.tree import MAX_NODES, NO_PARENT, CandidateTrees
from tspec.runtime.inputs import Rows
from tspec.runtime.request_tables import NoRequest, Request, request_inputs, sampling_of
from tspec.runtime.scheduler import Chunk
from tspec.runtime.sequence import Sequence

MOST_DEARER = 1.75
"""How much dearer prompts may make a pass for those that decode."""

_CHAIN_PARENTS = np.arange(NO_PARENT, MAX_NODES - 1, dtype=np.int32)


def as_chains(chunks: List[Chunk]) -> CandidateTrees:
    """The next tokens of each prompt, as chains."""
    width = max(count for _, count in chunks)
    trees = CandidateTrees(
        np.zeros((len(chunks), width), dtype=np.int32),
        np.broadcast_to(_CHAIN_PARENTS[:width], (len(chunks), width)),
        np.array([count for _, count in chunks], dtype=np.int32),
    )
    for row, (sequence, count) in enumerate(chunks):
        trees.tokens[row, :count] = sequence.tokens[sequence.prefix_len : sequence.prefix_len + count]
    return trees


def with_chunks(trees: CandidateTrees, chunks: List[Chunk]) -> CandidateTrees:
    """Candidate trees, and chunks of prompts as chains in the rows behind them; laws of candidates are left out."""
    if not chunks:
        return trees
    parts = trees, as_chains(chunks)
    num_nodes = np.concatenate([each.num_nodes for each in parts])
    shape = len(num_nodes), int(num_nodes.max())
    tokens, parents = np.zeros(shape, dtype=np.int32), np.full(shape, NO_PARENT, dtype=np.int32)
    start = 0
    for part in parts:
        end, width = start + len(part.num_nodes), min(shape[1], part.tokens.shape[1])
        tokens[start:end, :width] = part.tokens[:, :width]
        parents[start:end, :width] = part.parents[:, :width]
        start = end
    return CandidateTrees(tokens, parents, num_nodes)


def most_nodes(sequences: List[Sequence], max_candidates: int, node_budget: int) -> list[int]:
    """The most nodes that each sequence's tree may have: its own limits, and its share of the budget.

    Candidates are useful only as far as tokens may still come: the bonus token takes the last place.
    """
    share = max(1, node_budget // len(sequences))
    return [
        min(max_candidates + 1, each.params.max_candidates + 1, share, each.num_remaining)
        for each in sequences
    ]


def prompt_tokens_beside(
    num_nodes: int,
    node_budget: int,
    num_decoding: int,
    num_prefilling: int,
    node_s: np.ndarray | None = None,
) -> int:
    """Prompt tokens that a pass takes beside `num_nodes` nodes of decoding sequences.

    A pass of node_budget nodes costs little more than one of a single node, as both read the weights once; beyond that
    the cost grows with each node, but no faster than in proportion. So a pass is filled up to node_budget for a little,
    and three tokens more for every four nodes make it at most 1.75 times as dear, which leaves room for a prompt's
    longer context below twice the usual gap between tokens. One token at least: each prompt gets on. Where it is known
    what passes take (`node_s`, seconds by nodes), as many go along as make one of the roots alone 1.75 times as dear.

    Where more sequences wait for their first token than decode, a whole chunk goes along: small ones would leave most
    slots waiting, and decode for few.
    """
    if num_prefilling > num_decoding:
        return MAX_NODES
    most = max(node_budget - num_nodes, 3 * num_nodes // 4, 1)
    if node_s is not None and num_decoding < len(node_s):
        dearest_s = MOST_DEARER * node_s[num_decoding]
        most = max(most, min(int(np.searchsorted(node_s, dearest_s)) - 1 - num_decoding, MAX_NODES))
    return most


def block_tables(sequences: List[Sequence]) -> np.ndarray:
    """The KV blocks of running sequences, int32 [B, blocks]."""
    rows = [each.table.row for each in sequences if each.table is not None]
    table = np.zeros((len(sequences), max(map(len, rows))), dtype=np.int32)
    for row, blocks in enumerate(rows):
        table[row, : len(blocks)] = blocks
    return table


def cache_rows(sequences: List[Sequence]) -> CacheRows:
    """Where running sequences have their keys and values."""
    known = [0 if each.table is None else each.table.num_known * BLOCK_TOKENS for each in sequences]
    return CacheRows(
        slots=np.array([each.slot for each in sequences], dtype=np.int32),
        ends=np.array([each.prefix_len for each in sequences], dtype=np.int32),
        known=np.array(known, dtype=np.int32),
        block_table=block_tables(sequences),
    )


def draft_batch(
    sequences: List[Sequence],
    max_nodes: List[int],
    acceptance: str,
    caches: CacheRows | None,
    num_beside: int,
) -> DraftBatch:
    """What a proposer is asked for."""
    contexts = np.array([each.prefix_len for each in sequences], dtype=np.int32)
    return DraftBatch(
        slots=np.array([each.slot for each in sequences], dtype=np.int32),
        roots=np.array([each.tokens[-1] for each in sequences], dtype=np.int32),
        max_nodes=np.array(max_nodes, dtype=np.int32),
        sampling=DraftSampling(
            temperature=np.array([each.tables.temperature for each in sequences], dtype=np.float32),
            seeds=np.array([each.tables.seed for each in sequences], dtype=np.int64),
            positions=contexts,
            acceptance=acceptance,
        ),
        caches=caches,
        contexts=contexts,
        num_beside=num_beside,
    )


def verify_inputs(
    sequences: List[Sequence], trees: CandidateTrees, num_chunks: int, vocab_size: int
) -> tuple[str, dict[str, Rows]]:
    """Return the kind of the verify pass over `trees`, and its inputs by request; chunks have the rows behind."""
    sampling = sampling_of(sequences)
    head, draft = "all", dict[str, Rows]()
    if trees.draft_logprobs is not None:
        sampling = FILTERED if sampling == FUSED else sampling
        head, draft = "ratio", draft_inputs(trees)
    requests: list[Request] = [*sequences, *(NoRequest() for _ in range(num_chunks))]
    return pass_kind(head, sampling), request_inputs(requests, sampling, trees, vocab_size) | draft


def draft_inputs(trees: CandidateTrees) -> dict[str, Rows]:
    """The inputs of a ratio pass that drawn candidates bring."""
    assert trees.is_sampled is not None and trees.draft_logprobs is not None
    width = int(trees.num_nodes.max())  # all that the bucket has room for
    return {"is_sampled": trees.is_sampled[:, :width], "draft_logprobs": trees.draft_logprobs[:, :width]}


def check_trees(
    trees: CandidateTrees, batch: DraftBatch, proposer: str, acceptance: str, vocab_size: int
) -> None:
    """Native code would read candidates outside the vocabulary, and write nodes past the sequence's blocks.

    Errors   ConfigError that names the proposer
    """
    what = f"of proposer {proposer}"
    for nodes, most in zip(trees.num_nodes.tolist(), batch.max_nodes.tolist(), strict=True):
        if not 1 <= nodes <= most:
            raise ConfigError(f"nodes {what}", got=nodes, need=f"1 to {most}", fix="Correct the proposer.")
    if trees.draft_logprobs is not None and acceptance == "match":
        raise ConfigError(
            f"candidates {what}",
            got="the law that they were drawn from",
            need='none with acceptance "match", where the noise is the target\'s own',
            fix="Correct the proposer: a ratio test of coupled candidates would not be lossless.",
        )
    live = trees.tokens[np.arange(trees.tokens.shape[1]) < trees.num_nodes[:, None]]
    if live.min() < 0 or live.max() >= vocab_size:
        raise ConfigError(
            f"candidates {what}",
            got=f"ids {live.min()} to {live.max()}",
            need=f"ids from 0 to {vocab_size - 1}",
            fix="Use a proposer of the target's vocabulary.",
        )
