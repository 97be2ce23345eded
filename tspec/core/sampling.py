"""Names and codes that the host, the graph and the kernels of sampling agree on."""

from dataclasses import dataclass

NO_TOKEN = -1
"""Stands for a token where there is none: no logit was a number above minus infinity."""

EDIT_BIAS, EDIT_PENALTIES, EDIT_MASK = 1, 2, 4
"""Bits of a request's `edits`: which of its tables the logits go through."""

DRAWN, DRAWN_CHAIN = 1, 2
"""Values of `is_sampled` where a node's children were drawn. The second on every such node of a row whose proposer
draws one child a node at most, whatever comes out: the row is then verified as a block. The shape of a tree does not
tell: where it is a chain only for some of the tokens that might have been drawn, block verification is not exact.
"""

SAMPLING = FUSED, FILTERED, EDITED = ("fused", "filtered", "edited")
"""What happens to the logits before a token is chosen, each with all before it:

fused     divided by the temperature, inside the head's product: logits are never written
filtered  top-k, top-p and min-p; log-probabilities come out too
edited    bias, penalties and masks of each request, before the rest
"""


def pass_kind(head: str, sampling: str) -> str:
    """Name of the pass that ends in `head` and chooses tokens by `sampling`: "all", "last_filtered"."""
    return head if sampling == FUSED else f"{head}_{sampling}"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one place of a text, before temperature, filters and edits.

    logprob  of `token_id`, the token that stands there
    top      (token id, log-probability) of the likeliest ones, best first, as many as were asked for
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
