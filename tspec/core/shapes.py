"""Sizes that the graph, the kernels and the runtime must agree on."""

BLOCK_TOKENS = 64
"""Slots of one KV block: one tile of attention."""


def blocks_for(num_tokens: int) -> int:
    """Return how many KV blocks hold `num_tokens` slots."""
    return -(-num_tokens // BLOCK_TOKENS)


def mask_words(vocab: int) -> int:
    """Words of 32 bits that hold one bit a token."""
    return -(-vocab // 32)
