"""Faults of acceptance, planted behind the kernels: bonus tokens that should have been other ones."""

import numpy as np
from support.acceptance_decoding import Fault, Round
from support.acceptance_target import Target

from tspec.core.noise import ACCEPT, uniform


def of_the_target(verify: Round) -> np.ndarray:
    """After a refusal of what was drawn: the target's own sample."""
    rows, last = np.arange(len(verify.last)), verify.last
    return np.where(
        verify.drawn.is_sampled[rows, last] != 0, verify.found["node_tokens"][rows, last], verify.bonus
    )


def drawn_again(verify: Round) -> np.ndarray:
    """After a refusal of what was certain: a new sample of the target, which may be the refused token."""
    rows, last = np.arange(len(verify.last)), verify.last
    is_refused = (verify.drawn.is_sampled[rows, last] == 0) & _children(verify).any(1)
    other = verify.one_pass.run({**verify.inputs, "seed": verify.inputs["seed"] ^ 1})
    return np.where(is_refused, other["node_tokens"][rows, last], verify.bonus)


def of_the_residual(other: Target, seed: int) -> Fault:
    """After a refusal of what was drawn: of what the draft leaves of another target's law; of one without penalties.

    No blocks, and drafts that know all tokens. Of the right target this is no fault.
    """
    generator = np.random.default_rng(seed)
    law = np.stack([other.next([token]) for token in range(other.vocab)])

    def bonus(verify: Round) -> np.ndarray:
        rows, last = np.arange(len(verify.last)), verify.last
        p = law[verify.drawn.tokens[rows, last]]
        rest, q = p, np.exp(verify.drawn.draft_logprobs[rows, last].astype(np.float64))
        for node, is_child in enumerate(_children(verify).T):
            left = np.where(is_child[:, None], np.maximum(rest - q, 0), rest)
            rest, after = _normalised(left), q.copy()
            after[rows[is_child], verify.drawn.tokens[is_child, node]] = 0
            q = _normalised(after)
        rest = np.where(rest.sum(1, keepdims=True) > 0, rest, p)
        with np.errstate(divide="ignore"):
            drawn = (np.log(rest) + generator.gumbel(size=rest.shape)).argmax(1)
        return np.where(verify.drawn.is_sampled[rows, last] != 0, drawn, verify.bonus)

    return bonus


def ruled_out_by_nothing(bits: int) -> Fault:
    """A test whose number has so many bits, and may be 0: then it accepts the first candidate, also where p is 0."""

    def bonus(verify: Round) -> np.ndarray:
        seeds, position = verify.inputs["seed"], verify.inputs["prefix_len"].astype(np.uint64) + 1
        is_zero = uniform(seeds, position, ACCEPT, np.ones(len(seeds), int)) < 2.0**-bits
        is_refused = (verify.last == 0) & (verify.drawn.num_nodes > 1)
        return np.where(is_zero & is_refused, verify.drawn.tokens[:, 1], verify.bonus)

    return bonus


def _children(verify: Round) -> np.ndarray:
    """The candidates after the last accepted node, all of them refused: bool [n, T]."""
    drawn = verify.drawn
    is_child = drawn.parents == verify.last[:, None]
    is_child[:, 0] = False
    return is_child & (np.arange(is_child.shape[1]) < drawn.num_nodes[:, None])


def _normalised(weights: np.ndarray) -> np.ndarray:
    total = weights.sum(1, keepdims=True)
    return weights / np.where(total > 0, total, 1)
