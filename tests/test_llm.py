"""The user's door: prompts of either kind, results, streams, options, and what is refused.

Run: pytest tests/test_llm.py
"""

import gc
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from support.story import OUTPUT, START, STORY, story_folder
from support.table_model import table_checkpoint
from support.tiny_models import EOS, byte_tokenizer, tiny_checkpoint

from tspec import LLM, CapacityError, CheckpointError, ConfigError, SamplingParams, SpeculativeConfig

NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return story_folder(tmp_path_factory.mktemp("story"))


@pytest.fixture(scope="module", params=[None, NGRAM], ids=["plain", "ngram"])
def llm(request, folder):
    with LLM(folder, speculative_config=request.param, num_threads=1, max_num_seqs=4) as llm:
        yield llm


def test_a_text_gives_text_ids_and_the_reason_of_its_end(llm):
    (result,) = llm.generate(f"{STORY}{START}")
    assert result.prompt_token_ids == [*STORY.encode(), ord(START)]
    assert result.token_ids == OUTPUT
    assert (result.text, result.finish_reason) == (STORY, "stop")
    assert result.stats.num_emitted == len(OUTPUT)


def test_ids_may_stand_for_a_text(llm):
    ids = [*START.encode()]
    for prompt in (ids, tuple(ids), np.array(ids), np.array(ids, np.uint8)):
        assert [each.text for each in llm.generate(prompt)] == [STORY]


def test_as_many_candidates_are_verified_as_were_asked_for(folder):
    """Also where that is more than a pass verifies at little cost."""
    asked = {"method": "ngram", "num_speculative_tokens": 30}
    with LLM(folder, speculative_config=asked, num_threads=1, max_num_seqs=1) as llm:
        (result,) = llm.generate(f"{STORY}{START}")
    assert result.token_ids == OUTPUT
    assert len(result.stats.candidates_by_position) == 11  # all that the prompt has behind the first byte


def test_results_come_in_the_order_of_the_prompts(llm):
    prompts = [START, [0xC3], "日", f"{STORY}{START}", [ord("b")], START * 3]
    results = llm.generate(prompts, SamplingParams(max_tokens=40))
    assert [each.text for each in results] == [
        STORY,
        "\N{REPLACEMENT CHARACTER}日🙂b",
        "🙂b",
        STORY,
        "",
        STORY,
    ]
    assert [each.prompt_token_ids for each in results][1:3] == [[0xC3], [*"日".encode()]]


def test_no_prompts_give_no_results(llm):
    assert llm.generate([]) == []


def test_a_token_that_stops_a_text_is_in_its_ids_and_not_in_its_text(llm):
    stop = SamplingParams(stop_token_ids=(ord("b"),))
    (result,) = llm.generate(f"{STORY}{START}", stop)
    assert result.token_ids == OUTPUT[:-1]
    assert (result.text, result.finish_reason) == (STORY[:-1], "stop")
    assert streamed(llm, f"{STORY}{START}", stop) == STORY[:-1]


def test_a_text_that_ends_inside_a_character_shows_it_as_the_tokenizer_does(llm):
    (result,) = llm.generate(START, SamplingParams(max_tokens=2))
    assert (result.text, result.finish_reason) == ("a\N{REPLACEMENT CHARACTER}", "length")


def streamed(llm: LLM, prompt, params: SamplingParams | None = None) -> str:
    """The text of a stream, whose pieces are held against its result."""
    chunks = list(llm.stream(prompt, params))
    assert [chunk.result is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    result = chunks[-1].result
    assert [token for chunk in chunks for token in chunk.token_ids] == result.token_ids
    assert "".join(chunk.text for chunk in chunks) == result.text
    return result.text


@pytest.mark.parametrize("prompt", [START, f"{STORY}{START}", f"{STORY}{START}{STORY}{START}", [0xE6]])
@pytest.mark.parametrize("max_tokens", [0, 1, 2, 3, 5, 9, 100])
def test_a_stream_gives_the_text_of_generate(llm, prompt, max_tokens):
    params = SamplingParams(max_tokens=max_tokens)
    (result,) = llm.generate(prompt, params)
    assert streamed(llm, prompt, params) == result.text


def test_pieces_of_a_stream_hold_whole_characters(llm):
    pieces = [chunk.text for chunk in llm.stream(f"{STORY}{START}")]
    assert not [piece for piece in pieces if "\N{REPLACEMENT CHARACTER}" in piece]


def test_other_prompts_may_run_between_two_pieces(llm):
    """They carry the streamed one along, even to its end: nothing of it is lost."""
    for turns in range(3):
        stream = llm.stream(START)
        pieces = [next(stream) for _ in range(1 + turns)]
        assert [each.text for each in llm.generate([START, f"{STORY}{START}"])] == [STORY, STORY]
        chunks = [*pieces, *stream]
        assert "".join(chunk.text for chunk in chunks) == STORY
        assert [token for chunk in chunks for token in chunk.token_ids] == OUTPUT
        assert chunks[-1].result.text == STORY


def test_a_stream_that_is_left_early_gives_back_what_it_holds(llm):
    for _ in range(10):
        stream = llm.stream(START)
        next(stream)
        stream.close()
    assert not llm._engine.has_work
    assert llm.generate([START] * 5)[4].text == STORY


def test_a_bad_prompt_among_good_ones_leaves_nothing_running(llm):
    with pytest.raises(ConfigError, match="prompt tokens: got ids 5 to 999"):
        llm.generate([START, [5, 999], START])
    assert not llm._engine.has_work
    assert llm.generate(START)[0].text == STORY


@pytest.mark.parametrize("prompt", ["", [[]], [""]])
def test_an_empty_prompt_is_refused(llm, prompt):
    with pytest.raises(ConfigError, match="prompt: got no tokens, need at least one"):
        llm.generate(prompt)


def test_a_prompt_that_leaves_no_room_is_refused(llm):
    with pytest.raises(
        CapacityError, match=r"prompt length: got 256 tokens, need at most 255 \(max_model_len 256"
    ):
        llm.generate("y" * 256)


def test_closing_ends_the_threads(folder):
    gc.collect()  # pools that other tests have left
    before = threading.active_count()
    with LLM(folder, num_threads=3):
        assert threading.active_count() == before + 2
    assert threading.active_count() == before


def test_ids_need_no_tokenizer(tmp_path):
    table_checkpoint(tmp_path, {}, vocab=20)
    with LLM(tmp_path, num_threads=1) as llm:
        (result,) = llm.generate([3], SamplingParams(max_tokens=4))
        assert (result.token_ids, result.text) == ([4, 5, 6, 7], "")
        assert streamed(llm, [3], SamplingParams(max_tokens=4)) == ""
        for use in (lambda: llm.generate("3"), lambda: llm.encode_chat([{"role": "user", "content": "3"}])):
            with pytest.raises(ConfigError, match=r"tokenizer: got no tokenizer\.json beside the weights"):
                use()


def test_a_tokenizer_larger_than_the_model_is_refused_before_weights_are_read(tmp_path):
    tiny_checkpoint(tmp_path, "llama", vocab=EOS + 1)
    byte_tokenizer(tmp_path)
    steps = []
    with pytest.raises(CheckpointError, match=f"largest token id: got {EOS + 1}, need less than {EOS + 1}"):
        LLM(tmp_path, on_progress=lambda *step: steps.append(step))
    assert steps == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_len": 5}, "LLM option: got 'max_len', need one of dtype, device, max_model_len"),
        ({"device": "tpu"}, "device: got 'tpu', need one of auto, cpu, cuda"),
        ({"dtype": "int8"}, "dtype: got 'int8', need auto or one of float32, bfloat16, float16"),
        ({"max_model_len": 257}, "max_model_len: got 257, need at most 256, the model's context"),
        ({"max_model_len": 0}, "max_model_len: got 0, need an integer of at least 1"),
        ({"max_num_seqs": True}, "max_num_seqs: got True, need an integer"),
        ({"num_threads": 1.5}, r"num_threads: got 1\.5, need an integer"),
        ({"kv_cache_mib": -1}, "kv_cache_mib: got -1, need an integer"),
        ({"speculative_config": {"method": "eagle9"}}, "speculative method: got 'eagle9', need one of"),
        ({"speculative_config": {"k": 3}}, "speculative_config key: got 'k', need one of method"),
        (
            {"speculative_config": {"prompt_lookup_min": 5, "prompt_lookup_max": 3}},
            "prompt_lookup_min: got 5",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_impossible_option_is_refused_by_name(folder, options, message):
    with pytest.raises(ConfigError, match=message):
        LLM(folder, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_refused_where_there_is_none(folder):
    with pytest.raises(ConfigError, match=r"device: got .*, need "):
        LLM(folder, device="cuda")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -0.7}, r"temperature: got -0\.7, need a number of at least 0"),
        ({"max_tokens": -1}, "max_tokens: got -1"),
        ({"max_tokens": 2.0}, r"max_tokens: got 2\.0"),
        ({"stop_token_ids": (-3,)}, "stop_token_ids entry: got -3"),
        ({"speculative": "sometimes"}, "speculative: got 'sometimes', need one of auto, off"),
        ({"speculative": -1}, "speculative: got -1"),
    ],
)
def test_an_impossible_parameter_is_refused_by_name(params, message):
    with pytest.raises(ConfigError, match=message):
        SamplingParams(**params)


def test_a_folder_without_a_model_is_refused_with_its_name(tmp_path):
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path))):
        LLM(tmp_path)


def test_a_configuration_object_does_as_well_as_a_mapping(folder):
    config = SpeculativeConfig(method="ngram", prompt_lookup_min=1)
    with LLM(folder, speculative_config=config, num_threads=1) as llm:
        (result,) = llm.generate(f"{STORY}{START}")
    assert result.stats.num_accepted > 0


def test_the_dtype_asked_for_replaces_that_of_the_checkpoint(folder):
    texts = []
    for dtype in ("auto", "float32", "bfloat16", "float16"):
        with LLM(folder, dtype=dtype, num_threads=1) as llm:
            texts.append(llm.generate(START)[0].text)
            assert llm.config.dtype.value == ("float32" if dtype == "auto" else dtype)
    assert texts == [STORY] * 4


def test_progress_is_reported_from_none_to_all(folder):
    steps = []
    LLM(
        folder, num_threads=1, on_progress=lambda what, done, total: steps.append((what, done, total))
    ).close()
    for what in ("load weights", "bind plans"):
        done = [step[1] for step in steps if step[0] == what]
        (total,) = {step[2] for step in steps if step[0] == what}
        assert done == list(range(1, total + 1))
