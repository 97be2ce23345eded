"""How a union decides, on texts that are known and costs that are given: no clock, no model.

Run: pytest tests/proposers/test_controller.py
"""

from dataclasses import replace

import numpy as np
import pytest
from support.predicted_decoding import (
    MEASURED,
    Decoding,
    auto,
    contradicts,
    decode,
    says,
    seconds_a_token,
    speed_up,
)
from support.proposing import int32

from tspec.core.pass_costs import PassCosts
from tspec.core.proposer import Committed, DraftBatch
from tspec.core.tree import CandidateTrees
from tspec.proposers.none import NoProposer
from tspec.proposers.union import LEAST_LOOKED_UP, MARGIN, MOST_LOOKED_UP, Union

WORDS = 5000
"""Of texts in which nothing comes twice, but by chance."""
NEVER = PassCosts((1, 2), (1.0, 2.5), (0.0, 0.0))
"""A candidate costs more than the token that it may bring."""


def repeating(period, length, seed=0, first=WORDS):
    """`first`, then the same tokens again and again."""
    once = np.random.default_rng(seed).integers(0, WORDS, period).tolist()
    return [first, *(once[place % period] for place in range(length - 1))]


def starts(rounds):
    """Tokens that were there before each round, the prompt left out."""
    return np.cumsum([0, *(sum(each.num_out.values()) for each in rounds)])[:-1]


def between(rounds, start, end):
    """The rounds that began with so many tokens."""
    return [each for each, at in zip(rounds, starts(rounds), strict=True) if start <= at < end]


@pytest.mark.parametrize("vocab", [8, 20, 64, 1000])
@pytest.mark.parametrize("seed", [0, 1])
def test_guesses_that_are_always_wrong_cost_next_to_nothing(vocab, seed):
    """There always are some, as each word came before; after 50 tokens they cost 2% at most."""
    prompt = np.random.default_rng(seed).integers(0, vocab, 100).tolist()
    rounds = decode(auto(), prompt, contradicts(vocab, seed), most=400)
    assert 1.001 < seconds_a_token(rounds[:50]) < 1.2
    assert seconds_a_token(rounds[50:]) < 1.02
    assert any(each.num_nodes[0] > 1 for each in rounds[50:]) or vocab == 1000


@pytest.mark.parametrize("num_good", [50, 100, 300])
def test_a_text_that_turns_costs_little_soon(num_good):
    """It repeats, and is fast; then every guess is wrong."""
    against, period = contradicts(64), 8

    def target(union, row, text):
        return text[-period] if len(text) < period + num_good else against(union, row, text)

    rounds = decode(auto(), range(period), target, most=400)
    assert seconds_a_token(between(rounds, 20, num_good)) < 0.5
    assert seconds_a_token(between(rounds, num_good + 50, 10_000)) < 1.02


def test_what_other_texts_were_like_is_no_lasting_burden():
    """Five texts repeat; in the sixth all is wrong."""
    union = auto()
    for seed in range(5):
        text = repeating(60, 300, seed)
        decode(union, text[:1], says(text))
    rounds = decode(union, list(range(8)) * 20, contradicts(64), most=400)
    assert seconds_a_token(rounds[50:]) < 1.02


@pytest.mark.parametrize("is_contradicted", [False, True])
@pytest.mark.parametrize("period", [50, 200])
def test_a_text_that_repeats_has_its_speed_up_back_within_20_tokens(period, is_contradicted):
    """After 200 unpredictable tokens, of many words or against all guesses."""
    fresh = np.random.default_rng(0).integers(0, WORDS, 200).tolist()
    against = contradicts(64)

    def target(union, row, text):
        if len(text) > 200:
            return text[-period]
        return against(union, row, text) if is_contradicted else fresh[len(text) - 1]

    rounds = decode(auto(), [WORDS], target, most=250)
    assert seconds_a_token(between(rounds, 50, 200)) < 1.02
    assert seconds_a_token(between(rounds, 220, 240)) < 1 / 1.5


def test_where_nothing_pays_there_are_lone_roots():
    union, text = auto(NEVER), repeating(10, 200)
    rounds = decode(union, text[:1], says(text))
    assert [each.num_nodes for each in rounds] == [{0: 1}] * 199
    assert all(each.seconds == each.plain_s for each in rounds)
    assert union.last_decision.expected_tokens == 1
    assert {each.num_candidates for each in union.tallies().values()} == {0}


def test_what_was_never_verified_is_known_all_the_same():
    """Candidates are judged by the text that comes; once they pay, a union does not start from nothing."""
    text = repeating(10, 200)
    union = auto(NEVER)
    before = union._known.estimates.copy()
    decode(union, text[:1], says(text))
    changed = union._known.estimates != before
    assert changed.any()
    assert (union._known.estimates[changed] > before[changed]).all()


def test_where_nodes_are_free_limits_are_filled():
    text = repeating(30, 200)
    rounds = decode(auto(PassCosts.flat()), text[:1], says(text))
    assert {each.num_nodes[0] for each in between(rounds, 40, 150)} == {16}


@pytest.mark.parametrize("num_rows", [16, 64])
@pytest.mark.parametrize("kind", ["unpredictable", "few words", "repeating", "mixed", "contradicting"])
def test_batches_are_never_slower_than_plain_ones(num_rows, kind):
    """Rows are full at all times: where a text ends, the next one begins."""
    union, random = auto(), np.random.default_rng(0)
    decoding = Decoding(union, None)
    against, texts = contradicts(64), {}

    def target(union, row, text):
        if kind == "contradicting":
            return against(union, row, text)
        known = texts[text[0]]
        return known[len(text)] if len(text) < len(known) else None

    def begin(slot):
        first = WORDS + len(texts)
        mine = ["unpredictable", "few words", "repeating"][slot % 3] if kind == "mixed" else kind
        texts[first] = {
            "unpredictable": [first, *random.integers(0, WORDS, 80).tolist()],
            "few words": [first, *random.integers(0, 12, 80).tolist()],
            "repeating": repeating(20, 120, len(texts), first),
            "contradicting": list(range(8)) * 4,
        }[mine]
        decoding.start(slot, texts[first] if kind == "contradicting" else [first])

    decoding.target, rounds = target, []
    for _ in range(120):
        for slot in range(num_rows):
            if slot not in decoding.texts:
                begin(slot)
        rounds.append(decoding.round())
    assert seconds_a_token(rounds) < (1.03 if kind == "contradicting" else 1.02)
    assert seconds_a_token(rounds[50:]) < 1.02
    if kind == "repeating":
        assert seconds_a_token(rounds) < 0.95


def test_the_same_calls_give_the_same_decisions():
    def all_rounds():
        union = auto()
        decoding = Decoding(union, says(*texts))
        for slot, text in enumerate(texts):
            decoding.start(slot, text[:20])
        found = [(each, union.last_decision) for each in decoding.rounds(200)]
        return found, {name: replace(each, seconds=0) for name, each in union.tallies().items()}

    random = np.random.default_rng(0)
    texts = [[number, *random.integers(0, 6 + number, 150).tolist()] for number in range(5)]
    first = all_rounds()
    assert first == all_rounds()
    assert len({tuple(each.num_nodes.values()) for each, _ in first[0]}) > 10


class OneGuess(NoProposer):
    """A lookup that proposes the same chain to all, and finds it as likely at each place."""

    def __init__(self, chance, length=1):
        self.priors = np.array([chance], np.float32)
        self.length = length

    def warm_up(self):
        pass

    def propose(self, batch):
        rows, width = len(batch.slots), self.length + 1
        tokens = np.tile(np.arange(width, dtype=np.int32), (rows, 1))
        tokens[:, 0] = batch.roots
        parents = np.tile(np.arange(-1, width - 1, dtype=np.int32), (rows, 1))
        num_nodes = np.minimum(width, batch.max_nodes).astype(np.int32)
        return CandidateTrees(tokens, parents, num_nodes, evidence=np.zeros((rows, width), np.int32))


def num_candidates(union, *, context=0, num_beside=0, rows=1, most=16):
    slots = np.arange(rows, dtype=np.int32)
    limits = np.full(rows, most, np.int32)
    batch = DraftBatch(slots, slots + 9, limits, contexts=0 * slots + context, num_beside=num_beside)
    return int(union.propose(batch).num_nodes.sum()) - rows


def admitted(chance, length, costs, rows=1):
    union = Union("auto", [OneGuess(chance, length)], costs)
    for slot in range(rows):
        union.admit(slot, int32(slot + 9))
    return union


def test_equal_gains_do_not_flutter():
    """What pays by less than the margin is not begun, but gone on with."""
    costs = PassCosts((1, 2), (1.0, 1.4), (0.0, 1e-3))
    union = admitted(0.5, 1, costs)
    little, none = 1000 * (0.1 - MARGIN / 2), 110
    found = [num_candidates(union, context=context) for context in (little, 0, little, little, none, little)]
    assert found == [0, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("chance", [0.05, 0.15, 0.2, 0.25, 0.3])
def test_near_break_even_little_is_lost(chance):
    """A text that copies itself, but for tokens that come anew so often that copies hardly pay."""
    random = np.random.default_rng(1)
    old = random.integers(0, 50, 25).tolist()
    text = [WORDS] + [
        old[place % 25] if random.random() < chance else int(random.integers(100, WORDS))
        for place in range(600)
    ]
    rounds = decode(auto(), text[:1], says(text))
    assert seconds_a_token(between(rounds, 50, 600)) < 1.015


def test_prompts_beside_take_what_is_cheap():
    """Up to eight nodes cost little; where a prompt has seven of them, the next one costs too much."""
    union = admitted(0.45, 7, PassCosts((1, 8, 9, 64), (1.0, 1.01, 1.8, 30.0), (0.0,) * 4))
    assert num_candidates(union) == 7
    assert num_candidates(union, num_beside=4) == 3
    assert num_candidates(union, num_beside=7) == 0


def test_long_contexts_make_candidates_dear():
    union = admitted(0.8, 15, MEASURED)
    found = [num_candidates(union, context=context) for context in (0, 500, 2000, 8000, 30_000)]
    assert found == sorted(found, reverse=True) and found[0] > found[2] > found[-1]


def test_many_rows_share_the_cheap_nodes():
    found = [num_candidates(admitted(0.6, 15, MEASURED, rows), rows=rows) / rows for rows in (1, 4, 16, 64)]
    assert found == sorted(found, reverse=True) and found[0] >= 2 and found[-1] < 1


def test_padded_costs_fill_buckets():
    """A pass of five nodes costs what one of eight does."""
    costs = PassCosts((1, 2, 4, 8, 16), (1.0, 1.1, 1.2, 1.3, 9.0), (0.0,) * 5)
    chances = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
    padded = [num_candidates(admitted(chance, 15, replace(costs, is_padded=True))) for chance in chances]
    assert set(padded) <= {0, 1, 3, 7} and padded == sorted(padded) and padded[-1] == 7


@pytest.mark.parametrize(("num_rows", "most"), [(1, MOST_LOOKED_UP), (8, 8), (64, LEAST_LOOKED_UP)])
def test_lookups_are_asked_for_fewer_where_many_share_a_pass(num_rows, most):
    union = admitted(0.9, 63, PassCosts.flat(), num_rows)
    assert num_candidates(union, rows=num_rows, most=64) == most * num_rows


def test_a_slot_that_starts_over_knows_nothing_of_the_text_before():
    union, text = auto(), repeating(10, 200)
    decoding = Decoding(union, says(text))
    decoding.start(0, text[:1])
    list(decoding.rounds(20))
    fast = speed_up(union, 0)
    decoding.start(0, text[:1])
    slow = speed_up(union, 0)
    (first,) = decoding.rounds(1)
    assert (fast > 2, slow, first.num_nodes) == (True, 1.0, {0: 1})
    assert (union._known.texts[0] == 0).all()


def test_texts_that_take_turns_do_not_mix():
    """One repeats, one contradicts; they are asked for one by one, and together in any order."""
    union, good = auto(), repeating(10, 900)
    known, against = says(good), contradicts(20)

    def target(union, row, text):
        return (known if text[0] == WORDS else against)(union, row, text)

    decoding = Decoding(union, target)
    decoding.start(0, good[:1])
    decoding.start(1, list(range(20)) * 3)
    for number in range(60):
        for slots in ([0, 1], [1], [1, 0], [0])[number % 4 :][:1]:
            decoding.round(slots)
    assert speed_up(union, 0) > 2 and speed_up(union, 1) < 1.05


def test_only_rows_of_the_round_are_judged():
    """A slot that the union was not asked for, one that is unknown, and one that was released in the round."""
    union = admitted(0.9, 3, PassCosts.flat(), rows=3)
    assert num_candidates(union, rows=2) == 6
    union.release(1)
    three = int32(1, 1, 1)
    came = np.tile(int32(1, 2, 3), (4, 1))
    union.observe(Committed(int32(2, 1, 7, 0), came, int32(3, 3, 3, 3), int32(0, 0, 0, 0)))
    tally = union.tallies()["none"]
    assert (tally.num_trees, tally.num_candidates, tally.num_accepted, tally.num_saved) == (1, 3, 3, 3.0)
    assert (union._known.depth_trials[0].sum(axis=1) > 0).tolist()[:3] == [True, False, False]
    union.observe(Committed(int32(0, 1, 2), came[:3], 3 * three, 0 * three))
    assert union.tallies()["none"].num_trees == 1


def test_a_warm_union_was_never_asked():
    union = auto()
    union.warm_up()
    assert {each.num_trees for each in union.tallies().values()} == {0}
