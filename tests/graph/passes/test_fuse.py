"""All graph passes in their order: what is left, that it means the same, and that it is checked.

Run: pytest tests/graph/passes/test_fuse.py
"""

from collections import Counter
from dataclasses import replace

import pytest
from support.graphs import assert_same_meaning, tiny_config

from tspec.core.errors import ShapeError
from tspec.graph import passes
from tspec.graph.passes import fuse
from tspec.models import LAYERS, PASS_KINDS, build_graph


@pytest.mark.parametrize("architecture", LAYERS)
@pytest.mark.parametrize("head", ["all", "last", "none"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_fused_graph_means_the_same(architecture, head, seed):
    plain = build_graph(tiny_config(architecture), head=head)
    assert_same_meaning(plain, fuse(plain), seed)


@pytest.mark.parametrize("kind", PASS_KINDS)
def test_every_kind_of_pass_means_the_same_when_fused(kind):
    plain = build_graph(tiny_config(), **PASS_KINDS[kind])
    assert_same_meaning(plain, fuse(plain))


def test_a_fused_layer_is_five_ops():
    kinds = [Counter(op.kind for op in fuse(build_graph(tiny_config(num_layers=n))).ops) for n in (3, 4)]
    assert kinds[1] - kinds[0] == Counter(
        {"norm_linear": 1, "rope_attention": 1, "linear_add": 2, "norm_linear_silu_mul": 1}
    )


def test_fusing_twice_changes_nothing():
    fused = fuse(build_graph(tiny_config("qwen3"), head="last"))
    assert fuse(fused) == fused


def test_a_pass_that_breaks_the_graph_is_named(monkeypatch):
    def lose_an_op(graph):
        return replace(graph, ops=graph.ops[1:])

    monkeypatch.setattr(passes, "PASSES", (lose_an_op,))
    with pytest.raises(ShapeError, match="after lose_an_op"):
        fuse(build_graph(tiny_config()))
