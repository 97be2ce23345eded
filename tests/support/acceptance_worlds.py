"""Targets and drafts whose texts are held against their law: parameters alone, together and by chance."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st
from support.acceptance_decoding import Decoder
from support.acceptance_drafts import Draft
from support.acceptance_noise import coupled_noise, fresh_noise, keyed_noise, no_noise
from support.acceptance_target import DEAD, ROOT, Target
from support.text_law import surprise

VOCAB, LENGTH, TEXTS = 6, 3, 67_000
"""A case draws 201,000 tokens."""

LARGE, LIVE = 67, (ROOT, 15, 40, 63, 64, 66)
"""A vocabulary of a block of the kernels and a little more, and the tokens of it that ever come."""

WRONG = (3, 31, 50, 65)
"""Others, which a draft guesses all the same."""

TREE, SMALL_TREE, CHAIN = (2, 2), (2, 1), (1, 1, 1)
"""Children of each node, by depth."""

FEW = (3, ROOT, 1)
"""Tokens that a draft knows, in its own order."""

MODES = {
    "match, a tree": ("match", {"widths": SMALL_TREE}),
    "match, a chain of the target's own noise": ("match", {"widths": CHAIN, "noise": coupled_noise}),
    "match, a tree of the target's own noise": ("match", {"widths": SMALL_TREE, "noise": coupled_noise}),
    "match, the draft's likeliest tokens": ("match", {"widths": SMALL_TREE, "noise": no_noise}),
    "ratio, a chain": ("ratio", {"widths": CHAIN, "noise": keyed_noise}),
    "ratio, a block": ("ratio", {"widths": CHAIN, "noise": keyed_noise, "is_block": True}),
    "ratio, a tree": ("ratio", {"widths": TREE}),
    "ratio, siblings alone": ("ratio", {"widths": (4,)}),
    "ratio, siblings drawn with replacement": ("ratio", {"widths": SMALL_TREE, "is_replaced": True}),
    "ratio, a tree of certain candidates": ("ratio", {"widths": SMALL_TREE, "certain": (1, 2)}),
    "ratio, drawn candidates, then certain ones": ("ratio", {"widths": SMALL_TREE, "certain": (2,)}),
    "ratio, certain candidates, then drawn ones": ("ratio", {"widths": SMALL_TREE, "certain": (1,)}),
    "ratio, a chain cut where it is doubtful": ("ratio", {"widths": CHAIN, "cut": 0.2}),
    "ratio, a block cut where it is doubtful": ("ratio", {"widths": CHAIN, "cut": 0.2, "is_block": True}),
    "ratio, a tree of a draft that knows fewer tokens": ("ratio", {"widths": SMALL_TREE, "known": FEW}),
    "ratio, a block of a draft that knows fewer tokens": (
        "ratio",
        {"widths": CHAIN, "known": FEW, "is_block": True},
    ),
}
"""Acceptance, and what the draft is like."""

ALONE: dict[str, Mapping[str, Any]] = {
    "temperature": {"temperature": 0.5},
    "top-k": {"top_k": 3},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.1},
    "repetition penalty": {"penalties": (1.3, 0.0, 0.0)},
    "presence penalty": {"penalties": (1.0, 0.6, 0.0)},
    "frequency penalty": {"penalties": (1.0, 0.0, 0.5)},
    "bias": {"has_bias": True},
    "mask": {"has_mask": True},
}
TOGETHER: Mapping[str, Any] = {
    "temperature": 1.2,
    "top_k": 4,
    "top_p": 0.95,
    "min_p": 0.03,
    "penalties": (1.2, 0.3, 0.4),
    "has_bias": True,
    "has_mask": True,
}
parameters = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from((1.0, 0.5, 0.8, 1.7)),
        "top_k": st.sampled_from((0, 2, 3, 5)),
        "top_p": st.sampled_from((1.0, 0.7, 0.85, 0.95)),
        "min_p": st.sampled_from((0.0, 0.02, 0.05, 0.15)),
        "penalties": st.sampled_from(((1, 0, 0), (1.3, 0, 0), (1, 0.6, 0), (1, 0, 0.5), (0.8, -0.4, 0.7))),
        "has_bias": st.booleans(),
        "has_mask": st.booleans(),
    }
)
"""Every parameter, each off in some cases."""


def target(seed: int, *, vocab: int = VOCAB, **asked: Any) -> Target:
    """A target, and what is asked of it: parameters by name, has_bias and has_mask for some bias and mask."""
    generator = np.random.default_rng(seed)
    live = np.array(LIVE) if vocab == LARGE else np.arange(vocab)
    logits = np.full((vocab, vocab), DEAD)
    logits[np.ix_(live, live)] = 1.2 * generator.normal(size=(len(live), len(live)))
    bias, allowed = 0.7 * generator.normal(size=vocab), generator.random((vocab, vocab)) < 0.8
    allowed[:, ROOT] = True
    given = dict(asked)
    has_bias, has_mask = given.pop("has_bias", False), given.pop("has_mask", False)
    return Target(
        logits.astype(np.float32),
        bias=bias if has_bias else None,
        allowed=allowed if has_mask else None,
        **given,
    )


def rich_target(seed: int, least: float, **asked: Any) -> tuple[int, Target, np.ndarray]:
    """The first of 20 seeds whose target's texts are as uncertain as `least` equally likely ones; it, and their law."""
    for number in range(seed, seed + 20):
        model = target(number, **asked)
        law = model.law(LENGTH)
        if np.exp(-(law * np.log(np.maximum(law, 1e-300))).sum()) >= least:
            break
    return number, model, law


def draft(seed: int, beside: Target, spread: float = 1.0, **settings: Any) -> Draft:
    """A draft that is near a target, or not; of a large vocabulary it also guesses tokens that never come."""
    logits, known = beside.logits.copy(), settings.get("known")
    if beside.vocab == LARGE:
        logits[:, list(WRONG)] = -1.5
    logits = logits + spread * np.random.default_rng([seed, 1]).normal(size=logits.shape)
    logits = logits if known is None else logits[:, list(known)]
    return Draft(logits.astype(np.float32), **{"noise": fresh_noise(seed + 2)} | settings)


def texts_of(decoder: Decoder) -> np.ndarray:
    """The texts of a case, as numbers of live tokens: int [TEXTS, LENGTH]."""
    return decoder.target.places(decoder.decode(TEXTS, LENGTH, seed=1))


def surprise_of(decoder: Decoder) -> float:
    """How far the texts of a case are from their law."""
    return surprise(texts_of(decoder), decoder.target.law(LENGTH))
