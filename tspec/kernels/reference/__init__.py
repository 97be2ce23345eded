"""References: each op written plainly in torch, slow and obvious. What every kernel is held against.

A reference is called as `f(attrs, *inputs)` and returns a tuple of outputs. It changes none of its inputs: KV
caches come back as new tensors. It computes in its input's dtype, but float32 at least: float64 inputs give a
more exact answer.
"""

from collections.abc import Callable

from tspec.kernels.reference.accept import accept_match
from tspec.kernels.reference.accept_ratio import accept_ratio
from tspec.kernels.reference.activation import add, silu_mul
from tspec.kernels.reference.attention import attention, rope_attention
from tspec.kernels.reference.draft import (
    concat,
    draw_draft,
    expand_tree,
    keep_features,
    parent_rows,
    read_features,
    silu_add,
    top_tokens,
)
from tspec.kernels.reference.embed import embed
from tspec.kernels.reference.head import head_logits, head_sample, norm_head_logits, norm_head_sample
from tspec.kernels.reference.kv_cache import kv_commit, kv_write
from tspec.kernels.reference.linear import (
    linear,
    linear_add,
    linear_silu_mul,
    norm_linear,
    norm_linear_silu_mul,
)
from tspec.kernels.reference.norm import head_norm, rms_norm
from tspec.kernels.reference.rope import rope, rope_kv_write
from tspec.kernels.reference.rows import last_row, split
from tspec.kernels.reference.sampling import edit_logits, find_kept, sample, token_logprobs

REFERENCES: dict[str, Callable[..., tuple]] = {
    reference.__name__: reference
    for reference in (
        embed,
        rms_norm,
        head_norm,
        linear,
        split,
        rope,
        kv_write,
        attention,
        add,
        silu_mul,
        last_row,
        concat,
        silu_add,
        keep_features,
        read_features,
        top_tokens,
        draw_draft,
        expand_tree,
        parent_rows,
        head_logits,
        edit_logits,
        find_kept,
        sample,
        token_logprobs,
        accept_match,
        accept_ratio,
        kv_commit,
        rope_kv_write,
        rope_attention,
        linear_add,
        linear_silu_mul,
        head_sample,
        norm_linear,
        norm_linear_silu_mul,
        norm_head_logits,
        norm_head_sample,
    )
}
"""By op kind."""
