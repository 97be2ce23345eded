"""Proposers to enumerate: each makes one proposal, and leaves its chances to `branches`. Some are wrong on purpose."""

from collections.abc import Sequence

import numpy as np
from support.acceptance import Laws, Proposal, Propose
from support.enumeration import Branches

CONFIDENCE = 0.4
"""Drafts that stop early do so at a candidate with a smaller probability."""


def as_block(propose: Propose) -> Propose:
    """Ask for block verification, which is exact for chains that are one whatever is drawn."""

    def propose_block(branches: Branches, laws: Laws) -> Proposal:
        proposal = propose(branches, laws)
        proposal.is_block = True
        return proposal

    return propose_block


def as_block_if_chain(propose: Propose) -> Propose:
    """Wrong where the shape of the tree depends on what was drawn."""

    def propose_block(branches: Branches, laws: Laws) -> Proposal:
        proposal = propose(branches, laws)
        *inner, last = proposal.laws
        is_chain = proposal.parents == list(range(-1, len(inner)))
        proposal.is_block = is_chain and all(law is not None for law in inner) and last is None
        return proposal

    return propose_block


def drawn_chain(count: int) -> Propose:
    return drawn_tree([1] * count)


def drawn_tree(widths: Sequence[int]) -> Propose:
    """Each node at depth d has up to `widths[d]` children, drawn without replacement."""

    def propose(branches: Branches, laws: Laws) -> Proposal:
        proposal = Proposal()
        level = [0]
        for width in widths:
            level = [
                child for node in level for child in _draw_children(branches, laws, proposal, node, width)
            ]
        return proposal

    return propose


def _draw_children(branches: Branches, laws: Laws, proposal: Proposal, node: int, width: int) -> list[int]:
    law = laws.q(proposal.prefix(node))
    proposal.laws[node] = law
    left, found = law.copy(), []
    while len(found) < width and left.sum() > 0:
        drawn = branches.choose(left.tolist())
        left[drawn] = 0
        found.append(proposal.add(node, laws.target_token(drawn)))
    return found


def drawn_with_replacement(draws: int, depth: int) -> Propose:
    """So many draws a node; a token that comes again is no second child."""

    def propose(branches: Branches, laws: Laws) -> Proposal:
        proposal = Proposal()
        level = [0]
        for _ in range(depth):
            level = [child for node in level for child in below(branches, laws, proposal, node)]
        return proposal

    def below(branches: Branches, laws: Laws, proposal: Proposal, node: int) -> list[int]:
        law = laws.q(proposal.prefix(node))
        proposal.laws[node] = law
        drawn = [branches.choose(law.tolist()) for _ in range(draws)]
        return [proposal.add(node, laws.target_token(each)) for each in dict.fromkeys(drawn)]

    return propose


def certain_tree(seed: int, count: int) -> Propose:
    """Tokens and places follow from the text alone: one-hot proposals, as those of n-gram lookup and of top-k trees."""

    def propose(branches: Branches, laws: Laws) -> Proposal:
        generator = np.random.default_rng(seed)
        proposal = Proposal()
        edges: set[tuple[int, int]] = set()
        for _ in range(count):
            edge = int(generator.integers(len(proposal.tokens))), int(generator.integers(laws.vocab))
            if edge not in edges:
                edges.add(edge)
                proposal.add(*edge)
        return proposal

    return propose


def mixed_tree(levels: Sequence[str], seed: int) -> Propose:
    """A level of children a letter: `d` one drawn child a node, `D` two, `c` one certain child, `C` two."""

    def propose(branches: Branches, laws: Laws) -> Proposal:
        proposal = Proposal()
        level = [0]
        for letter in levels:
            width = 1 if letter.islower() else 2
            if letter in "dD":
                grow = _draw_children
            else:
                grow = guess
            level = [child for node in level for child in grow(branches, laws, proposal, node, width)]
        return proposal

    def guess(branches: Branches, laws: Laws, proposal: Proposal, node: int, width: int) -> list[int]:
        generator = np.random.default_rng([seed, *proposal.prefix(node)])
        tokens = generator.permutation(laws.vocab)[:width].tolist()
        return [proposal.add(node, token) for token in tokens]

    return propose


def stopped_after_a_doubtful_candidate(count: int) -> Propose:
    """Whether there is a next candidate follows from those before it; the doubtful one itself is tested."""

    def propose(branches: Branches, laws: Laws) -> Proposal:
        proposal, node = Proposal(), 0
        for _ in range(count):
            law = laws.q(proposal.prefix(node))
            (child,) = _draw_children(branches, laws, proposal, node, 1)
            drawn = (
                proposal.tokens[child]
                if laws.draft_index is None
                else laws.draft_index[proposal.tokens[child]]
            )
            node = child
            if law[drawn] < CONFIDENCE:
                break
        return proposal

    return propose


def cut_at_a_doubtful_candidate(count: int, *, is_declared: bool) -> Propose:
    """The doubtful candidate is dropped. Declared: its node says what would have been kept; else it says nothing."""

    def propose(branches: Branches, laws: Laws) -> Proposal:
        proposal, node = Proposal(), 0
        for _ in range(count):
            law = laws.q(proposal.prefix(node))
            drawn = branches.choose(law.tolist())
            is_kept = law[drawn] >= CONFIDENCE
            if is_declared:
                proposal.laws[node] = np.where(law >= CONFIDENCE, law, 0)
            elif is_kept:
                proposal.laws[node] = law
            if not is_kept:
                break
            node = proposal.add(node, laws.target_token(drawn))
        return proposal

    return propose


def best_of_several(draws: int) -> Propose:
    """Wrong: of several drawn children the likeliest is kept, with the law that all were drawn from."""

    def propose(branches: Branches, laws: Laws) -> Proposal:
        proposal = Proposal()
        law = laws.q(())
        proposal.laws[0] = law
        drawn = [branches.choose(law.tolist()) for _ in range(draws)]
        proposal.add(0, laws.target_token(max(drawn, key=lambda token: law[token])))
        return proposal

    return propose
