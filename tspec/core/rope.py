"""Rotary position tables: the cosine and sine of every position, in the five kinds that RopeKind names.

Arithmetic is transformers' own, step by step in float32 (powers, cosines and sines are computed in float64
and rounded once, which is what a float32 library approximates). Rotates nothing.

Source    RoFormer, arXiv:2104.09864, eq. 15; YaRN, arXiv:2309.00071; transformers `modeling_rope_utils.py`
"""

import math

import numpy as np

from tspec.core.config import ModelConfig, RopeConfig, RopeKind

_CHUNK_POSITIONS = 4096  # bounds the float64 temporaries


def rope_table(
    rope: RopeConfig, head_dim: int, max_position: int, num_positions: int
) -> tuple[np.ndarray, np.ndarray]:
    """The cosines and sines of positions 0 to num_positions - 1, attention scaling (yarn) multiplied in.

    Shapes    two arrays [num_positions, head_dim / 2] float32; column `pair` turns elements `pair` and
              `pair + head_dim / 2` of a head
    Limits    head_dim even, and at least 4 for `dynamic`
    Rows      a function of the position alone, for `dynamic` too: position p beyond max_position takes the
              frequencies of a sequence of p + 1 tokens. This equals transformers where it decodes token by
              token; a transformers prefill instead takes those of the prompt's last position for all of it.
    """
    scaling = np.float32(_attention_scaling(rope))
    cos = np.empty((num_positions, head_dim // 2), dtype=np.float32)
    sin = np.empty_like(cos)
    is_dynamic = rope.kind is RopeKind.DYNAMIC
    frequencies = _frequencies(rope, head_dim)
    for start in range(0, num_positions, _CHUNK_POSITIONS):
        end = min(start + _CHUNK_POSITIONS, num_positions)
        positions = np.arange(start, end, dtype=np.float32)[:, None]
        if is_dynamic:
            frequencies = _dynamic_frequencies(rope, head_dim, max_position, positions)
        angles = (positions * frequencies).astype(np.float64)
        cos[start:end] = np.cos(angles).astype(np.float32) * scaling
        sin[start:end] = np.sin(angles).astype(np.float32) * scaling
    return cos, sin


def context_limit(config: ModelConfig) -> int:
    """The most positions the checkpoint supports, prompt and output together.

    default, llama3   max_position: llama3 checkpoints state the stretched length
    linear, dynamic   max_position * factor: max_position is the length before stretching
    yarn              original_max_position * factor, whichever of the two lengths max_position states

    This is vLLM's rule. transformers has none: it runs past any length.
    """
    rope = config.rope
    if rope.kind in (RopeKind.LINEAR, RopeKind.DYNAMIC):
        return int(config.max_position * rope.factor)
    if rope.kind is RopeKind.YARN:
        return int(_original(rope) * rope.factor)
    return config.max_position


def describe_rope(rope: RopeConfig) -> str:
    """The kind of a rotation and its numbers, for people."""
    factor = "" if rope.kind is RopeKind.DEFAULT else f", factor {rope.factor:g}"
    return f"{rope.kind.value}, base {rope.base:g}{factor}"


def _frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Radians a position, float32 [head_dim / 2], for the kinds where they are the same at every position."""
    frequencies = np.float32(1) / _powers(np.float32(rope.base), head_dim)
    match rope.kind:
        case RopeKind.LINEAR:
            return frequencies / np.float32(rope.factor)
        case RopeKind.LLAMA3:
            return _llama3_frequencies(rope, frequencies)
        case RopeKind.YARN:
            return _yarn_frequencies(rope, head_dim)
        case _:
            return frequencies


def _dynamic_frequencies(
    rope: RopeConfig, head_dim: int, max_position: int, positions: np.ndarray
) -> np.ndarray:
    """Radians a position, float32 [n, head_dim / 2], for positions float32 [n, 1].

    The base grows with the position, from max_position on.
    """
    exponent = head_dim / (head_dim - 2)
    unstretched = rope.base * ((rope.factor * max_position / max_position) - (rope.factor - 1)) ** exponent
    length = np.maximum(positions + np.float32(1), np.float32(max_position))
    stretch = np.float32(rope.factor) * length / np.float32(max_position) - np.float32(rope.factor - 1)
    stretched = np.float32(rope.base) * _power(stretch, np.float32(exponent))
    bases = np.where(length > max_position, stretched, np.float32(unstretched))
    return np.float32(1) / _powers(bases, head_dim)


def _llama3_frequencies(rope: RopeConfig, frequencies: np.ndarray) -> np.ndarray:
    """Long waves are divided by the factor, short ones kept, and those between blended."""
    original, factor = np.float32(_original(rope)), np.float32(rope.factor)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    waves = np.float32(2 * math.pi) / frequencies
    is_long = waves > np.float32(_original(rope) / low)
    is_short = waves < np.float32(_original(rope) / high)
    smooth = (original / waves - np.float32(low)) / np.float32(high - low)
    blended = (np.float32(1) - smooth) * frequencies / factor + smooth * frequencies
    return np.where(is_long, frequencies / factor, np.where(is_short, frequencies, blended))


def _yarn_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Pairs that turn often keep their frequency, pairs that turn rarely are divided by the factor."""
    low = _yarn_pair(rope, head_dim, rope.beta_fast)
    high = _yarn_pair(rope, head_dim, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    pairs = np.arange(head_dim // 2, dtype=np.float32)
    kept = np.float32(1) - np.clip((pairs - np.float32(low)) / np.float32(high - low), 0, 1)
    powers = _powers(np.float32(rope.base), head_dim)
    interpolated = np.float32(1) / (np.float32(rope.factor) * powers)
    return interpolated * (np.float32(1) - kept) + np.float32(1) / powers * kept


def _yarn_pair(rope: RopeConfig, head_dim: int, rotations: float) -> float:
    """The pair, as a real number, that turns `rotations` times within the original context."""
    return head_dim * math.log(_original(rope) / (rotations * 2 * math.pi)) / (2 * math.log(rope.base))


def _attention_scaling(rope: RopeConfig) -> float:
    if rope.kind is not RopeKind.YARN:
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _yarn_scale(rope.factor, rope.mscale) / _yarn_scale(rope.factor, rope.mscale_all_dim)
    return _yarn_scale(rope.factor, 1.0)


def _yarn_scale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _original(rope: RopeConfig) -> int:
    assert rope.original_max_position is not None, f"{rope.kind} without original_max_position"
    return rope.original_max_position


def _powers(base: np.ndarray | np.float32, head_dim: int) -> np.ndarray:
    """base ** (2 * pair / head_dim) for every pair, float32 [..., head_dim / 2]; base is one, or [n, 1]."""
    return _power(base, np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim))


def _power(base: np.ndarray | np.float32, exponent: np.ndarray | np.float32) -> np.ndarray:
    return np.power(np.asarray(base, np.float64), np.asarray(exponent, np.float64)).astype(np.float32)
