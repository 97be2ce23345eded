"""Impossible parameters are refused when they are given, by name and with their range.

Run: pytest tests/core/test_sampling_params.py
"""

import math

import pytest

from tspec.core.errors import ConfigError
from tspec.core.sampling_params import MAX_SEED, SamplingParams, split_samples


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -1}, "temperature: got -1, need a number of at least 0"),
        ({"temperature": math.nan}, "temperature: got nan, need a number of at least 0"),
        ({"temperature": math.inf}, "temperature: got inf, need a number of at least 0"),
        ({"temperature": "hot"}, "temperature: got 'hot', need a number of at least 0"),
        ({"top_p": 0}, "top_p: got 0, need a number above 0 and at most 1"),
        ({"top_p": 1.5}, "top_p: got 1.5, need a number above 0 and at most 1"),
        ({"top_k": -2}, "top_k: got -2, need an integer of at least -1"),
        ({"top_k": 1.5}, "top_k: got 1.5, need an integer of at least -1"),
        ({"min_p": -0.1}, "min_p: got -0.1, need a number from 0 to 1"),
        ({"min_p": 1.1}, "min_p: got 1.1, need a number from 0 to 1"),
        ({"seed": -1}, f"seed: got -1, need an integer from 0 to {MAX_SEED}"),
        ({"n": 0}, "n: got 0, need an integer of at least 1"),
        ({"repetition_penalty": 0}, "repetition_penalty: got 0, need a number above 0"),
        ({"presence_penalty": 3}, "presence_penalty: got 3, need a number from -2 to 2"),
        ({"frequency_penalty": -2.5}, "frequency_penalty: got -2.5, need a number from -2 to 2"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias token id: got -1, need an integer of at least 0"),
        ({"logit_bias": {3: math.inf}}, "logit_bias of token 3: got inf, need a number from -100 to 100"),
        ({"bad_words": [[]]}, "bad_words: got an empty word, need words of at least one token"),
        ({"bad_words": [""]}, "bad_words: got an empty word, need words of at least one token"),
        ({"bad_words": [["a"]]}, "bad_words entry: got 'a', need an integer of at least 0"),
        ({"allowed_token_ids": []}, "allowed_token_ids: got an empty list, need at least one id"),
        ({"allowed_token_ids": [-3]}, "allowed_token_ids entry: got -3, need an integer of at least 0"),
        ({"allowed_token_ids": 5}, "allowed_token_ids: got 5, need a list of token ids"),
        ({"allowed_token_ids": "57"}, "allowed_token_ids: got '57', need a list of token ids"),
        ({"allowed_token_ids": ()}, "allowed_token_ids: got an empty list, need at least one id"),
        ({"stop_token_ids": 5}, "stop_token_ids: got 5, need a list of token ids"),
        ({"stop_token_ids": b"ab"}, "stop_token_ids: got b'ab', need a list of token ids"),
        ({"stop_token_ids": [None]}, "stop_token_ids entry: got None, need an integer of at least 0"),
        ({"bad_words": "abc"}, "bad_words: got 'abc', need a list of texts or of lists of token ids"),
        ({"bad_words": 5}, "bad_words: got 5, need a list of texts or of lists of token ids"),
        ({"bad_words": [1, 2]}, "bad_words: got 1 in it, need a list of texts or of lists of token ids"),
        ({"bad_words": [None]}, "bad_words: got None in it, need a list of texts or of lists of token ids"),
        ({"bad_words": [b"ab"]}, "bad_words: got b'ab' in it, need a list of texts or of lists"),
        ({"bad_words": [{1, 2}]}, "bad_words: got {1, 2} in it, need a list of texts or of lists"),
        ({"logit_bias": [3]}, "logit_bias: got [3], need a mapping of token ids to numbers"),
        ({"logit_bias": 3}, "logit_bias: got 3, need a mapping of token ids to numbers"),
        ({"logit_bias": {"3": 1.0}}, "logit_bias token id: got '3', need an integer of at least 0"),
        ({"logit_bias": {3: None}}, "logit_bias of token 3: got None, need a number from -100 to 100"),
        ({"constraint": "[a-z]+"}, "constraint: got '[a-z]+', need a grammar"),
        ({"stop": 5}, "stop: got 5, need texts that are not empty"),
        ({"min_tokens": -1}, "min_tokens: got -1, need an integer of at least 0"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens: got 5, need at most max_tokens"),
        ({"max_tokens": -1}, "max_tokens: got -1, need an integer of at least 0"),
        ({"logprobs": 21}, "logprobs: got 21, need an integer from 0 to 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs: got -1, need an integer from 0 to 20"),
        ({"stop_token_ids": [True]}, "stop_token_ids entry: got True, need an integer of at least 0"),
    ],
    ids=str,
)
def test_an_impossible_value_is_named_with_its_range(params, message):
    with pytest.raises(ConfigError) as caught:
        SamplingParams(**params)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "name", ["stop_token_ids", "allowed_token_ids", "bad_words", "logit_bias", "constraint", "stop"]
)
def test_none_is_the_same_as_leaving_a_list_or_a_mapping_out(name):
    """As it is in vLLM."""
    params = SamplingParams(**{name: None})
    assert params == SamplingParams()
    assert (params.has_mask, params.has_penalties, params.effective_temperature) == (False, False, 0)


@pytest.mark.parametrize(
    ("params", "temperature"),
    [
        ({}, 0.0),
        ({"top_k": 50}, 1.0),
        ({"top_p": 0.9}, 1.0),
        ({"min_p": 0.1}, 1.0),
        ({"seed": 0}, 1.0),
        ({"top_k": 50, "temperature": 0.0}, 0.0),
        ({"temperature": 0.7}, 0.7),
        ({"temperature": 1e-6}, 0.0),
    ],
    ids=str,
)
def test_a_temperature_that_is_left_out_follows_from_what_else_is_asked(params, temperature):
    assert SamplingParams(**params).effective_temperature == temperature


def test_samples_keep_the_temperature_and_count_their_seeds_up():
    assert split_samples(SamplingParams(seed=4)) == [SamplingParams(seed=4)]
    samples = split_samples(SamplingParams(top_k=5, seed=MAX_SEED, n=3))
    assert [each.seed for each in samples] == [MAX_SEED, 0, 1]
    assert {each.effective_temperature for each in samples} == {1.0} and {each.n for each in samples} == {1}


def test_greedy_samples_stay_greedy():
    samples = split_samples(SamplingParams(temperature=0.0, seed=4, n=2))
    assert [each.effective_temperature for each in samples] == [0.0, 0.0]


def test_what_was_passed_in_can_be_changed_afterwards():
    bias, words = {3: 1.0}, [[1, 2]]
    params = SamplingParams(logit_bias=bias, bad_words=words)
    bias[3], words[0][0] = 9.0, 7
    assert (params.logit_bias, params.bad_words) == ({3: 1.0}, ((1, 2),))
