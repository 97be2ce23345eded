"""What sequences of a batch ask of sampling, at random: everything that a pass of any kind may read."""

import numpy as np

from tspec.core.config import ModelConfig
from tspec.core.sampling import DRAWN, EDIT_BIAS, EDIT_MASK, EDIT_PENALTIES
from tspec.core.sampling_params import MAX_LOGPROBS
from tspec.core.shapes import mask_words
from tspec.graph.plan import Bucket
from tspec.runtime.inputs import Rows

NUM_EDITS = (EDIT_BIAS | EDIT_PENALTIES | EDIT_MASK) + 1


def random_requests(config: ModelConfig, bucket: Bucket, seed: int) -> dict[str, Rows]:
    """Greedy and sampled sequences in turn, with limits and edits of their own; masks allow half of all tokens.

    The children of half of all nodes were drawn, from laws that have nothing to do with the model.
    """
    generator = np.random.default_rng(seed)
    batch, nodes, vocab = bucket.rows, bucket.nodes, config.vocab_size
    turn = (np.arange(batch) + seed) % 2
    return {
        "temperature": np.where(turn, generator.uniform(0.3, 2, batch), 0).astype(np.float32),
        "seed": generator.integers(0, 1 << 62, batch),
        "top_k": generator.integers(0, 60, batch).astype(np.int32),
        "top_p": generator.uniform(0.3, 1.2, batch).clip(max=1).astype(np.float32),
        "min_p": generator.uniform(-0.1, 0.1, batch).clip(min=0).astype(np.float32),
        "edits": generator.integers(1, NUM_EDITS, batch).astype(np.int32),
        "penalties": generator.uniform(0.5, 1.5, (batch, 3)).astype(np.float32),
        "counts": generator.integers(0, 5, (batch, vocab)).astype(np.int32),
        "bias": generator.normal(size=(batch, vocab)).astype(np.float32),
        "mask": generator.integers(-(1 << 31), 1 << 31, (batch, nodes, mask_words(vocab))).astype(np.int32),
        "num_logprobs": generator.integers(-1, MAX_LOGPROBS + 1, batch).astype(np.int32),
        "targets": generator.integers(0, vocab, (batch, nodes)).astype(np.int32),
        "is_sampled": DRAWN * generator.integers(0, 2, (batch, nodes)).astype(np.int32),
        "draft_logprobs": random_laws(generator, (batch, nodes, vocab)),
    }


def random_laws(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Log of probabilities over the last dim, float32."""
    scores = generator.normal(size=shape)
    return (scores - np.log(np.exp(scores).sum(-1, keepdims=True))).astype(np.float32)
