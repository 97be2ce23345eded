"""The exact law of texts that are made by rounds of propose and verify alone, with noise that comes again where it does."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from support.acceptance import Decide, Laws, Prefix, Proposal, operands
from support.enumeration import Branches, every_outcome
from support.keyed_noise import VOCAB, KeyedChooser, KeyedNoise, Keys, Known

from tspec.kernels.reference.accept_ratio import DrawnTree, decide, drawn_tree


@dataclass(frozen=True)
class Rounds:
    """How texts come about, from laws over three tokens.

    widths      children of each node at each depth, drawn without replacement
    is_block    asks for block verification
    cut         drops a draw of less probability than this, and stops; chains only
    is_cut_told  False is a fault where draws are tested by ratio: nothing is said of dropped draws
    """

    laws: Laws
    widths: Sequence[int]
    keys: Keys = Keys()
    decide_by: Decide = decide
    is_block: bool = False
    cut: float = 0.0
    is_cut_told: bool = True
    _trees: dict[tuple[Prefix, ...], DrawnTree] = field(default_factory=dict)

    def law(self, length: int) -> np.ndarray:
        """The joint law of the first `length` tokens, [V] * length; as many rounds as it takes."""
        law = np.zeros((VOCAB,) * length)
        chances: dict[Prefix, dict[bytes, tuple[float, Known]]] = {(): {b"": (1.0, {})}}
        while chances:
            text = min(chances, key=len)
            for chance, known in chances.pop(text).values():
                for part, (tokens, found) in every_outcome(
                    lambda branches, text=text, known=known: self._round(branches, text, known)
                ):
                    if len(tokens) >= length:
                        law[tokens[:length]] += chance * part
                        continue
                    same = chances.setdefault(tokens, {})
                    before, _ = same.get(_name(found), (0.0, found))
                    same[_name(found)] = before + chance * part, found
        return law

    def _round(self, branches: Branches, text: Prefix, known: Known) -> tuple[Prefix, Known]:
        """The text after one more round, and what is known of noise that may be asked again: that of later places."""
        noise, root = KeyedNoise(branches, dict(known)), len(text)
        laws = replace(
            self.laws,
            p=lambda prefix: self.laws.p((*text, *prefix)),
            q=lambda prefix: self.laws.q((*text, *prefix)),
        )
        proposal = self._propose(noise, laws, root)
        tree = self._tree(text, laws, proposal)
        depth = [len(proposal.prefix(node)) for node in range(len(proposal.tokens))]
        path, bonus = self.decide_by(tree, KeyedChooser(noise, self.keys, root, depth, tree))
        text = (*text, *(tree.tokens[node] for node in path), bonus)
        return text, {key: cell for key, cell in noise.known.items() if key[0] > len(text)}

    def _propose(self, noise: KeyedNoise, laws: Laws, root: int) -> Proposal:
        proposal = Proposal(is_block=self.is_block)
        level = [0]
        for depth, width in enumerate(self.widths, start=1):
            key = self.keys.draft(root, depth)
            level = [child for node in level for child in self._draw(noise, laws, proposal, node, key, width)]
        return proposal

    def _draw(self, noise, laws, proposal, node, key, width) -> list[int]:
        """Children of a node: the first tokens of Gumbel-max, by noise that all nodes of a level share."""
        law = laws.q(proposal.prefix(node))
        index = np.arange(VOCAB) if laws.draft_index is None else laws.draft_index
        left, children = np.where(index >= 0, law[index], 0.0), []
        if self.is_cut_told:
            proposal.laws[node] = np.where(law >= self.cut, law, 0.0)
        while len(children) < width and left.sum() > 0:
            token = noise.choose(key, left.tolist())
            if left[token] < self.cut:
                break
            proposal.laws[node] = proposal.laws[node] if self.is_cut_told else law
            left[token] = 0
            children.append(proposal.add(node, token))
        return children

    def _tree(self, text: Prefix, laws: Laws, proposal: Proposal) -> DrawnTree:
        """As the op reads it; the same proposals come often."""
        name = text, tuple(proposal.tokens), tuple(proposal.parents)
        if name not in self._trees:
            read = drawn_tree(0, *operands(laws, proposal))
            self._trees[name] = replace(read, p=cache(read.p), q=cache(read.q))
        return self._trees[name]


def _name(known: Known) -> bytes:
    return b"".join(repr(key).encode() + known[key].tobytes() for key in sorted(known))
