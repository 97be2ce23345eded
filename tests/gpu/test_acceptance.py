"""Acceptance by ratio on the device: verdicts are those of the float64 reference, and texts have the target's law.

Texts come from passes as engines run them, with logits that are looked up: see support/acceptance_decoding.py. Each
case draws 210,000 tokens, 70,000 texts of three, and is held against the law of the texts by the bound of
support/text_law.py. Planted faults have to exceed it. In the interpreter there are few texts,
which say nothing of a law: one case and one fault show that the code runs, and that a fault can be seen.

Run: pytest tests/gpu/test_acceptance.py -m gpu
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from support.acceptance_cases import Draft as Candidates
from support.acceptance_decoding import Decoder
from support.acceptance_drafts import Draft
from support.acceptance_edges import EDGE_NODE, EDGES, ONLY_0, ONLY_1, two_candidates
from support.acceptance_faults import of_the_target
from support.acceptance_noise import fresh_noise, keyed_noise
from support.acceptance_target import Target
from support.cuda_sampling import assert_judged
from support.device_tables import DeviceTablePass
from support.text_law import ALARM, assert_law, surprise

pytestmark = pytest.mark.gpu

VOCAB, LENGTH, TEXTS, FEW_TEXTS = 5, 3, 70_000, 3

TREE, CHAIN = (2, 2), (1, 1, 1)
FORMS = {
    "a chain": {"widths": CHAIN, "noise": keyed_noise},
    "a block": {"widths": CHAIN, "noise": keyed_noise, "is_block": True},
    "a tree": {"widths": TREE},
}
FAULTS = {
    "the least likely tokens, said to be drawn": (
        {},
        {"widths": CHAIN, "is_block": True, "temperature": -0.02, "told_temperature": 1.0},
    ),
    "the residual is p": ({"fault": of_the_target}, {"widths": CHAIN}),
    "penalties count only what is committed": ({"is_path_counted": False}, {"widths": TREE}),
}
"""What of the decoder is broken, and of the draft."""


@pytest.mark.parametrize("known", [None, 0.25], ids=["all tokens", "a quarter of them"])
@pytest.mark.parametrize("is_block", [False, True], ids=["trees", "blocks"])
def test_drawn_candidates_are_judged_as_the_reference_judges_them(device, is_small, is_block, known):
    """Certain children beside drawn ones, greedy rows, filters, siblings, draws that were dropped."""
    vocab, counts = (70, (6, 4, 1)) if is_small else (32003, (9, 4, 1, 5))
    for seed, spread in enumerate((0.3,) if is_small else (0.3, 1.0)):
        draft_vocab = None if known is None else int(known * vocab)
        form = {"is_block": is_block, "spread": spread, "dropped": 0.3, "draft_vocab": draft_vocab}
        assert_judged(Candidates(counts, vocab, seed, **form).operands(), device)


def test_a_chain_of_64_drawn_candidates_is_judged_as_the_reference_judges_it(device, is_small):
    count = 12 if is_small else 64
    for is_block in (False, True):
        draft = Candidates((count,), 1009, 6, is_block, (1.0,), spread=0.02, certain=0.0)
        _, num_out, _ = assert_judged(draft.operands(), device)
        assert num_out.item() > 2


@pytest.mark.parametrize("form", ["chain", "block"])
def test_the_smallest_and_the_largest_number_are_judged_as_they_should(device, form):
    for seed, logits, is_accepted in EDGES:
        found = two_candidates(form, [ONLY_0, logits, ONLY_0], [ONLY_0, ONLY_1, ONLY_1], [seed])
        _, _, path = assert_judged(found, device)
        assert (EDGE_NODE in path) == is_accepted


def texts_and_law(device, arch, is_small, draft, **broken):
    """Texts of a target that has a filter and edits, and its law."""
    generator = np.random.default_rng(0)
    table = (1.5 * generator.normal(size=(VOCAB, VOCAB))).astype(np.float32)
    logits, target = table + generator.normal(size=(VOCAB, VOCAB)), Target(table)
    if "told_temperature" in draft:
        logits = table
    else:
        target = replace(target, temperature=0.8, top_p=0.97, penalties=(1.3, 0.5, 0.4))
    decoder = Decoder(
        target,
        Draft(logits, **{"noise": fresh_noise(2)} | draft),
        make_pass=partial(DeviceTablePass, device=device, arch=arch),
        rows=FEW_TEXTS if is_small else TEXTS // 4,
        **broken,
    )
    count = FEW_TEXTS if is_small else TEXTS
    return decoder.decode(count, LENGTH, seed=1), target.law(LENGTH)


@pytest.mark.parametrize("form", FORMS)
def test_texts_follow_the_law_of_plain_decoding(device, arch, is_small, form):
    if is_small and form != "a block":
        pytest.skip("more than the interpreter runs in a blink")
    assert_law(*texts_and_law(device, arch, is_small, FORMS[form]))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_law_is_caught(device, arch, is_small, fault):
    broken, draft = FAULTS[fault]
    if is_small and broken:
        pytest.skip("more texts than the interpreter runs in a blink")
    assert surprise(*texts_and_law(device, arch, is_small, draft, **broken)) > ALARM
