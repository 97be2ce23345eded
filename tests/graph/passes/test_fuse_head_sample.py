"""The head picks each row's token itself where nobody else reads the logits.

Run: pytest tests/graph/passes/test_fuse_head_sample.py
"""

import pytest
from support.graphs import assert_same_meaning, ops_text, tiny_config

from tspec.graph.passes.fuse_head_sample import fuse_head_sample
from tspec.models import build_graph


@pytest.mark.parametrize("is_tied", [False, True])
def test_fusing_keeps_the_meaning(is_tied):
    plain = build_graph(tiny_config(tie_word_embeddings=is_tied))
    assert_same_meaning(plain, fuse_head_sample(plain))


def test_the_head_prints_as_one_op():
    fused = fuse_head_sample(build_graph(tiny_config()))
    assert ops_text(fused).splitlines()[-5:-3] == [
        "norm: f32[B, T, 24] = rms_norm(layers.1.mlp_residual, model.norm.weight) eps=1e-05",
        "node_tokens: i32[B, T] = "
        "head_sample(norm, lm_head.weight, -, temperature, seed, prefix_len, depth, num_nodes)",
    ]
    assert fuse_head_sample(fused) == fused


def test_logits_that_the_host_reads_are_left_alone():
    graph = build_graph(tiny_config(), with_logits=True)
    assert fuse_head_sample(graph) == graph


@pytest.mark.parametrize("sampling", ["filtered", "edited"])
def test_logits_that_are_filtered_are_left_alone(sampling):
    graph = build_graph(tiny_config(), sampling=sampling)
    assert fuse_head_sample(graph) == graph
