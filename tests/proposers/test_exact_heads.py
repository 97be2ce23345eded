"""Heads that are never wrong: every candidate that is judged has to be accepted, and the text is plain decoding's.

A bad draft never shows in a text, only here. Run: pytest tests/proposers/test_exact_heads.py
"""

import pytest
from support.engines import build, run
from support.exact_heads import exact_eagle1, exact_eagle3, exact_medusa, full_table
from support.head_checkpoints import write_authors, write_medusa, write_speculators
from support.table_model import table_checkpoint

VOCAB, NUM_TOKENS = 48, 200
NEXT = {token: (5 * token + 3) % VOCAB for token in range(VOCAB)}
PROMPTS = ([1, 2, 3], [7], list(range(40)))
HEADS = {
    "eagle1-token": lambda folder, table: write_authors(folder, exact_eagle1(table)),
    "eagle1-hidden": lambda folder, table: write_authors(folder, exact_eagle1(table, reads="hidden")),
    "eagle3-token": lambda folder, table: write_speculators(folder, exact_eagle3(table, (0, 1, 1))),
    "eagle3-hidden": lambda folder, table: write_speculators(
        folder, exact_eagle3(table, (0, 1, 1), reads="hidden")
    ),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    table_checkpoint(folder, NEXT, vocab=VOCAB)
    return folder


@pytest.fixture(scope="module")
def plain(target):
    return texts(target, None, NUM_TOKENS)[0]


def texts(target, speculative, num_tokens, **options):
    """The texts of all prompts, each alone, so that no request shares its nodes, and what was counted."""
    engine = build(target, speculative, max_num_seqs=2, **options)
    engine._node_budget = 64  # whatever this machine verifies cheaply
    found = [run(engine, prompt, max_tokens=num_tokens)[0] for prompt in PROMPTS]
    engine.scheduler.check()
    engine.close()
    return [sequence.tokens for sequence in found], [sequence.stats for sequence in found]


def all_judged_were_accepted(stats, k):
    for each in stats:
        assert each.candidates_by_position == each.accepted_by_position
        assert each.num_accepted == each.num_candidates > 0
        assert each.num_passes <= -(-(NUM_TOKENS - 1) // (k + 1)) + 1


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("head", HEADS)
def test_every_candidate_of_an_exact_eagle_chain_is_accepted(target, plain, tmp_path, head, k):
    folder = HEADS[head](tmp_path / "head", full_table(NEXT, VOCAB))
    speculative = {"method": "eagle", "model": folder, "num_speculative_tokens": k}
    found, stats = texts(target, speculative, NUM_TOKENS)
    assert found == plain
    all_judged_were_accepted(stats, k)


def test_a_reduced_vocabulary_that_holds_the_text_loses_nothing(target, plain, tmp_path):
    used = sorted({token for tokens in plain for token in tokens})
    head = exact_eagle3(full_table(NEXT, VOCAB), (0, 1, 1), reads="hidden", draft_ids=used)
    folder = write_speculators(tmp_path / "head", head)
    found, stats = texts(
        target, {"method": "eagle3", "model": folder, "num_speculative_tokens": 4}, NUM_TOKENS
    )
    assert found == plain
    all_judged_were_accepted(stats, 4)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_every_candidate_of_exact_medusa_heads_is_accepted(target, plain, tmp_path, k):
    folder = write_medusa(tmp_path / "heads", exact_medusa(full_table(NEXT, VOCAB)))
    speculative = {"method": "medusa", "model": folder, "num_speculative_tokens": k}
    found, stats = texts(target, speculative, NUM_TOKENS)
    assert found == plain
    all_judged_were_accepted(stats, k)


@pytest.mark.parametrize("method", ["eagle", "medusa"])
def test_in_a_tree_the_right_path_is_accepted_to_its_end(target, plain, tmp_path, method):
    table = full_table(NEXT, VOCAB)
    write = {
        "eagle": lambda: write_authors(tmp_path / "head", exact_eagle1(table, reads="hidden")),
        "medusa": lambda: write_medusa(tmp_path / "head", exact_medusa(table)),
    }
    speculative = {"method": method, "model": write[method](), "draft_top_k": 2}
    found, stats = texts(target, {**speculative, "num_speculative_tokens": 7, "draft_depth": 3}, NUM_TOKENS)
    assert found == plain
    assert all(each.candidates_by_position == each.accepted_by_position for each in stats)
