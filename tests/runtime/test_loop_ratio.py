"""The engine with a proposer that draws its candidates: the ratio passes, from the proposer's law to committed text.

The target is a checkpoint whose logits are a table, so that the law of a text is known; the bound is that of
support/text_law.py.

Run: pytest tests/runtime/test_loop_ratio.py
"""

from itertools import pairwise

import numpy as np
import pytest
import torch
from support.acceptance_drafts import Draft
from support.acceptance_noise import keyed_noise
from support.drawing import ALIVE, DRAFTS, NEAR, TARGET, DrawingProposer
from support.engines import build, finish, run, with_proposer
from support.table_model import logits_checkpoint
from support.text_law import ALARM, assert_law, surprise

from tspec.core.sampling_params import SamplingParams
from tspec.runtime.sequence import FinishReason

LENGTH, TEXTS, ROWS = 3, 2000, 25
"""Texts are run so many at a time."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    logits_checkpoint(folder, TARGET)
    engine = build(folder, max_model_len=64)
    yield engine
    engine.close()


def decode(engine, draft: Draft, max_tokens: int, count: int, **params) -> list:
    """Sequences of texts behind token 0, each with a seed of its own."""
    drawing = with_proposer(engine, DrawingProposer(draft), max_num_seqs=ROWS, node_budget=64 * ROWS)
    done = []
    asked = {"temperature": 1.0, "max_tokens": max_tokens, **params}
    for first in range(0, count, ROWS):
        done += [drawing.add([0], SamplingParams(seed=seed, **asked)) for seed in range(first, first + ROWS)]
        finish(drawing)
    return done


def texts_and_law(sequences) -> tuple[np.ndarray, np.ndarray]:
    p = torch.from_numpy(TARGET[:ALIVE, :ALIVE]).double().softmax(1).numpy()
    law = p[0][:, None, None] * p[:, :, None] * p[None]
    return np.array([each.output_ids for each in sequences]), law


@pytest.mark.parametrize("form", DRAFTS)
def test_texts_follow_the_law_of_the_target(engine, form):
    draft = Draft(NEAR, noise=keyed_noise, **DRAFTS[form])
    assert_law(*texts_and_law(decode(engine, draft, LENGTH, TEXTS)))


def test_a_draft_that_lies_about_its_law_is_caught(engine):
    draft = Draft(NEAR, (1, 1), keyed_noise, temperature=0.3, told_temperature=1.0)
    assert surprise(*texts_and_law(decode(engine, draft, LENGTH, TEXTS))) > ALARM


@pytest.mark.parametrize("form", DRAFTS)
def test_every_candidate_of_a_draft_that_is_the_target_is_accepted(engine, form):
    """The first sibling at every depth, of trees."""
    sequences = decode(engine, Draft(TARGET, noise=keyed_noise, **DRAFTS[form]), 31, ROWS)
    for stats in (each.stats for each in sequences):
        # Of three tokens each; the prefill gave the first. At the end a tree may have few nodes.
        assert stats.num_passes <= 10 + 2 * (form == "trees")
        assert form == "trees" or stats.num_accepted == stats.num_candidates
    assert len({tuple(each.output_ids) for each in sequences}) > 1


def test_filters_and_masks_are_those_of_the_target(engine):
    sequences = decode(
        engine, Draft(NEAR, (2, 1), keyed_noise), 20, ROWS, top_k=2, bad_words=[[1]], logprobs=2
    )
    for sequence in sequences:
        text = [0, *sequence.output_ids]
        for last, token in pairwise(text):
            kept = [other for other in np.argsort(-TARGET[last]) if other != 1][:2]
            assert token in kept, (last, token)
        assert len(sequence.logprobs) == 20


@pytest.mark.parametrize("form", DRAFTS)
def test_texts_of_prompts_that_went_along_follow_the_law_of_the_target(engine, form):
    """Their first token comes out of a ratio pass, too, before which their row was a chunk in one."""
    drawing = with_proposer(
        engine, DrawingProposer(Draft(NEAR, noise=keyed_noise, **DRAFTS[form])), node_budget=64 * 8
    )
    bystanders, sequences = [], []
    for seed in range(TEXTS // 2):
        if not bystanders or bystanders[-1].finish_reason is not None:
            bystanders.append(drawing.add([0], SamplingParams(temperature=1.0, seed=seed, max_tokens=60)))
            drawing.step()
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=LENGTH)
        sequences.append(drawing.add([seed % ALIVE, 1, 2, 3, 0][-1 - seed % 5 :], params))
        drawing.step()
    finish(drawing)
    went_along = [each for each in sequences if each.stats.num_from_prefill == 0]
    assert len(went_along) > 0.9 * TEXTS // 2
    assert {name.split()[0] for name in drawing.metrics().passes} == {"last", "ratio_filtered"}
    assert_law(*texts_and_law(sequences))


def test_coupled_draws_are_not_tested_by_ratio(engine):
    drawing = with_proposer(engine, DrawingProposer(Draft(NEAR, (1, 1), keyed_noise)), acceptance="match")
    (sequence,) = run(drawing, [0], temperature=1.0, seed=1, max_tokens=4)
    assert sequence.finish_reason is FinishReason.ERROR
    assert "the law that they were drawn from" in sequence.error
