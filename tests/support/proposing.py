"""One sequence at a time through a proposer, in plain lists."""

import numpy as np

from tspec.core.proposer import Committed, DraftBatch
from tspec.core.speculative_config import SpeculativeConfig
from tspec.proposers.ngram import NgramProposer
from tspec.proposers.suffix import SuffixProposer

ANY = 64


def int32(*values):
    return np.array(values, dtype=np.int32)


def ngram_proposer(minimum=2, maximum=6, count=5, occurrence="latest", *, grows_with_match=True):
    config = SpeculativeConfig(
        "ngram",
        num_speculative_tokens=count,
        prompt_lookup_min=minimum,
        prompt_lookup_max=maximum,
        occurrence=occurrence,
    )
    return NgramProposer(config, grows_with_match=grows_with_match)


def candidates_after(prompt, max_nodes=ANY, *, of=None, slot=0):
    """Admit the prompt and return the one row's candidates."""
    of = of or ngram_proposer()
    of.admit(slot, int32(*prompt))
    return ask(of, slot, prompt[-1], max_nodes)


def ask(of, slot, root, max_nodes=ANY):
    trees = of.propose(DraftBatch(int32(slot), int32(root), int32(max_nodes)))
    trees.check()
    assert trees.tokens[0, 0] == root
    return trees.tokens[0, 1 : trees.num_nodes[0]].tolist()


def tell(of, slot, *tokens):
    of.observe(Committed(int32(slot), int32(*tokens)[None], int32(len(tokens)), int32(len(tokens) - 1)))


def decode_greedily(of, prompt, output):
    """Verify against a target that says `output`; return the text, candidates judged and accepted."""
    of.admit(0, int32(*prompt, output[0]))
    emitted, judged, accepted = [output[0]], 0, 0
    while len(emitted) < len(output):
        candidates = ask(of, 0, emitted[-1], len(output) - len(emitted))
        wanted = output[len(emitted) :]
        agreeing = [one == other for one, other in zip(candidates, wanted, strict=False)]
        num_accepted = [*agreeing, False].index(False)
        judged, accepted = judged + len(candidates), accepted + num_accepted
        tell(of, 0, *wanted[: num_accepted + 1])
        emitted += wanted[: num_accepted + 1]
    return emitted, judged, accepted


def suffix_proposer(max_candidates=8, **options):
    return SuffixProposer(SpeculativeConfig("ngram"), max_candidates=max_candidates, **options)


def ask_tree(of, slot, root, max_nodes=ANY):
    """The one row's candidates as paths from the root: {(token, …): evidence}."""
    trees = of.propose(DraftBatch(int32(slot), int32(root), int32(max_nodes)))
    trees.check()
    paths = [()]
    for node in range(1, trees.num_nodes[0]):
        paths.append((*paths[trees.parents[0, node]], int(trees.tokens[0, node])))
    return {path: int(trees.evidence[0, node]) for node, path in enumerate(paths) if node}
