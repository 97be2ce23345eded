"""No kernel without a reference, no reference without an op, no op in a fused graph without a kernel.

Run: pytest tests/layering/test_kernels.py
"""

from itertools import product

import pytest
from support.graphs import tiny_config

from tspec.graph.ops import OPS
from tspec.graph.passes import fuse
from tspec.kernels.cpu.launch_words import OPERANDS
from tspec.kernels.reference import REFERENCES
from tspec.models import LAYERS, build_graph

BOOKKEEPING = {"index_rows"}
"""Launches that compute nothing of the model: they have no op and no reference."""

KERNELS = sorted(OPERANDS.keys() - BOOKKEEPING)
CONFIGS = [
    dict(zip(("has_qkv_bias", "has_o_bias", "has_mlp_bias", "tie_word_embeddings"), flags, strict=True))
    for flags in product((False, True), repeat=4)
]


@pytest.mark.parametrize("kind", KERNELS)
def test_a_kernel_has_an_op_and_a_reference(kind):
    assert kind in OPS
    assert kind in REFERENCES


def test_every_op_has_a_reference_and_every_reference_an_op():
    assert REFERENCES.keys() == OPS.keys()


@pytest.mark.parametrize("architecture", LAYERS)
@pytest.mark.parametrize("head", ["all", "last", "none"])
def test_each_op_that_fusing_leaves_has_a_kernel(architecture, head):
    """With and without biases, norms of q and k, tied embeddings and logits put out."""
    kinds = set()
    for flags, has_qk_norm, with_logits in product(CONFIGS, (False, True), (False, True)):
        config = tiny_config(architecture, **flags, has_qk_norm=has_qk_norm)
        kinds |= {op.kind for op in fuse(build_graph(config, head=head, with_logits=with_logits)).ops}
    assert kinds <= set(KERNELS)
