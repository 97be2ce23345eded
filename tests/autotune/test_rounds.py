"""Rounds that are played through on known texts are those that an engine runs.

Run: pytest tests/autotune/test_rounds.py
"""

import numpy as np
import pytest

from autotune.method_search import Judged, lookup_of, lookup_priors
from autotune.record import play_recorded, record, rounds_of, time_first
from autotune.rounds import Game, play_proposer, right_path
from autotune.texts import answer, encode, split
from tspec.core.errors import ConfigError
from tspec.core.pass_costs import PassCosts
from tspec.core.policy import RoundCosts
from tspec.core.speculative_config import SpeculativeConfig

COSTS = PassCosts((1, 2, 8), (1.0, 1.1, 1.7), (0.0, 1e-3, 2e-3))
FREE = RoundCosts(0.0, 0.0, 0.0)


def engine_rounds(job, config):
    """Passes and texts of an engine that decodes the prompts with candidates."""
    engine = job.open(config)
    try:
        answers = [
            answer(engine, encode(engine, prompt), job.max_tokens, speculates=True) for prompt in job.prompts
        ]
    finally:
        engine.close()
    return sum(each.num_passes for each in answers), [each.text for each in answers]


@pytest.mark.parametrize("method", ["ngram", "suffix"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_lookup_plays_as_many_rounds_as_an_engine_runs(job, method, count):
    passes, texts = engine_rounds(job, SpeculativeConfig(method, num_speculative_tokens=count))
    played = play_proposer(lookup_of(method, count), texts, COSTS, count, 0.0)
    assert played.num_rounds == passes
    assert played.num_tokens == sum(len(text.output) - 1 for text in texts) > passes


@pytest.mark.parametrize("name", ["copy", "other", "eagle", "medusa"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_model_plays_as_many_rounds_as_an_engine_runs(job, proposer_folders, name, count):
    """Recorded once with three candidates, played with fewer."""
    method = {"copy": "draft_model", "other": "draft_model"}.get(name, name)
    config = SpeculativeConfig(method, model=proposer_folders / name, num_speculative_tokens=3)
    recorded = recorded_of(job, config)
    fewer = SpeculativeConfig(method, model=proposer_folders / name, num_speculative_tokens=count)
    passes, texts = engine_rounds(job, fewer)
    assert recorded.texts == texts
    played = play_recorded(recorded, COSTS, FREE, count)
    assert played.num_rounds == passes
    if name == "copy":
        assert played.tokens_per_pass > 0.8 * (count + 1)


def recorded_of(job, config):
    engine = job.open(config)
    try:
        prompts = [encode(engine, prompt) for prompt in job.prompts]
        return record(engine, prompts, job.max_tokens, most_candidates=config.num_speculative_tokens)
    finally:
        engine.close()


def test_a_tree_plays_as_many_rounds_as_an_engine_runs(job, proposer_folders):
    config = SpeculativeConfig(
        "draft_model",
        model=proposer_folders / "other",
        num_speculative_tokens=3,
        draft_depth=2,
        draft_top_k=2,
    )
    recorded = recorded_of(job, config)
    passes, _ = engine_rounds(job, config)
    assert play_recorded(recorded, COSTS, FREE, 3, depth=2).num_rounds == passes


def test_a_listened_engine_is_as_before(job, proposer_folders):
    """What it says afterwards is what it would have said, and its proposer is its own again."""
    config = SpeculativeConfig("draft_model", model=proposer_folders / "copy", num_speculative_tokens=2)
    engine = job.open(config)
    try:
        proposer = engine.opened().proposer
        timed = time_first(proposer, 2, engine.opened().max_model_len)
        recorded = record(engine, [encode(engine, "abcabc")], 8, most_candidates=2)
        assert engine.opened().proposer is proposer
        again = answer(engine, encode(engine, "abcabc"), 8, speculates=True)
        assert again.text == recorded.texts[0] and again.num_passes < 7
        costs = rounds_of(timed, recorded, 2)
        assert costs.first_s + costs.level_s == pytest.approx(recorded.seconds)
    finally:
        engine.close()


def test_times_of_rounds_add_up():
    game = Game(COSTS)
    assert game.round([-1, 0, 1], [1, 2], context=100, left=9, draft_s=0.5) == 3
    assert game.round([-1, 0], [], context=103, left=6, draft_s=0.25) == 1
    played = game.played
    assert (played.num_rounds, played.num_tokens, played.num_candidates) == (2, 4, 3)
    assert played.plain_s == pytest.approx(4.0)
    second = np.interp(3, (2, 8), (1.1, 1.7)) + 100 * np.interp(3, (2, 8), (1e-3, 2e-3))
    assert played.verify_s == pytest.approx(second + 1.1 + 103e-3)
    assert played.draft_s == 0.75
    assert played.speed_up == pytest.approx(4.0 / (played.verify_s + 0.75))
    assert played.chances[:3, 0].tolist() == [0.5, 1.0, 0.0] and played.num_depths == 2


def test_ranks_are_counted_among_siblings():
    game = Game(COSTS)
    game.round([-1, 0, 0, 1, 2, 2], [2, 5], context=0, left=9, draft_s=0.0)
    assert game.played.hits[:2, :3].tolist() == [[0, 1, 0], [0, 1, 0]]


def test_a_text_ends_within_a_round():
    assert Game(COSTS).round([-1, 0, 1, 2], [1, 2, 3], context=0, left=2, draft_s=0.0) == 2


def test_the_right_path_follows_the_text():
    assert right_path([9, 5, 6, 7, 8], [-1, 0, 0, 2, 3], [6, 7, 9]) == [2, 3]
    assert right_path([9, 5], [-1, 0], []) == []


def test_classes_are_judged_where_all_before_is_right():
    judged = Judged(np.array([0.5, 0.5]))
    judged.tree([-1, 0, 0, 1, 2], [0, 0, 1, 1, 1], [1])
    hits, trials = judged._counts
    assert (hits.tolist(), trials.tolist()) == ([1, 0], [1, 2])
    assert judged.priors() == (round(17 / 33, 5), round(16 / 34, 5))


def test_priors_of_lookups_move_to_what_was_right(job):
    _, texts = engine_rounds(job, SpeculativeConfig("none"))
    lookup = lookup_of("ngram", 3)
    found = lookup_priors([lookup], texts, COSTS, 3)["ngram"]
    assert len(found) == len(lookup.priors)
    assert any(abs(one - other) > 1e-3 for one, other in zip(found, lookup.priors, strict=True))


def test_prompts_are_kept_for_trying():
    assert split(["a", "b"]) == (["a"], ["b"])
    tuned, kept = split([str(number) for number in range(12)])
    assert kept == ["3", "7", "11"] and len(tuned) == 9
    with pytest.raises(ConfigError, match="prompts: got 1"):
        split(["a"])
