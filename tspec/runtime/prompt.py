"""A prompt as a user gave it, checked and turned into token ids."""

from collections.abc import Sequence

import numpy as np

from tspec.core.errors import CapacityError, ConfigError


def read_prompt(prompt: Sequence[int], vocab_size: int, max_model_len: int) -> np.ndarray:
    """Return the token ids of a prompt, int64 [n].

    Errors   ConfigError for an empty prompt, and one that is not a flat list of ids of the vocabulary; CapacityError
             for one that leaves no room for a token in the context
    """
    tokens = _whole_numbers(prompt)
    if tokens.size == 0:
        raise ConfigError(
            "prompt", got="no tokens", need="at least one", fix="Give a text, or a model with a start token."
        )
    if tokens.ndim != 1 or tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ConfigError(
            "prompt tokens",
            got=f"ids {tokens.min()} to {tokens.max()}",
            need=f"ids from 0 to {vocab_size - 1}",
            fix="Use the tokenizer of this checkpoint.",
        )
    if len(tokens) >= max_model_len:
        raise CapacityError(
            "prompt length",
            got=f"{len(tokens)} tokens",
            need=f"at most {max_model_len - 1} (max_model_len {max_model_len}, less one to emit)",
            fix="Shorten the prompt, or raise max_model_len if the model allows it.",
        )
    return tokens


def _whole_numbers(prompt: Sequence[int]) -> np.ndarray:
    """A prompt as int64; nothing is rounded or parsed on the way."""
    try:
        tokens = np.asarray(prompt)
    except ValueError:  # lists of different lengths
        tokens = np.array([prompt], dtype=object)
    if tokens.size > 0 and tokens.dtype.kind not in "iu":
        shown = repr(prompt)
        raise ConfigError(
            "prompt tokens",
            got=shown if len(shown) <= 40 else f"{shown[:40]}…",
            need="a flat list of token ids",
            fix="Pass whole numbers, or a text.",
        )
    return tokens.astype(np.int64)
