"""Kernels over tensors of more than 2**31 elements: what lies at their end is read and written there.

The tensors are virtual memory: only the few pages at the end are ever touched. An offset that wraps ends the process.

Run: TRITON_INTERPRET=1 pytest tests/interpret/test_large_offsets.py
"""

import pytest
import torch
from support.kernel_case import chains
from support.layer_attention import Attention, make_layer

from tspec.core.shapes import BLOCK_TOKENS
from tspec.kernels.cuda.attention import rope_attention
from tspec.kernels.cuda.kv_commit import kv_commit
from tspec.kernels.cuda.rows import embed
from tspec.kernels.cuda.tuned import AttentionTuned

HEAD_DIM = 16
BLOCK = BLOCK_TOKENS * HEAD_DIM
"""Elements of a block of one KV head."""

FIRST = (1 << 31) // BLOCK
"""The first block past 2**31 elements."""


@pytest.fixture(scope="module")
def memory():
    """float16 with room for 2**31 elements and some blocks, never filled."""
    try:
        return torch.empty((1 << 31) + 64 * BLOCK, dtype=torch.float16)
    except RuntimeError:
        pytest.skip("this machine refuses 4 GiB of virtual memory")


def view(memory, start_block, *shape):
    count = torch.Size(shape).numel()
    return memory[start_block * BLOCK : start_block * BLOCK + count].view(shape)


def test_attention_reads_and_writes_blocks_past_two_to_the_31(memory):
    layer = make_layer(chains((3,)), (70,), head_dim=HEAD_DIM, group=2, num_kv_heads=1, dtype=torch.float16)
    small = Attention(layer, AttentionTuned())
    expected, *wanted = small.run(layer)
    count = layer.caches[0].shape[0]
    # Keys and values overlap in memory, but not in the blocks that are used.
    large = [view(memory, shift, FIRST + count, 1, BLOCK_TOKENS, HEAD_DIM) for shift in (0, count)]
    for cache, kept in zip(large, layer.caches, strict=True):
        cache[FIRST:] = kept
    out = torch.full_like(expected, torch.nan)
    rope_attention(
        out, *large, layer.qkv, *layer.tables, *layer.norms,
        layer.ancestors, layer.depth, layer.block_table + FIRST, layer.prefix_len, layer.num_nodes,
        tuned=small.tuned, scratch=small.scratch, **layer.attrs,
    )  # fmt: skip
    assert torch.equal(out, expected)
    for cache, want in zip(large, wanted, strict=True):
        assert torch.equal(cache[FIRST:].view(torch.int16), want.view(torch.int16))


def test_a_commit_moves_slots_of_the_last_layer_past_two_to_the_31(memory):
    """The offset of the layer and that of the block are each below 2**31, their sum is not."""
    blocks = FIRST // 2 + 2
    large = [view(memory, shift, 2, blocks, 1, BLOCK_TOKENS, HEAD_DIM) for shift in (0, 8)]
    generator = torch.Generator().manual_seed(0)
    path, num_out = torch.tensor([[2, 3, -1]], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)
    prefix_len, table = torch.tensor([5], dtype=torch.int32), torch.tensor([[blocks - 1]], dtype=torch.int32)
    for cache in large:
        for layer in range(2):
            cache[layer, blocks - 1] = torch.randn(1, BLOCK_TOKENS, HEAD_DIM, generator=generator).half()
    before = [cache[:, blocks - 1].clone() for cache in large]
    kv_commit(*large, path, num_out, prefix_len, table)
    for cache, old in zip(large, before, strict=True):
        old[:, :, 6:8] = old[:, :, 7:9].clone()
        assert torch.equal(cache[:, blocks - 1], old)


def test_embeddings_past_two_to_the_31_are_found(memory):
    cols = 1024
    weight = memory[: ((1 << 31) // cols + 1) * cols].view(-1, cols)
    weight[-1] = torch.arange(cols)
    tokens = torch.tensor([[weight.shape[0] - 1]], dtype=torch.int32)
    out = torch.zeros(1, 1, cols, dtype=torch.float16)
    embed(out, tokens, weight, torch.ones(1, dtype=torch.int32))
    assert torch.equal(out[0, 0], torch.arange(cols).half())
