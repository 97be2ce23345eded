"""Laws of a target and a draft that depend on the whole prefix, for small vocabularies."""

from functools import cache

import numpy as np
from hypothesis import strategies as st
from support.acceptance import LawAfter, Laws, Prefix


def drawn_laws(data: st.DataObject, vocab: int, draft_vocab: int | None) -> Laws:
    """Small whole weights, so that zeros and equal probabilities come often; drawn as they are asked for."""
    index = None
    if draft_vocab is not None:
        places = [*range(draft_vocab), *[-1] * (vocab - draft_vocab)]
        index = np.array(data.draw(st.permutations(places), label="draft_index"))
    return Laws(vocab, _weights(data, "p", vocab), _weights(data, "q", draft_vocab or vocab), index)


def _weights(data: st.DataObject, name: str, count: int) -> LawAfter:
    weights = st.lists(st.integers(0, 6), min_size=count, max_size=count).filter(any)

    @cache
    def law(prefix: Prefix) -> np.ndarray:
        found = np.array(data.draw(weights, label=f"{name} after {prefix}"), dtype=np.float64)
        return found / found.sum()

    return law


def random_laws(seed: int, vocab: int) -> Laws:
    """Every token is possible after every prefix."""

    def after(name: int) -> LawAfter:
        return cache(lambda prefix: np.random.default_rng([seed, name, *prefix]).dirichlet(np.ones(vocab)))

    return Laws(vocab, after(0), after(1))
