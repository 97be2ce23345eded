"""A draft that is the target, or a head that is right by construction: every candidate that is judged is accepted.

Bad drafts never show in the text, only here. The same for drafts that fall behind and catch up.

Run: pytest tests/runtime/test_exact_drafts.py
"""

import tracemalloc

import numpy as np
import pytest
from support.draft_worlds import (
    MAX_POSITION,
    TABLE_AUX,
    TABLE_VOCAB,
    noisy_copy,
    random_target,
    shuffled_table,
)
from support.engines import build, finish, num_held, outputs, run, with_proposer, with_room
from support.exact_heads import exact_eagle1, exact_eagle3, exact_medusa
from support.head_checkpoints import write_authors, write_medusa, write_speculators
from support.shadow import Witness
from support.table_model import table_checkpoint

from tspec.core.sampling_params import SamplingParams

DEPTHS = range(1, 9)
NUM_TOKENS = 200
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
NOTHING = {"blocks": 0, "running": 0, "waiting": 0}

DRAFTS = ("itself", "eagle1", "eagle3", "medusa")
"""Other heads that are right by construction: tests/proposers/test_exact_heads.py."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Targets, and drafts that are never wrong about them."""
    folder = tmp_path_factory.mktemp("exact")
    target, table = folder / "llama", shuffled_table()
    model = random_target(target, layers=1)
    table_checkpoint(folder / "table", dict(enumerate(table)), vocab=TABLE_VOCAB, max_position=MAX_POSITION)
    return {
        "llama": target,
        "itself": target,
        "table": folder / "table",
        "noisy": noisy_copy(model, folder / "noisy"),
        "eagle1": write_authors(folder / "eagle1", exact_eagle1(table, reads="hidden")),
        "eagle3": write_speculators(folder / "eagle3", exact_eagle3(table, TABLE_AUX, reads="hidden")),
        "medusa": write_medusa(folder / "medusa", exact_medusa(table, num_heads=8)),
    }


def build_with(folders, draft, **options):
    target = "llama" if draft in ("itself", "noisy") else "table"
    method = {"itself": "draft_model", "noisy": "draft_model", "medusa": "medusa"}.get(draft, "eagle")
    config = {"method": method, "model": folders[draft], "num_speculative_tokens": 8} | options
    return build(folders[target], config)


@pytest.fixture(scope="module", params=DRAFTS)
def exact(request, folders):
    built = build_with(folders, request.param)
    yield with_room(built)
    built.close()


@pytest.fixture(scope="module")
def itself(folders):
    built = build_with(folders, "itself")
    yield with_room(built)
    built.close()


def check_all_accepted(sequence, most):
    """Rounds of `most` candidates and the bonus token; the last one may have fewer. Prefill gave the first token."""
    stats = sequence.stats
    assert stats.num_accepted == stats.num_candidates > 0
    assert stats.num_passes == -(-(sequence.num_output - 1) // (most + 1))
    assert max(stats.candidates_by_position) == stats.num_drafts


@pytest.mark.parametrize("most", DEPTHS)
def test_every_candidate_is_accepted(itself, most):
    (sequence,) = run(itself, PROMPT, max_tokens=NUM_TOKENS, speculative=most)
    check_all_accepted(sequence, most)


def test_every_candidate_is_accepted_beside_requests_of_other_depths(exact):
    prompts = [[first, *PROMPT] for first in DEPTHS]
    sequences = [
        exact.add(prompt, SamplingParams(max_tokens=NUM_TOKENS, speculative=most))
        for prompt, most in zip(prompts, DEPTHS, strict=True)
    ]
    finish(exact)
    for sequence, most in zip(sequences, DEPTHS, strict=True):
        check_all_accepted(sequence, most)


@pytest.mark.parametrize("most", [1, 3, 8])
def test_an_engine_of_so_many_candidates_gives_so_many(folders, most):
    engine = build_with(folders, "itself", num_speculative_tokens=most)
    (sequence,) = run(with_room(engine), PROMPT, max_tokens=NUM_TOKENS)
    check_all_accepted(sequence, most)
    engine.close()


@pytest.mark.parametrize("acceptance", ["match", "ratio", "auto"])
def test_every_draw_of_a_draft_that_is_the_target_is_accepted(folders, acceptance):
    drawn = {"draft_sample_method": "probabilistic", "acceptance": acceptance}
    engine = build_with(folders, "itself", num_speculative_tokens=4, **drawn)
    wide = with_room(engine)
    sequences = [
        wide.add(PROMPT, SamplingParams(max_tokens=NUM_TOKENS, temperature=temperature, seed=seed))
        for seed, temperature in enumerate((0.7, 1.0, 1.7, 0.0))
    ]
    finish(wide)
    for sequence in sequences:
        check_all_accepted(sequence, 4)
    assert len({tuple(each) for each in outputs(sequences)}) == 4
    engine.close()


def accepted_nodes(proposal, text):
    """The path of a proposal that a text takes."""
    node, path = 0, []
    for token in text[len(proposal.text) :]:
        edges = list(enumerate(proposal.nodes, start=1))
        below = [child for child, edge in edges if edge == (node, token)]
        if not below:
            break
        node = below[0]
        path.append(node)
    return path


def test_in_a_tree_of_the_target_only_leaves_are_followed_by_what_was_not_proposed(folders):
    """The target's next token is the likeliest child of each node: it is there if the node has any."""
    engine = build_with(folders, "itself", num_speculative_tokens=12, draft_top_k=3, draft_depth=4)
    witness = Witness(engine.proposer)
    wide = with_proposer(engine, witness, max_candidates=12, node_budget=512)
    sequences = run(wide, *([first, *PROMPT] for first in range(4)), max_tokens=NUM_TOKENS)
    texts = [each.tokens for each in sequences]
    lengths = set()
    for proposal in witness.proposals:
        (text,) = (each for each in texts if tuple(each[: len(proposal.text)]) == proposal.text)
        path = accepted_nodes(proposal, text)
        last = path[-1] if path else 0
        is_cut = len(proposal.text) + len(path) + 1 >= len(text)
        assert is_cut or last not in [parent for parent, _ in proposal.nodes]
        lengths.add(len(path))
    assert lengths >= {2, 3, 4}
    engine.close()


def test_a_noisy_draft_is_accepted_as_often_at_the_end_of_a_text_as_at_its_start(folders):
    """A cache that drifts from the text would be accepted less and less."""
    engine = build_with(folders, "noisy", num_speculative_tokens=4)
    witness = Witness(engine.proposer)
    wide = with_proposer(engine, witness, max_candidates=4, node_budget=512)
    prompts = [[first, *PROMPT] for first in range(8)]
    sequences = run(wide, *prompts, max_tokens=400)
    judged, accepted = np.zeros(4), np.zeros(4)
    for proposal in witness.proposals:
        (text,) = (each.tokens for each in sequences if each.tokens[0] == proposal.text[0])
        quarter = (len(proposal.text) - len(prompts[0]) - 1) * 4 // 400
        path = accepted_nodes(proposal, text)
        judged[quarter] += min(len(path) + 1, len(proposal.nodes))
        accepted[quarter] += len(path)
    rate = accepted / judged
    noise = np.sqrt((rate * (1 - rate) / judged)[[0, -1]].sum())
    assert 0.2 < rate[0] < 0.9
    assert rate[-1] > rate[0] - 3 * noise
    engine.close()


def grow_and_shrink(engine):
    """One request, joined by so many others for a while that nobody may have a candidate."""
    long = engine.add(PROMPT, SamplingParams(max_tokens=NUM_TOKENS))
    while long.num_output < 40:
        engine.step()
    others = [engine.add([first], SamplingParams(max_tokens=30)) for first in range(7)]
    passes = long.stats.num_passes
    while not all(each.finish_reason for each in others):
        engine.step()
    finish(engine)
    return long, passes


def test_after_a_crowd_a_draft_that_is_the_target_is_accepted_as_before(itself):
    engine = with_room(itself, node_budget=8)
    long, passes_before = grow_and_shrink(engine)
    stats = long.stats
    assert stats.num_accepted == stats.num_candidates
    silent = stats.num_passes - stats.num_drafts
    assert silent >= 28
    assert passes_before <= 6
    left = long.num_output - 1 - silent
    assert stats.num_drafts <= left / 8 + 3  # rounds of eight, but where the batch changes and at the end


def test_requests_without_speculation_stay_beside_and_behind_those_with_it(itself):
    """The same prompt, off and on in turn: what one leaves in shared blocks is right for the next."""
    prompt = [*PROMPT, *range(100)]
    for speculative in ("off", 8, "off", 8):
        (sequence,) = run(itself, prompt, max_tokens=NUM_TOKENS, speculative=speculative)
        if speculative == "off":
            assert sequence.stats.num_candidates == 0
        else:
            check_all_accepted(sequence, 8)
    assert sequence.stats.num_reused > 0


def test_memory_is_flat_while_speculation_goes_off_and_on(itself):
    engine = with_room(itself, node_budget=8)
    for _ in range(2):
        grow_and_shrink(engine)
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(6):
            grow_and_shrink(engine)
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[-1] - sizes[1] < 32 << 10, sizes
    assert num_held(engine) == NOTHING
    assert (engine.proposer._texts, engine.proposer._cached) == ({}, {})
