"""Row invariance of the demo model in bfloat16: chains, trees, batches and chunks against plain decoding.

Run: pytest -m slow tests/golden/test_real_row_invariance.py
"""

import numpy as np
import pytest
from support.compiled_target import CompiledTarget
from support.kernel_case import chains, random_trees
from support.row_invariance import assert_same_bits, assert_tree_is_invariant, decode

from tspec.checkpoint.demo_model import ensure_demo_model
from tspec.core.tree import CandidateTrees

pytestmark = pytest.mark.slow

LENGTH = 290
TEXT = np.random.default_rng(0).integers(0, 49152, LENGTH, dtype=np.int32)


@pytest.fixture(scope="module")
def decoded():
    target = CompiledTarget(ensure_demo_model(), max_model_len=LENGTH + 64, num_threads=2)
    yield decode(target, TEXT.tolist())
    target.close()


@pytest.mark.parametrize("chunk", [7, 63, 64])
def test_a_prompt_in_chunks_gives_the_bits_of_plain_decoding(decoded, chunk):
    assert_same_bits(decoded.target.ingest(decoded.text, chunk), decoded.logits)


@pytest.mark.parametrize(("start", "nodes"), [(0, 2), (62, 4), (128, 8), (250, 16)])
def test_a_chain_gives_the_bits_of_plain_decoding(decoded, start, nodes):
    chain = chains((nodes,))
    trees = CandidateTrees(TEXT[None, start : start + nodes], chain.parents, chain.num_nodes)
    (found,) = decoded.target.verify([decoded.text[:start]], trees)
    assert_same_bits(found, decoded.logits[start : start + nodes])


@pytest.mark.parametrize(("start", "nodes"), [(60, 12), (251, 24)])
def test_a_node_of_a_tree_gives_the_bits_of_plain_decoding_of_its_path(decoded, start, nodes):
    parents = random_trees((nodes,), seed=nodes).parents[0]
    tokens = np.random.default_rng(nodes).integers(0, 49152, nodes, dtype=np.int32)
    assert_tree_is_invariant(decoded, start, tokens, parents)


def test_rows_of_a_batch_give_the_bits_of_plain_decoding(decoded):
    starts, counts = (3, 61, 127, 250), (9, 1, 16, 5)
    chain = chains(counts)
    tokens = np.stack([np.resize(TEXT[start:], chain.tokens.shape[1]) for start in starts])
    trees = CandidateTrees(tokens, chain.parents, chain.num_nodes)
    found = decoded.target.verify([decoded.text[:start] for start in starts], trees)
    for start, logits in zip(starts, found, strict=True):
        assert_same_bits(logits, decoded.logits[start : start + len(logits)])
