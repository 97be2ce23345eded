"""What the words of a launch are: LAUNCH_WORDS int64, its code, then its operands (addresses and sizes).

Which word is what is written once, in OPERANDS: `bind` writes a launch by these names, and the kernel calls in
program.py read them in the same order.
"""

from collections.abc import Mapping

import numpy as np

LAUNCH_WORDS = 32

AHEAD = 30
"""The last two words of a launch: where the weights of the next product start, and the bytes of its first claim."""

(
    INDEX_ROWS, EMBED, LINEAR, LINEAR_SILU_MUL, HEAD_SAMPLE, ROPE_ATTENTION, LAST_ROW, EDIT_LOGITS, FIND_KEPT,
    SAMPLE, TOKEN_LOGPROBS, ACCEPT_MATCH, ACCEPT_RATIO, KV_COMMIT, PARENT_ROWS, CONCAT, RMS_NORM, SILU_ADD,
    KEEP_FEATURES, READ_FEATURES, TOP_TOKENS, DRAW_DRAFT, EXPAND_TREE,
) = range(23)  # fmt: skip

_REQUESTS = ("temperature", "seed", "prefix_len", "depth", "num_nodes", "max_nodes")
"""What rows are drawn with, one after the other."""

_PRODUCT = (
    "frame", "space", "storage", "x", "k", "norm", "eps", "weight", "bias", "out", "n", "scratch", "scratch_stride",
    "residual", "best", *_REQUESTS, "claims", "row_block", "k_block", "prefetch", "threads", "ahead_panels",
)  # fmt: skip

_ON_LOGITS = ("frame", "space", *_REQUESTS)

_FEATURES = ("frame", "features", "block_table", "prefix_len", "max_blocks", "total", "column", "cols")

OPERANDS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "index_rows": (INDEX_ROWS, ("frame", "level_frame")),
    "embed": (EMBED, ("frame", "storage", "is_packed", "out", "tokens", "weight", "cols")),
    "linear": (LINEAR, _PRODUCT),
    "linear_add": (LINEAR, _PRODUCT),
    "head_logits": (LINEAR, _PRODUCT),
    "norm_head_logits": (LINEAR, _PRODUCT),
    "linear_silu_mul": (LINEAR_SILU_MUL, _PRODUCT),
    "head_sample": (HEAD_SAMPLE, _PRODUCT),
    "norm_linear": (LINEAR, _PRODUCT),
    "norm_linear_silu_mul": (LINEAR_SILU_MUL, _PRODUCT),
    "norm_head_sample": (HEAD_SAMPLE, _PRODUCT),
    "rope_attention": (
        ROPE_ATTENTION,
        (
            "frame", "storage", "out", "qkv", "cos", "sin", "q_norm", "k_norm", "eps", "k_cache", "v_cache",
            "ancestors", "depth", "block_table", "prefix_len", "num_nodes", "max_nodes", "max_blocks", "head_dim",
            "num_heads", "num_kv_heads", "window", "scale", "partials", "scratch", "scratch_stride", "first_node",
            "first_slot", "group_rows",
        ),
    ),
    "last_row": (LAST_ROW, ("frame", "num_nodes", "out", "x", "cols")),
    "parent_rows": (PARENT_ROWS, ("frame", "source_frame", "out", "x", "cols", "next_from", "most")),
    "concat": (CONCAT, ("frame", "space", "out", "a", "cols", "b", "more_cols")),
    "rms_norm": (RMS_NORM, ("frame", "space", "out", "x", "weight", "cols", "eps")),
    "silu_add": (SILU_ADD, ("frame", "space", "out", "x", "residual", "cols")),
    "keep_features": (KEEP_FEATURES, (*_FEATURES, "x", "path", "num_out", "max_nodes")),
    "read_features": (READ_FEATURES, (*_FEATURES, "out", "depth")),
    "edit_logits": (
        EDIT_LOGITS,
        (
            *_ON_LOGITS, "out", "logits", "vocab", "edits", "penalties", "counts", "bias", "mask", "tokens",
            "ancestors",
        ),
    ),
    "find_kept": (
        FIND_KEPT,
        (
            *_ON_LOGITS, "threshold", "first_tie", "log_sum", "logits", "vocab", "top_k", "top_p", "min_p", "scratch",
            "scratch_stride",
        ),
    ),
    "sample": (
        SAMPLE,
        (*_ON_LOGITS, "out", "logits", "vocab", "threshold", "first_tie", "scratch", "scratch_stride"),
    ),
    "token_logprobs": (
        TOKEN_LOGPROBS,
        (
            *_ON_LOGITS, "logprobs", "top_tokens", "top_logprobs", "most", "logits", "vocab", "chosen",
            "num_logprobs", "num_out", "path", "scratch", "scratch_stride",
        ),
    ),
    "top_tokens": (
        TOP_TOKENS,
        (
            "frame", "space", "tokens", "logprobs", "most", "logits", "vocab", "num_nodes", "token_ids", "scratch",
            "scratch_stride",
        ),
    ),
    "draw_draft": (
        DRAW_DRAFT,
        (
            "frame", "space", "tokens", "logprobs", "law", "logits", "vocab", "num_nodes", "token_ids", "temperature",
            "seed", "prefix_len", "stream", "offset", "scratch", "scratch_stride",
        ),
    ),
    "expand_tree": (
        EXPAND_TREE,
        (
            "num_sequences", "scores", "level_nodes", "tokens", "logprobs", "row_scores", "ancestors", "rows", "most",
            "next_tokens", "next_from", "next_scores", "next_ancestors", "next_depth", "width", "first_node", "depth",
        ),
    ),
    "accept_match": (
        ACCEPT_MATCH,
        ("frame", "out_tokens", "num_out", "path", "node_tokens", "tokens", "ancestors", "num_nodes", "max_nodes"),
    ),
    "accept_ratio": (
        ACCEPT_RATIO,
        (
            "frame", "out_tokens", "num_out", "path", "scratch", "scratch_stride", "node_tokens", "tokens",
            "ancestors", "depth", "num_nodes", "prefix_len", "max_nodes", "logits", "vocab", "temperature", "seed",
            "threshold", "first_tie", "log_sum", "is_sampled", "draft_logprobs", "draft_vocab", "draft_index",
        ),
    ),
    "kv_commit": (
        KV_COMMIT,
        (
            "frame", "num_layers", "storage", "k_caches", "v_caches", "path", "num_out", "block_table", "prefix_len",
            "max_nodes", "head_dim", "num_kv_heads", "max_blocks",
        ),
    ),
}  # fmt: skip
"""Code and operands of each kind of launch. `space` is 0 for a row a node, 1 for a row a sequence."""

FLOATS = ("eps", "scale")
"""Operands that are float32 numbers, kept as raw bits in the low half of their word."""


def bind(kind: str, operands: Mapping[str, int | float]) -> np.ndarray:
    """Return one launch, int64 [LAUNCH_WORDS]. Operands that `operands` lacks are 0: absent; others are ignored."""
    code, names = OPERANDS[kind]
    assert len(names) < AHEAD, kind
    words = np.zeros(LAUNCH_WORDS, dtype=np.int64)
    words[0] = code
    for place, name in enumerate(names, start=1):
        value = operands.get(name, 0)
        words[place] = np.float32(value).view(np.int32) if name in FLOATS else int(value)
    return words
