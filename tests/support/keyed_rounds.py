"""The exact law of texts made by round after round of propose and verify, which may meet the same noise again."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from support.acceptance import Decide, Laws, Prefix, Proposal, operands
from support.enumeration import Branches, every_outcome
from support.keyed_noise import PRODUCT, VOCAB, Key, KeyedChooser, KeyedNoise, Keys, Known

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
    keys: Keys = PRODUCT
    decide_by: Decide = decide
    is_block: bool = False
    cut: float = 0.0
    is_cut_told: bool = True
    _trees: dict[tuple[Prefix, ...], DrawnTree] = field(default_factory=dict)

    def law(self, length: int) -> np.ndarray:
        """The joint law of the first `length` tokens, [V] * length; as many rounds as it takes."""
        law = np.zeros((VOCAB,) * length)
        waiting: dict[Prefix, Counter[frozenset]] = {(): Counter({frozenset(): 1.0})}
        while waiting:
            text = min(waiting, key=len)
            for known, chance in waiting.pop(text).items():
                for part, (longer, found) in self._rounds(text, dict(known)):
                    if len(longer) >= length:
                        law[longer[:length]] += chance * part
                    else:
                        waiting.setdefault(longer, Counter())[frozenset(found.items())] += chance * part
        return law

    def _rounds(self, text: Prefix, known: Known) -> Iterator[tuple[float, tuple[Prefix, Known]]]:
        """Each way that one more round may go: its probability, and what `_round` returns."""
        return every_outcome(lambda branches: self._round(branches, text, dict(known)))

    def _round(self, branches: Branches, text: Prefix, known: Known) -> tuple[Prefix, Known]:
        """The text after one more round, and what is known of noise that may be asked again: that of later places."""
        noise, root = KeyedNoise(branches, known), len(text)
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

    def _draw(
        self, noise: KeyedNoise, laws: Laws, proposal: Proposal, node: int, key: Key, width: int
    ) -> list[int]:
        """Children of a node: Gumbel-max by the draft's own ids, with noise that all nodes of a level share."""
        law = laws.q(proposal.prefix(node))
        proposal.laws[node] = np.where(law >= self.cut, law, 0.0) if self.is_cut_told else law
        left, children = np.pad(law, (0, VOCAB - len(law))), []
        while len(children) < width and left.sum() > 0:
            drawn = noise.choose(key, left.tolist())
            if left[drawn] < self.cut:
                proposal.laws[node] = proposal.laws[node] if self.is_cut_told else None
                break
            left[drawn] = 0
            children.append(proposal.add(node, laws.target_token(drawn)))
        return children

    def _tree(self, text: Prefix, laws: Laws, proposal: Proposal) -> DrawnTree:
        """As the op reads it; the same proposals come often."""
        name = text, tuple(proposal.tokens), tuple(proposal.parents)
        if name not in self._trees:
            read = drawn_tree(0, *operands(laws, proposal))
            self._trees[name] = replace(read, p=cache(read.p), q=cache(read.q))
        return self._trees[name]
