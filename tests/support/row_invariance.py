"""Logits of one text by plain decoding, and by every other way to compute them, compared bit by bit."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from support.compiled_target import CompiledTarget

from tspec.core.tree import CandidateTrees


@dataclass(frozen=True, slots=True)
class Decoded:
    """A target, a text, and the logits [len(text), V] after each of its tokens, decoded one a pass."""

    target: CompiledTarget
    text: list[int]
    logits: np.ndarray


def decode(target: CompiledTarget, text: Sequence[int]) -> Decoded:
    return Decoded(target, list(text), target.plain(text))


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal as integers: 0 and -0 differ, and a NaN would equal itself."""
    assert np.isfinite(expected).all()
    different = (found.view(np.uint32) != expected.view(np.uint32)).any(axis=-1)
    assert not different.any(), f"rows {np.flatnonzero(different).tolist()} differ"


def assert_tree_is_invariant(decoded: Decoded, start: int, tokens: np.ndarray, parents: np.ndarray) -> None:
    """Each node of a tree after text[:start] against plain decoding of its own path."""
    prefix = decoded.text[:start]
    trees = CandidateTrees(tokens[None], parents[None], np.array([len(tokens)], np.int32))
    (found,) = decoded.target.verify([prefix], trees)
    for node in range(len(tokens)):
        path = [int(tokens[each]) for each in line_to(parents, node)]
        alone = decoded.target.ingest(prefix + path, chunk=1, start=start)
        assert_same_bits(found[node], alone[-1])


def line_to(parents: np.ndarray, node: int) -> list[int]:
    """The nodes from the root to `node`."""
    line = []
    while node >= 0:
        line.append(node)
        node = int(parents[node])
    return line[::-1]
