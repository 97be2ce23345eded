"""Sampling at the user's door: samples, seeds, log-probabilities, bad words as text, failures of one request.

Run: pytest tests/test_llm_sampling.py
"""

import json

import pytest
from support.command_line import start

from tspec import LLM, ConfigError, SamplingParams
from tspec.constraints import regex

NGRAM = {"method": "ngram", "num_speculative_tokens": 5}
PROMPT = "abc, abc, abc"


@pytest.fixture(scope="module", params=[None, NGRAM], ids=["plain", "ngram"])
def llm(request, tiny_folder):
    with LLM(tiny_folder, speculative_config=request.param, num_threads=1) as llm:
        yield llm


def test_n_samples_stand_beside_each_other_with_the_seeds_that_follow(llm):
    params = SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=12)
    results = llm.generate([PROMPT, "x"], params)
    assert [each.seed for each in results] == [3, 4, 5] * 2
    single = [
        llm.generate("x", SamplingParams(temperature=1.0, seed=3 + j, max_tokens=12))[0] for j in range(3)
    ]
    assert [each.token_ids for each in results[3:]] == [each.token_ids for each in single]


def test_a_result_without_a_seed_can_be_made_again(llm):
    first, second = (
        llm.generate(PROMPT, SamplingParams(temperature=1.0, max_tokens=12))[0] for _ in range(2)
    )
    assert first.seed != second.seed
    again = llm.generate(PROMPT, SamplingParams(temperature=1.0, max_tokens=12, seed=first.seed))[0]
    assert again.token_ids == first.token_ids
    assert llm.generate(PROMPT, SamplingParams(max_tokens=3))[0].seed is None


def test_log_probabilities_come_with_tokens_and_prompt(llm):
    (result,) = llm.generate(PROMPT, SamplingParams(max_tokens=5, logprobs=2, prompt_logprobs=0))
    assert [each.token_id for each in result.logprobs] == result.token_ids
    assert all(
        len(each.top) == 2 and each.top[0] == (each.token_id, each.logprob) for each in result.logprobs
    )
    assert result.prompt_logprobs[0] is None
    assert [each.token_id for each in result.prompt_logprobs[1:]] == result.prompt_token_ids[1:]
    assert all(each.top == () for each in result.prompt_logprobs[1:])
    (bare,) = llm.generate(PROMPT, SamplingParams(max_tokens=5))
    assert (bare.logprobs, bare.prompt_logprobs, bare.token_ids) == (None, None, result.token_ids)


def test_bad_words_may_be_texts(llm):
    free = llm.generate(PROMPT, SamplingParams(max_tokens=8))[0]
    word = next(letter for letter in free.text if letter.isascii())
    (result,) = llm.generate(PROMPT, SamplingParams(max_tokens=8, bad_words=[word]))
    assert word in free.text and word not in result.text


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("stop_token_ids", lambda token: [97, token]),
        ("allowed_token_ids", lambda token: [97, token]),
        ("bad_words", lambda token: [[97], [98, token]]),
        ("logit_bias", lambda token: {97: 1.0, token: 1.0}),
    ],
)
def test_ids_past_the_vocabulary_are_refused_by_name_and_range(llm, name, given):
    """Before anything runs; the last row of the logits is an id, whether or not the tokenizer has a text for it."""
    vocab = llm.config.vocab_size
    with pytest.raises(ConfigError) as caught:
        llm.generate(PROMPT, SamplingParams(max_tokens=3, **{name: given(vocab)}))
    assert f"{name} token id: got {vocab}, need ids from 0 to {vocab - 1}. " in str(caught.value)
    (result,) = llm.generate(PROMPT, SamplingParams(max_tokens=3, **{name: given(vocab - 1)}))
    assert result.finish_reason in ("length", "stop")


def test_a_stream_is_of_one_sample(llm):
    with pytest.raises(ConfigError, match="n: got 2, need 1 in a stream"):
        next(llm.stream(PROMPT, SamplingParams(n=2)))


def test_a_grammar_is_made_with_the_tokenizer(llm):
    params = SamplingParams(
        temperature=1.0, seed=1, max_tokens=40, constraint=regex("[a-f]{3,5}", llm.tokenizer)
    )
    (result,) = llm.generate(PROMPT, params)
    assert 3 <= len(result.text) <= 5 and set(result.text) <= set("abcdef")


def test_what_leaves_no_token_is_an_error_of_its_own_result(llm):
    impossible = SamplingParams(allowed_token_ids=[97], bad_words=[[97, 97]], max_tokens=8)
    (result,) = llm.generate("x", impossible)
    assert (result.text, result.finish_reason) == ("a", "error")
    assert "allowed_token_ids and bad_words leave none" in result.error
    assert llm.generate(PROMPT, SamplingParams(max_tokens=3))[0].finish_reason == "length"


def test_the_command_line_takes_the_same_parameters(tiny_folder, llm):
    options = [
        "--temperature",
        "0.9",
        "--top-p",
        "0.9",
        "--seed",
        "5",
        "--presence-penalty",
        "0.5",
        "--logprobs",
        "1",
    ]
    command = ["generate", str(tiny_folder), "--prompt", PROMPT, "--max-tokens", "9", "--json", *options]
    printed = json.loads(start(*command).communicate()[0])
    params = SamplingParams(
        temperature=0.9, top_p=0.9, seed=5, presence_penalty=0.5, logprobs=1, max_tokens=9
    )
    (result,) = llm.generate(PROMPT, params)
    assert (printed["token_ids"], printed["seed"], printed["error"]) == (result.token_ids, 5, None)
    assert [each["logprob"] for each in printed["logprobs"]] == [each.logprob for each in result.logprobs]
