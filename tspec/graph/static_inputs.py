"""What the host fills before each pass: the values of a graph with role INPUT."""

from tspec.core.dtypes import DType
from tspec.core.shapes import mask_words
from tspec.graph.ir import Role, Value

I32, I64, F32 = DType.INT32, DType.INT64, DType.FLOAT32


def _each(name: str, dtype: DType) -> Value:
    return Value(name, ("B",), dtype, Role.INPUT)


TOKENS = Value("tokens", ("B", "T"), I32, Role.INPUT)
ANCESTORS = Value("ancestors", ("B", "T"), I64, Role.INPUT)
DEPTH = Value("depth", ("B", "T"), I32, Role.INPUT)
NUM_NODES = _each("num_nodes", I32)
PREFIX_LEN = _each("prefix_len", I32)
BLOCK_TABLE = Value("block_table", ("B", "max_blocks"), I32, Role.INPUT)
STATIC_INPUTS = (TOKENS, ANCESTORS, DEPTH, NUM_NODES, PREFIX_LEN, BLOCK_TABLE)
"""Those of every graph; a graph has those below that its ops read."""

TEMPERATURE = _each("temperature", F32)
SEED = _each("seed", I64)
TOP_K = _each("top_k", I32)
TOP_P = _each("top_p", F32)
MIN_P = _each("min_p", F32)
EDITS = _each("edits", I32)
NUM_LOGPROBS = _each("num_logprobs", I32)
PENALTIES = Value("penalties", ("B", 3), F32, Role.INPUT)
TARGETS = Value("targets", ("B", "T"), I32, Role.INPUT)
IS_SAMPLED = Value("is_sampled", ("B", "T"), I32, Role.INPUT)
LEVEL_NODES = _each("level_nodes", I32)
"""Nodes of each level of a draft's tree; 0 for an unused row."""
DRAFT_PREFIX = _each("draft_prefix", I32)
"""Tokens that the draft's cache holds once it has taken in those of this pass: where its tree starts."""


def counts_input(vocab: int) -> Value:
    """Of each token: twice the times it is in the output, plus 1 if it is in the prompt."""
    return Value("counts", ("B", vocab), I32, Role.INPUT)


def bias_input(vocab: int) -> Value:
    """What is added to each token's logit."""
    return Value("bias", ("B", vocab), F32, Role.INPUT)


def mask_input(rows: int | str, vocab: int) -> Value:
    """One bit a token and row, the lowest bit first: 1 where the token is allowed."""
    return Value("mask", ("B", rows, mask_words(vocab)), I32, Role.INPUT)


def draft_logprobs_input(vocab: int) -> Value:
    """Log of the probabilities that each node's children were drawn with."""
    return Value("draft_logprobs", ("B", "T", vocab), F32, Role.INPUT)
