"""A tree that grows by levels, one launch of attention a level, and caches whose first slot holds nothing.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_attention_levels.py
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_case import chains, random_trees
from support.layer_attention import Attention, from_slot_1, hold, level_of, make_layer, reference

from tspec.kernels.cuda.tuned import AttentionTuned

TUNED = AttentionTuned()
SMALL = AttentionTuned(chunk_tiles=1)


def grow(layer, width, tuned):
    """Run level by level, each held against the reference; return out of all nodes, and the caches."""
    caches, outs = layer.caches, []
    nodes = layer.qkv.shape[1]
    for start in range(0, nodes, width):
        level = level_of(layer, caches, start, width)
        hold(level, tuned)
        out, *caches = Attention(level, tuned).run(level)
        outs.append(out)
    return torch.cat(outs, dim=1)[:, :nodes], caches


@settings(deadline=None, max_examples=12, derandomize=True)
@given(
    counts=st.lists(st.integers(0, 13), min_size=1, max_size=2),
    prefixes=st.lists(st.sampled_from((0, 1, 50, 60, 63, 64, 127, 250, 300)), min_size=2, max_size=2),
    width=st.sampled_from((1, 3, 10)),
    window=st.sampled_from((None, 1, 2, 3, 5, 65)),
    tuned=st.sampled_from((TUNED, SMALL)),
    seed=st.integers(0, 99),
)
def test_levels_give_the_bits_of_the_whole_tree_in_one_launch(counts, prefixes, width, window, tuned, seed):
    """Ragged trees over the borders of blocks and chunks; a level may be one of padding alone."""
    trees = random_trees([max(counts[0], 1), *counts[1:]], seed)
    layer = make_layer(trees, prefixes[: len(counts)], num_kv_heads=1, group=2, window=window, seed=seed)
    whole, *caches = Attention(layer, tuned).run(layer)
    out, grown = grow(layer, width, tuned)
    assert torch.equal(out, whole)
    for cache, want in zip(grown, caches, strict=True):
        assert torch.equal(cache.view(torch.int32), want.view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_levels_in_the_dtypes_of_devices(dtype):
    grow(make_layer(random_trees((7, 4), 1), (61, 3), norms=True, head_dim=64, dtype=dtype), 3, TUNED)


def test_the_last_node_of_the_largest_tree_is_masked_right_in_a_window():
    """Its bit is the sign of an int64."""
    trees = chains((64,))
    trees.parents[0, 1:] = [max(0, node - 3) for node in range(1, 64)]
    layer = make_layer(trees, (5,), num_kv_heads=1, group=1, window=4)
    hold(layer, TUNED)
    grow(layer, 32, TUNED)


@pytest.mark.parametrize("prefix", [1, 2, 63, 64, 65, 300])
@pytest.mark.parametrize("window", [None, 5, 64])
def test_a_first_slot_that_holds_nothing_is_seen_by_none(prefix, window):
    """Whatever lies there, NaN above all; with a window it leaves by itself after a while."""
    trees = random_trees((5, 2), prefix)
    layer = from_slot_1(make_layer(trees, (prefix, 1), num_kv_heads=1, window=window, seed=prefix))
    for tuned in (TUNED, SMALL):
        hold(layer, tuned)
        grow(layer, 3, tuned)
        out, *_ = Attention(layer, tuned).run(layer)
        other = replace(layer, attrs=layer.attrs | {"first_slot": 0})
        assert window == 5 or not torch.equal(out, Attention(other, tuned).run(other)[0])


def test_a_node_that_sees_nothing_gets_zeros_and_the_nodes_after_it_do_not_see_it():
    """Where the reference divides zero by zero."""
    layer = from_slot_1(make_layer(chains((3,)), (0,), num_kv_heads=1))
    out, *_ = Attention(layer, TUNED).run(layer)
    assert not out[0, 0].any()
    torch.testing.assert_close(out[0, 1:].double(), reference(layer)[0][0, 1:], rtol=2e-6, atol=2e-6)
