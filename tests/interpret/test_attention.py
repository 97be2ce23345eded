"""The attention of a layer in one launch, against rotation, KV write and attention in float64.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_attention.py
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_case import chains, random_trees
from support.layer_attention import Attention, hold, make_layer, reference, root_alone

from tspec.core.errors import ContractError
from tspec.kernels.cuda.tuned import AttentionTuned

TUNED = AttentionTuned()
SMALL = AttentionTuned(chunk_tiles=1)
"""A chunk a tile: short contexts then have many."""
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize(
    ("head_dim", "group", "norms"),
    [(64, 3, True), (80, 1, False), (96, 8, True), (128, 3, False), (24, 16, True), (256, 2, False)],
)
def test_random_trees_after_a_prefix_give_what_the_reference_gives(head_dim, group, norms, dtype):
    trees = random_trees((5, 1, 3), head_dim)
    kv_heads = 1 if group >= 8 else 2
    shape = {"head_dim": head_dim, "group": group, "num_kv_heads": kv_heads}
    hold(make_layer(trees, (65, 300, 0), norms=norms, dtype=dtype, **shape), TUNED)


@pytest.mark.parametrize("prefix", [0, 1, 62, 63, 64, 65, 127, 128, 255, 256, 257, 300, 511, 512])
def test_every_border_of_a_tile_and_a_chunk_is_met(prefix):
    layer = make_layer(random_trees((6,), prefix), (prefix,), num_kv_heads=1, seed=prefix)
    hold(layer, TUNED)
    hold(layer, SMALL)


@pytest.mark.parametrize(("prefix", "row_tile"), [(0, 64), (1, 16), (63, 32), (250, 64)])
def test_a_tree_of_64_nodes_reaches_over_two_tiles_and_many_rows(prefix, row_tile):
    layer = make_layer(random_trees((64,), prefix), (prefix,), num_kv_heads=1)
    hold(layer, AttentionTuned(row_tile=row_tile))


@pytest.mark.parametrize("window", [1, 2, 9, 63, 64, 65, 100, 256, 1000])
def test_a_window_counts_positions_and_skips_what_no_row_sees(window):
    trees = random_trees((9, 1, 6), window)
    hold(make_layer(trees, (300, 0, 70), window=window, group=1, num_kv_heads=1), SMALL)


def test_a_row_without_nodes_and_padding_write_nothing_and_give_zeros():
    trees = random_trees((4, 0, 1), 1)
    layer = make_layer(trees, (70, 130, 0))
    out, *caches = Attention(layer, TUNED).run(layer)
    hold(layer, TUNED)
    assert not out[1].any() and not out[0, 4:].any() and not out[2, 1:].any()
    blocks = layer.block_table[1].long()
    for cache, before in zip(caches, layer.caches, strict=True):
        assert torch.equal(cache[blocks].view(torch.int32), before[blocks].view(torch.int32))


@settings(deadline=None, max_examples=10)
@given(
    counts=st.lists(st.integers(0, 20), min_size=1, max_size=2),
    prefixes=st.lists(st.integers(0, 700), min_size=3, max_size=3),
    seed=st.integers(0, 1 << 32),
    window=st.none() | st.integers(1, 300),
    row_tile=st.sampled_from((16, 32, 64)),
    chunk_tiles=st.sampled_from((1, 2, 4)),
)
def test_any_batch_of_trees_gives_what_the_reference_gives(
    counts, prefixes, seed, window, row_tile, chunk_tiles
):
    counts = [max(counts[0], 1), *counts[1:]]
    trees = random_trees(counts, seed)
    layer = make_layer(trees, prefixes[: len(counts)], window=window, seed=seed, norms=bool(seed % 2))
    hold(layer, AttentionTuned(chunk_tiles, row_tile))


def test_a_replay_with_other_inputs_reads_nothing_that_an_earlier_one_left():
    """Lengths grow, shrink and change their number of chunks over one scratch; counters end at zero each time."""
    shapes = (((3, 5), (300, 64)), ((5, 1), (10, 450)), ((1, 0), (385, 0)), ((3, 5), (300, 64)))
    static = Attention(make_layer(random_trees((5, 5), 0), (450, 450), num_kv_heads=1), SMALL)
    for counts, prefixes in shapes:
        trees = padded(random_trees(counts, 3), 5)
        layer = widened(make_layer(trees, prefixes, num_kv_heads=1, seed=sum(prefixes)), 9)
        out, *_ = static.run(layer)
        torch.testing.assert_close(out.double(), reference(layer)[0], rtol=2e-6, atol=2e-6)


def padded(trees, nodes):
    width = nodes - trees.tokens.shape[1]
    return replace(
        trees,
        tokens=np.pad(trees.tokens, ((0, 0), (0, width))),
        parents=np.pad(trees.parents, ((0, 0), (0, width)), constant_values=-1),
    )


def widened(layer, max_blocks):
    """The same with a block table of `max_blocks` columns, those that are new full of a block that is there."""
    return replace(
        layer,
        block_table=torch.nn.functional.pad(layer.block_table, (0, max_blocks - layer.block_table.shape[1])),
    )


@pytest.mark.parametrize(("prefix", "dtype"), [*((each, F32) for each in (0, 59, 124, 255)), (250, BF16)])
def test_a_node_of_a_chain_has_the_bits_of_plain_decoding(prefix, dtype):
    """Batch of two, 8 nodes, two row tiles, several chunks; against one sequence, one node, one row tile."""
    layer = make_layer(
        chains((8, 3)), (prefix, 90), head_dim=24, num_kv_heads=1, dtype=dtype, norms=True, seed=prefix
    )
    out, *caches = Attention(layer, TUNED).run(layer)
    wide, *_ = Attention(layer, AttentionTuned(row_tile=32)).run(layer)
    assert torch.equal(wide, out)
    for node in range(8):
        plain = root_alone(layer, caches, 0, node)
        alone, *_ = Attention(plain, TUNED).run(plain)
        assert torch.equal(alone[0, 0], out[0, node]), f"node {node}"


def test_a_node_of_a_tree_whose_path_comes_first_has_the_bits_of_plain_decoding():
    """Candidates in slots after a node's own add exactly nothing to it."""
    trees = chains((8,))
    trees.parents[0, 4:] = (0, 1, 1, 2)
    layer = make_layer(trees, (126,), group=8, num_kv_heads=1)
    out, *caches = Attention(layer, TUNED).run(layer)
    for node in range(4):
        plain = root_alone(layer, caches, 0, node)
        assert torch.equal(Attention(plain, TUNED).run(plain)[0][0, 0], out[0, node]), f"node {node}"


def test_operands_and_scratch_that_do_not_fit_are_refused():
    layer = make_layer(chains((2,)), (300,))
    static = Attention(layer, TUNED)
    with pytest.raises(ContractError, match="depth of rope_attention: got contiguous"):
        static.run(replace(layer, depth=layer.depth.long()))
    static.scratch = static.scratch._replace(partials=torch.zeros(3))
    with pytest.raises(ContractError, match="partials of rope_attention: got 12 bytes"):
        static.run(layer)
