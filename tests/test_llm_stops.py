"""Stop strings at the user's door: inside accepted runs, across tokens, several at once, streamed, in characters of
several bytes.

Run: pytest tests/test_llm_stops.py
"""

import pytest
from support.table_model import table_checkpoint
from support.tiny_models import EOS, byte_tokenizer

from tspec import LLM, ConfigError, SamplingParams

NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 12}
STORY = "abcdefghijklmnopqrst日é🙂uvwxyzABCDEF"
"""Every byte has its own successor; then the text begins anew."""
BYTES = list(STORY.encode())
PROMPT = STORY + STORY + "a"
"""N-gram lookup knows the story, so that runs of up to twelve candidates are accepted."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("story")
    # The first byte of the second and third characters would have two successors: they are left out by hand.
    successors = dict(zip(BYTES, [*BYTES[1:], BYTES[0]], strict=True))
    assert len(successors) == len(BYTES)
    table_checkpoint(folder, successors, vocab=EOS + 3, eos_token_id=EOS)
    byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module", params=[None, NGRAM], ids=["plain", "ngram"])
def llm(request, folder):
    with LLM(folder, speculative_config=request.param, num_threads=1) as llm:
        yield llm


def test_runs_are_accepted(folder):
    """What the tests below rely on."""
    with LLM(folder, speculative_config=NGRAM, num_threads=1) as llm:
        assert llm.generate(PROMPT, SamplingParams(max_tokens=60))[0].stats.tokens_per_pass > 4


@pytest.mark.parametrize(
    "stop", ["c", "cd", "cde", "m", "mn", "nop", "日", "t日é", "🙂", "FEDCBA", "Fab", "🙂u"]
)
def test_the_text_ends_before_its_stop_string(llm, stop):
    (result,) = llm.generate(PROMPT, SamplingParams(max_tokens=100, stop=stop, logprobs=0))
    whole = (STORY * 3)[1:]
    if stop not in whole:
        assert (result.finish_reason, result.stop_reason, len(result.token_ids)) == ("length", None, 100)
        return
    end = whole.index(stop)
    assert (result.text, result.finish_reason, result.stop_reason) == (whole[:end], "stop", stop)
    assert bytes(result.token_ids).decode() == whole[: end + len(stop)]
    assert [each.token_id for each in result.logprobs] == result.token_ids


def test_of_two_stop_strings_the_one_that_comes_first_counts(llm):
    (result,) = llm.generate(PROMPT, SamplingParams(max_tokens=100, stop=["xyz", "hij", "ij"]))
    assert (result.text, result.stop_reason) == ("bcdefg", "hij")


def test_the_stop_string_may_be_kept(llm):
    params = SamplingParams(max_tokens=100, stop=["日é"], include_stop_str_in_output=True)
    (result,) = llm.generate(PROMPT, params)
    assert result.text == "bcdefghijklmnopqrst日é"


def test_stop_strings_are_ignored_before_min_tokens(llm):
    (result,) = llm.generate(PROMPT, SamplingParams(max_tokens=100, min_tokens=5, stop=["d", "m"]))
    assert (result.text, result.stop_reason) == ("bcdefghijkl", "m")


@pytest.mark.parametrize("stop", [["jkl"], ["jkX", "mn"], ["日é🙂u"], ["日X", "z"]], ids=str)
def test_no_piece_of_a_stop_string_is_streamed(llm, stop):
    (whole,) = llm.generate(PROMPT, SamplingParams(max_tokens=100, stop=stop))
    pieces = list(llm.stream(PROMPT, SamplingParams(max_tokens=100, stop=stop)))
    text = ""
    for piece in pieces:
        text += piece.text
        assert whole.text.startswith(text)
    assert text == whole.text == pieces[-1].result.text
    assert [token for piece in pieces for token in piece.token_ids] == whole.token_ids


def test_a_token_that_stops_is_named_too(llm):
    (result,) = llm.generate(PROMPT, SamplingParams(max_tokens=50, stop_token_ids=[ord("e")], stop=["g"]))
    assert (result.text, result.finish_reason, result.stop_reason) == ("bcd", "stop", ord("e"))


def test_stop_strings_need_a_tokenizer(folder, tmp_path):
    for file in folder.iterdir():
        if not file.name.startswith("tokenizer"):
            (tmp_path / file.name).symlink_to(file)
    with LLM(tmp_path, num_threads=1) as llm, pytest.raises(ConfigError, match="got no tokenizer"):
        llm.generate([1, 2], SamplingParams(stop=["x"]))
