"""Texts of the target: numbered, kept as they come, the same however often the run was stopped.

Run: pytest tests/training/test_texts.py
"""

from dataclasses import replace

import pytest
from support.checkpoints import edit_json
from support.tiny_training import learnable_checkpoint

from tspec import LLM, SamplingParams
from tspec.core.errors import ConfigError
from tspec.training import own_prompts
from tspec.training import texts as texts_module
from tspec.training.batches import make_batches, split_texts, whole_texts
from tspec.training.eagle import frequent_tokens
from tspec.training.own_prompts import OwnPrompts
from tspec.training.texts import Text, encode_prompts, first_texts, generate_texts, read_texts

ROOM = 8
TEMPLATE = "<u>{{ messages[0]['content'] }}|<a>"
PROMPTS = [[65 + number, 66, 67] for number in range(6)]


@pytest.fixture(scope="module")
def llm(tiny_folder):
    with LLM(tiny_folder, max_num_seqs=4) as llm:
        yield llm


def generated(llm, file, num_tokens, prompts=PROMPTS):
    return generate_texts(
        llm, prompts, file, num_tokens=num_tokens, max_answer_tokens=ROOM, on_progress=lambda *_: None
    )


def test_answers_are_what_the_target_says(llm, tmp_path):
    texts = generated(llm, tmp_path / "texts.jsonl", 3 * ROOM)
    assert [text.number for text in texts] == list(range(len(texts)))
    assert sum(len(text.answer) for text in texts[:-1]) < 3 * ROOM <= sum(len(text.answer) for text in texts)
    for text in texts:
        assert text.prompt == PROMPTS[text.number]
        assert text.answer == llm.generate(text.prompt, SamplingParams(max_tokens=ROOM))[0].token_ids


def test_prompts_come_again_with_other_answers(llm, tmp_path):
    texts = generated(llm, tmp_path / "texts.jsonl", 10 * ROOM)
    again = [text for text in texts if text.number >= len(PROMPTS)]
    assert again
    for text in again:
        first = texts[text.number - len(PROMPTS)]
        assert text.prompt == first.prompt
        assert text.answer != first.answer


@pytest.fixture
def short_turns(monkeypatch):
    monkeypatch.setattr(own_prompts, "MAX_TOKENS", 24)


@pytest.fixture(scope="module")
def chatting(tmp_path_factory):
    """A target with a template."""
    folder = learnable_checkpoint(tmp_path_factory.mktemp("target"), sureness=0.1)
    edit_json(folder / "tokenizer_config.json", chat_template=TEMPLATE)
    with LLM(folder, max_num_seqs=4) as llm:
        yield llm


def test_after_the_last_prompt_the_target_makes_up_its_own(chatting, tmp_path, short_turns):
    prompts = encode_prompts(chatting, ["ab"], ROOM)
    whole = generated(chatting, tmp_path / "texts.jsonl", 6 * ROOM, prompts)
    assert whole[0].prompt == chatting.encode_chat([{"role": "user", "content": "ab"}])
    assert len({tuple(text.prompt) for text in whole}) == len(whole) > 4
    for text in whole[1:]:
        drawn = SamplingParams(max_tokens=24, temperature=1, seed=text.number, stop_token_ids=[ord("|")])
        turn = chatting.generate([chatting.tokenizer.encode("<u>")], drawn)[0]
        assert turn.text.strip()
        assert text.prompt == chatting.encode_chat([{"role": "user", "content": turn.text.strip()}])
        assert text.answer == chatting.generate(text.prompt, SamplingParams(max_tokens=ROOM))[0].token_ids


@pytest.mark.parametrize("num_calls", [1, 3, 4])
def test_made_up_prompts_are_the_same_after_a_stop(chatting, tmp_path, num_calls, short_turns, monkeypatch):
    monkeypatch.setattr(texts_module, "NUM_AT_A_TIME", 2)
    prompts = encode_prompts(chatting, ["ab"], ROOM)
    whole = generated(chatting, tmp_path / "whole.jsonl", 6 * ROOM, prompts)
    file = tmp_path / "texts.jsonl"
    calls = iter(range(100))

    def stop(what, done, total):
        if next(calls) == num_calls:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_texts(chatting, prompts, file, num_tokens=6 * ROOM, max_answer_tokens=ROOM, on_progress=stop)
    assert len(read_texts(file)) < len(whole)
    assert generated(chatting, file, 6 * ROOM, prompts) == whole


def test_a_turn_that_says_nothing_or_is_too_long_gives_way_to_a_given_prompt(chatting, tmp_path, monkeypatch):
    prompts = encode_prompts(chatting, ["ab"], ROOM)
    monkeypatch.setattr(texts_module, "MAX_PROMPT_TOKENS", 9)  # no turn fits but the given one
    for text in generated(chatting, tmp_path / "texts.jsonl", 4 * ROOM, prompts)[1:]:
        params = SamplingParams(max_tokens=ROOM, temperature=1, seed=text.number)
        assert text.prompt == prompts[0]
        assert text.answer == chatting.generate(text.prompt, params)[0].token_ids
    turn = chatting.generate("ab", SamplingParams(max_tokens=4))[0]
    assert OwnPrompts(chatting, 20).prompt(replace(turn, text=" \n")) is None


def test_texts_that_are_there_are_kept_and_gaps_filled(llm, tmp_path):
    file = tmp_path / "texts.jsonl"
    whole = generated(llm, file, 4 * ROOM)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text(lines[2] + lines[0] + lines[1][:20])  # killed in the middle of a line
    assert len(read_texts(file)) == 2
    assert generated(llm, file, 4 * ROOM) == whole
    assert file.read_text().startswith(lines[2] + lines[0])


def test_a_damaged_line_is_named(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text('{"number": 0, "prompt": [1], "answer": [2]}\n{"number"\n')
    with pytest.raises(ConfigError, match="line 2"):
        read_texts(file)


def test_texts_count_up_to_the_first_gap():
    texts = [Text(number, [1], [2] * 5) for number in (3, 0, 1)]
    assert [text.number for text in first_texts(texts, 100)] == [0, 1]
    assert [text.number for text in first_texts(texts, 5)] == [0]


def test_prompts_without_room_for_an_answer_are_left_out(llm):
    assert encode_prompts(llm, ["ab", "c" * 300, ""], ROOM) == [[97, 98]]
    with pytest.raises(ConfigError, match="all empty or too long"):
        encode_prompts(llm, ["c" * 300], ROOM)


def test_each_epoch_has_every_text_once_in_an_order_of_its_own():
    texts = [Text(number, [1] * (number % 7 + 1), [2] * (number % 11 + 3)) for number in range(90)]
    epochs = [make_batches(texts, 64, seed=0, epoch=epoch) for epoch in (0, 0, 1)]
    for batches in epochs:
        assert sorted(text.number for batch in batches for text in batch) == list(range(90))
        for batch in batches:
            assert len(batch) * max(len(text.prompt) + len(text.answer) for text in batch) <= 64
    assert epochs[0] == epochs[1] != epochs[2]


def test_no_text_is_both_trained_on_and_measured_on():
    texts = [Text(number, [1], [2] * (2 if number == 5 else 4)) for number in range(120)]
    taught, held_out = split_texts(texts)
    assert len(held_out) == 3
    numbers = [text.number for text in [*taught, *held_out]]
    assert sorted(numbers) == [number for number in range(120) if number != 5]


def test_whole_texts_are_taught_on_but_for_how_all_prompts_begin():
    texts = [Text(0, [1, 2, 5, 6], [7, 8]), Text(1, [1, 2, 6], [9]), Text(4, [1, 2, 5], [3])]
    assert whole_texts(texts) == [
        Text(0, [1, 2], [5, 6, 7, 8]),
        Text(1, [1, 2], [6, 9]),
        Text(4, [1, 2], [5, 3]),
    ]


@pytest.mark.parametrize("prompt", [[1], [1, 2, 3]])
def test_prompts_that_are_alike_stay_prompts(prompt):
    """A token of the prompt is left for the first pair to begin with."""
    texts = [Text(number, prompt, [4, 5]) for number in range(2)]
    kept = max(1, len(prompt) - 1)
    assert whole_texts(texts) == [Text(each.number, prompt[:kept], [*prompt[kept:], 4, 5]) for each in texts]
    assert whole_texts([]) == []


def test_the_heads_tokens_are_the_most_frequent_ones_in_ascending_order():
    texts = [Text(0, [9, 9, 9], [4, 2, 2]), Text(1, [9], [7, 4, 4, 1])]
    assert frequent_tokens(texts, 3, 10).tolist() == [1, 2, 4]
    assert frequent_tokens(texts, 6, 10).tolist() == [0, 1, 2, 3, 4, 7]
