"""Attention, acceptance and commit on trees of every form, against their references; levels against plain passes.

Run: pytest tests/kernels/test_cpu_trees.py
"""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention_cases import rope_attention
from support.cache_cases import accept_match, kv_commit
from support.cpu_pass import MAX_MODEL_LEN, run_on_cpu
from support.kernel_case import DTYPES, KernelCase, Maker, random_trees
from support.kernel_cases import hold_against_reference
from support.level_cases import TREES, Layer, Levels, behind, level_attention, path_as_chain
from support.row_invariance import assert_same_bits
from support.strategies import candidate_trees

from tspec.core.dtypes import DType
from tspec.core.tree import MAX_NODES

COUNTS = st.lists(st.integers(1, MAX_NODES), min_size=1, max_size=3)
PREFIXES = st.lists(st.integers(0, MAX_MODEL_LEN), min_size=3, max_size=3)
SEEDS = st.integers(0, 1 << 32)


def hold(kind: str, make, dtype: DType = DType.FLOAT32, **settings) -> None:
    label = "-".join(f"{value}" for value in settings.values() if isinstance(value, int))
    if kind != "accept_match" and "layer" not in settings:
        settings["dtype"] = dtype
    hold_against_reference(KernelCase(kind, dtype, label, partial(make, **settings)).build(), kind, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.short)
@settings(deadline=None, max_examples=20)
@given(
    counts=COUNTS, prefixes=PREFIXES, seed=SEEDS, window=st.none() | st.integers(1, 200), norms=st.booleans()
)
def test_attention_reads_the_prefix_and_the_ancestors_alone(dtype, counts, prefixes, seed, window, norms):
    """And writes each node behind the prefix, rotated by its depth."""
    hold(
        "rope_attention",
        rope_attention,
        dtype,
        head_dim=16,
        group=3,
        trees=random_trees(counts, seed),
        prefixes=prefixes[: len(counts)],
        window=window,
        norms=norms,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.short)
@settings(deadline=None, max_examples=15)
@given(counts=COUNTS, prefixes=PREFIXES, seed=SEEDS)
def test_a_commit_moves_the_accepted_path_and_nothing_else(dtype, counts, prefixes, seed):
    trees, prefixes = random_trees(counts, seed), prefixes[: len(counts)]
    hold("kv_commit", kv_commit, dtype, head_dim=24, trees=trees, prefixes=prefixes)


@settings(deadline=None, max_examples=100)
@given(trees=candidate_trees(max_nodes=24, vocab=3), seed=SEEDS)
def test_acceptance_walks_down_while_the_target_agrees(trees, seed):
    """With three tokens, every other node has a child that the target wants."""
    node_tokens = np.random.default_rng(seed).integers(0, 3, trees.tokens.shape)
    hold("accept_match", accept_match, trees=trees, node_tokens=node_tokens)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.short)
@settings(deadline=None, max_examples=15)
@given(
    width=st.integers(1, 10),
    num_levels=st.integers(1, 6),
    counts=st.lists(st.integers(0, 10), min_size=1, max_size=3),
    prefixes=PREFIXES,
    seed=SEEDS,
    window=st.none() | st.integers(1, 200),
    first_slot=st.integers(0, 70),
)
def test_levels_read_the_prefix_and_the_ancestors_alone(
    dtype, width, num_levels, counts, prefixes, seed, window, first_slot
):
    """And write their nodes behind those of the levels before them."""
    live = tuple(min(count, width) for count in counts)
    tree = Levels(live, tuple(prefixes[: len(counts)]), width=width, num_levels=num_levels, seed=seed)
    layer = Layer(dtype, 24, 3, window=window, first_slot=first_slot)
    hold("rope_attention", level_attention, dtype, layer=layer, tree=behind(tree, first_slot))


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: f"{tree.num_levels}x{tree.width}")
@pytest.mark.parametrize(("window", "first_slot"), [(None, 0), (60, 0), (None, 1), (200, 65)])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.short)
def test_a_node_of_a_level_has_the_bits_of_its_path_in_a_plain_pass(dtype, window, first_slot, tree):
    """Whatever the width, its siblings, and the other sequences of the batch."""
    layer = Layer(dtype, 16, 3, window=window, first_slot=first_slot, norms=True)
    case = level_attention(Maker("levels"), layer, tree)
    found = run_on_cpu(case, num_threads=3)
    starts = np.cumsum([0, *tree.counts])[:-1]
    compared = 0
    for level in range(tree.num_levels):
        for node in range(tree.width):
            rows = [row for row, count in enumerate(tree.counts) if node < count]
            chains = run_on_cpu(path_as_chain(case, layer, tree, level, node))["out.0"]
            for place, row in enumerate(rows):
                mine, plain = found[f"out.{level}"][starts[row] + node], chains[(level + 1) * (place + 1) - 1]
                if tree.prefixes[row] + level < first_slot:  # it sees nothing
                    continue
                assert_same_bits(mine.numpy(), plain.numpy())
                compared += 1
    assert compared > tree.num_levels
