"""A position's logits have the same bits whatever pass computes them: the invariant behind lossless speculation.

Run: pytest tests/property/test_row_invariance.py
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.compiled_target import CompiledTarget
from support.kernel_case import chains, random_trees
from support.row_invariance import assert_same_bits, assert_tree_is_invariant, decode
from support.tiny_models import tiny_checkpoint

from tspec.core.tree import MAX_NODES, CandidateTrees

VOCAB = 97
LENGTH = 330
"""Over five blocks of 64 positions, and over one chunk of 256."""
TEXT = np.random.default_rng(0).integers(0, VOCAB, LENGTH, dtype=np.int32)
MODELS = {
    "llama": {"architecture": "llama", "heads": 6, "kv_heads": 2, "head_dim": 24},
    "mistral": {"architecture": "mistral", "heads": 8, "kv_heads": 1, "sliding_window": 100},
}
STARTS = st.integers(0, LENGTH - MAX_NODES) | st.sampled_from(
    (1, 48, 63, 64, 65, 127, 128, 192, 240, 255, 256)
)
SEEDS = st.integers(0, 1 << 32)


@pytest.fixture(
    scope="module",
    params=[(model, dtype) for model in MODELS for dtype in ("float32", "bfloat16")],
    ids="-".join,
)
def decoded(request, tmp_path_factory):
    """A model of two layers and one text, decoded plain."""
    model, dtype = request.param
    folder = tmp_path_factory.mktemp(model)
    tiny_checkpoint(folder, hidden=48, vocab=VOCAB, max_position_embeddings=LENGTH + 70, **MODELS[model])
    target = CompiledTarget(folder, dtype=dtype)
    yield decode(target, TEXT.tolist())
    target.close()


@settings(deadline=None, max_examples=15)
@given(chunk=st.integers(1, MAX_NODES) | st.sampled_from((2, 4, 8, 16, 32, 63, 64)))
def test_a_prompt_in_chunks_of_any_size_gives_the_bits_of_plain_decoding(decoded, chunk):
    assert_same_bits(decoded.target.ingest(decoded.text, chunk), decoded.logits)


@pytest.mark.parametrize("nodes", [2, 4, 8, 16])
@settings(deadline=None, max_examples=10)
@given(start=STARTS)
def test_a_chain_gives_the_bits_of_plain_decoding(decoded, nodes, start):
    chain = chains((nodes,))
    trees = CandidateTrees(TEXT[None, start : start + nodes], chain.parents, chain.num_nodes)
    (found,) = decoded.target.verify([decoded.text[:start]], trees)
    assert_same_bits(found, decoded.logits[start : start + nodes])


@settings(deadline=None, max_examples=20)
@given(start=STARTS, nodes=st.integers(2, MAX_NODES), seed=SEEDS)
def test_a_node_of_a_tree_gives_the_bits_of_plain_decoding_of_its_path(decoded, start, nodes, seed):
    parents = random_trees((nodes,), seed).parents[0]
    tokens = np.random.default_rng(seed).integers(0, VOCAB, nodes, dtype=np.int32)
    assert_tree_is_invariant(decoded, start, tokens, parents)


@settings(deadline=None, max_examples=20)
@given(
    starts=st.lists(STARTS, min_size=2, max_size=4),
    nodes=st.lists(st.integers(1, 20), min_size=4, max_size=4),
)
def test_a_row_of_a_batch_gives_the_bits_of_plain_decoding(decoded, starts, nodes):
    """Rows of the same text at different places, each after a prefix of its own, all in one pass."""
    chain = chains(nodes[: len(starts)])
    tokens = np.stack([np.resize(TEXT[start:], chain.tokens.shape[1]) for start in starts])
    trees = CandidateTrees(tokens, chain.parents, chain.num_nodes)
    found = decoded.target.verify([decoded.text[:start] for start in starts], trees)
    for start, logits in zip(starts, found, strict=True):
        assert_same_bits(logits, decoded.logits[start : start + len(logits)])


@settings(deadline=None, max_examples=10)
@given(start=STARTS, seed=SEEDS, counts=st.lists(st.integers(1, MAX_NODES), min_size=4, max_size=4))
def test_a_tree_gives_the_same_bits_alone_and_among_neighbours(decoded, start, seed, counts):
    trees = random_trees(counts, seed)
    tokens = np.random.default_rng(seed).integers(0, VOCAB, trees.tokens.shape, dtype=np.int32)
    trees = CandidateTrees(tokens, trees.parents, trees.num_nodes)
    prefixes = [decoded.text[: start // turn] for turn in (1, 2, 3, 4)]
    together = decoded.target.verify(prefixes, trees)
    for row, prefix in enumerate(prefixes):
        alone = CandidateTrees(
            tokens[row : row + 1], trees.parents[row : row + 1], trees.num_nodes[row : row + 1]
        )
        (expected,) = decoded.target.verify([prefix], alone)
        assert_same_bits(together[row], expected)


@settings(deadline=None, max_examples=15)
@given(start=STARTS, wrong=st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_a_text_goes_on_after_a_commit_with_the_bits_of_plain_decoding(decoded, start, wrong):
    """The target's own next tokens, each behind so many wrong siblings: the commit has to move their KV."""
    target, text = decoded.target, decoded.text[: start + 1]
    tokens, parents, node = [text[-1]], [-1], 0
    for siblings in wrong:
        best = int(target.ingest(text, MAX_NODES)[-1].argmax())
        tokens += [(best + 1 + sibling) % VOCAB for sibling in range(siblings)] + [best]
        parents += [node] * (siblings + 1)
        node = len(tokens) - 1
        text = [*text, best]
    tree = CandidateTrees(
        np.array([tokens], np.int32), np.array([parents], np.int32), np.array([len(tokens)], np.int32)
    )
    target.verify([decoded.text[:start]], tree)
    follow = [*text, 5, 11]
    found = target.ingest(follow, chunk=2, start=len(text))
    assert_same_bits(found, target.ingest(follow, chunk=1, row=1)[len(text) :])
