"""Heads read from a folder, as graphs of whole rounds: the same trees and scores as the plain implementations.

The text, the folder and the tree are one sequence's; slots and features that a head may not read hold NaN.
Run: pytest tests/models/test_heads_against_plain.py
"""

import numpy as np
import pytest
import torch
from support.graphs import empty_caches, run_tree
from support.head_checkpoints import (
    TORCH_FILE,
    write_authors,
    write_medusa,
    write_sglang,
    write_speculators,
    write_vllm_medusa,
)
from support.kernel_case import chains
from support.plain_heads import medusa_logits, observe_target
from support.plain_trees import eagle_tree, medusa_tree
from support.tiny_heads import frequent_ids, tiny_eagle, tiny_medusa
from support.tiny_models import tiny_checkpoint

from tspec.checkpoint.heads import open_head, target_ids
from tspec.checkpoint.hf_config import read_config
from tspec.core.config import RopeKind
from tspec.core.dtypes import DType
from tspec.core.head_config import EagleConfig, HeadFormat
from tspec.core.shapes import BLOCK_TOKENS
from tspec.core.tree import CandidateTrees, fill_ancestors
from tspec.graph.ir import FEATURES
from tspec.graph.passes import fuse
from tspec.models.draft import build_draft
from tspec.models.eagle import OF_TARGET, eagle_parts
from tspec.models.medusa import build_medusa
from tspec.proposers.growth import best_trees, read_levels
from tspec.proposers.medusa import combine

VOCAB, HIDDEN, DEPTH, WIDTH, NODES = 50, 32, 4, 3, 14
IDS = frequent_ids(VOCAB, 20)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A tiny llama of six layers: its tensors, its configuration, a text, and what heads read of it."""
    folder = tmp_path_factory.mktemp("target")
    model = tiny_checkpoint(folder, "llama", hidden=HIDDEN, layers=6, vocab=VOCAB, rope_theta=700.0)
    tokens = torch.randint(VOCAB, (60,), generator=torch.Generator().manual_seed(5)).tolist()
    return model.state_dict(), read_config(folder), tokens, observe_target(model, tokens)


def text_inputs(tokens, prefix):
    """Static inputs of a pass over `tokens`, with `prefix` positions before them; two blocks, the second one first."""
    trees = chains([len(tokens)])
    ancestors, depth = np.zeros((1, len(tokens)), np.int64), np.zeros((1, len(tokens)), np.int32)
    fill_ancestors(trees.parents, trees.num_nodes, ancestors, depth)
    arrays = {
        "tokens": np.array([tokens], np.int32),
        "ancestors": ancestors,
        "depth": depth,
        "num_nodes": np.array([len(tokens)], np.int32),
        "prefix_len": np.array([prefix], np.int32),
        "block_table": np.array([[1, 0]], np.int32),
        "level_nodes": np.array([WIDTH], np.int32),
        "draft_prefix": np.array([prefix + len(tokens)], np.int32),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def with_features(caches, rows):
    """Put rows of features, one a position, into the cache that `text_inputs` numbers."""
    for position, row in enumerate(rows):
        caches[FEATURES][1 - position // BLOCK_TOKENS, position % BLOCK_TOKENS] = row
    return caches


def weights(head, state_dict):
    """Tensors of a graph in float64: the head's own, the target's, and the head's rotation."""
    found = {name: head.load(name).double() for name in head.shapes if name not in ("d2t", "token_map")}
    found |= {OF_TARGET + name: value.double() for name, value in state_dict.items()}
    found["draft.token_ids"] = torch.from_numpy(target_ids(head))
    if isinstance(head.config, EagleConfig):
        layer = head.config.layer
        assert layer.rope.kind is RopeKind.DEFAULT
        pairs = torch.arange(0, layer.head_dim, 2, dtype=torch.float64) / layer.head_dim
        angles = torch.arange(256, dtype=torch.float64)[:, None] * layer.rope.base**-pairs
        found |= {"rope.cos": angles.cos(), "rope.sin": angles.sin()}
    return found


def assert_same_tree(root, levels, plain):
    """The best nodes of the levels are the plain tree, node by node."""
    trees: CandidateTrees = best_trees(np.array([root], np.int32), levels, np.array([NODES], np.int32))
    assert trees.tokens[0].tolist() == plain.tokens and trees.parents[0].tolist() == plain.parents
    scores = np.concatenate([level.scores[0].reshape(-1) for level in levels])
    best = np.sort(scores)[::-1][: NODES - 1]
    np.testing.assert_allclose(best, sorted(plain.scores[1:], reverse=True), rtol=1e-5, atol=1e-5)


EAGLE = [
    (write_authors, 1, {}),
    (write_authors, 1, {"fc_bias": True, "own_embedding": True}),
    (write_authors, 1, {"para_norm": True, "layers": 2, "qkv_bias": True}),
    (write_speculators, 1, {"fc_bias": True}),
    (write_speculators, 1, {"extra_norms": True}),
    (write_authors, 3, {"draft_ids": IDS}),
    (write_authors, 3, {"rope_base": 90.0, "window": 5}),
    (write_sglang, 3, {"aux": (1, 2, 6), "draft_ids": IDS}),
    (write_sglang, 3, {"norm_before_residual": True, "norm_output": True}),
    (write_speculators, 3, {"aux": (0, 2, 6), "norm_output": True, "fc_norm": True, "draft_ids": IDS[::-1]}),
    (write_speculators, 3, {"norm_before_fc": True, "norm_before_residual": True}),
    (write_speculators, 3, {"fc_norm": True, "norm_before_fc": True, "own_embedding": True}),
    (write_speculators, 3, {"qk_norm": True, "layers": 2, "draft_ids": IDS}),
    (write_speculators, 3, {"qkv_bias": True, "o_bias": True, "mlp_bias": True, "fc_bias": True}),
    (write_speculators, 3, {"hidden": 16, "aux": (1, 4), "draft_ids": IDS}),
]


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("file", ["model.safetensors", TORCH_FILE])
@pytest.mark.parametrize("case", range(len(EAGLE)))
def test_eagle_grows_the_plain_tree(tmp_path, target, case, file, is_fused):
    state_dict, config, tokens, states = target
    write, version, changes = EAGLE[case]
    tiny = tiny_eagle(config, version, seed=case, **changes)
    head = open_head(write(tmp_path, tiny, file=file), config)
    graph = build_draft(eagle_parts(head.config, config), depth=DEPTH, width=WIDTH)
    graph = fuse(graph) if is_fused else graph
    if head.config.format is HeadFormat.EAGLE1:
        rows = states.normed[:-1].double()
    else:
        rows = torch.cat([states.by_layer[number][:-1] for number in head.config.aux_layers], dim=1).double()
    caches = with_features({name: cache.double() for name, cache in empty_caches(graph, 2).items()}, rows)
    outputs = run_tree(graph, weights(head, state_dict), text_inputs(tokens[1:], prefix=1), caches)
    levels = read_levels({name: value.numpy() for name, value in outputs.items()}, DEPTH, 1)
    plain = eagle_tree(tiny, states, tokens, top_k=WIDTH, levels=DEPTH, num_candidates=NODES - 1)
    assert_same_tree(tokens[-1], levels, plain)


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize(
    ("write", "changes"),
    [
        (write_medusa, {"num_heads": 4}),
        (write_medusa, {"num_heads": 4, "blocks": 2}),
        (write_vllm_medusa, {"num_heads": 4, "has_bias": False}),
        (write_vllm_medusa, {"num_heads": 4, "shares_head": True}),
        (write_vllm_medusa, {"num_heads": 4, "draft_ids": IDS[::-1]}),
    ],
)
def test_medusa_guesses_as_the_plain_heads(tmp_path, target, write, changes, is_fused):
    _, config, tokens, states = target
    tiny = tiny_medusa(config, **changes)
    head = open_head(write(tmp_path, tiny), config)
    graph = build_medusa(head.config, depth=DEPTH, width=WIDTH, dtype=DType.FLOAT32)
    graph = fuse(graph) if is_fused else graph
    rows = torch.full((len(tokens) - 1, HIDDEN), torch.nan, dtype=torch.float64)
    rows[-1] = states.normed[-2]  # of the last token before the root
    caches = with_features({name: cache.double() for name, cache in empty_caches(graph, 2).items()}, rows)
    outputs = run_tree(graph, weights(head, {}), text_inputs(tokens[-1:], len(tokens) - 1), caches)
    guessed = [outputs[f"level{level}.tokens"][0, 0].tolist() for level in range(DEPTH)]
    best = medusa_logits(tiny, states.normed[-2]).topk(WIDTH, dim=1).indices.tolist()
    assert guessed == [
        [row if tiny.draft_ids is None else tiny.draft_ids[row] for row in each] for each in best
    ]
    levels = combine(
        [outputs[f"level{level}.tokens"][:, 0].numpy() for level in range(DEPTH)],
        [outputs[f"level{level}.logprobs"][:, 0].numpy() for level in range(DEPTH)],
    )
    sizes = {"top_k": WIDTH, "levels": DEPTH, "num_candidates": NODES - 1}
    assert_same_tree(tokens[-1], levels, medusa_tree(tiny, tokens[-1], states.normed[-2], **sizes))
