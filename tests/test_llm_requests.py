"""Chats, parameters for each prompt, progress, and requests of those who step the engine themselves.

Run: pytest tests/test_llm_requests.py
"""

import subprocess
import sys

import numpy as np
import pytest
import transformers
from support.checkpoints import edit_json
from support.engines import num_held
from support.story import BROKEN, OUTPUT, START, STORY, story_folder

from tspec import LLM, CheckpointError, ConfigError, SamplingParams
from tspec.core.shapes import mask_words

TEMPLATE = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}{% if add_generation_prompt %}x{% endif %}"
NOTHING = {"blocks": 0, "running": 0, "waiting": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = story_folder(tmp_path_factory.mktemp("story"), is_broken=True)
    edit_json(folder / "tokenizer_config.json", chat_template=TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(folder, num_threads=1, max_num_seqs=2, speculative_config={"method": "none"}) as llm:
        yield llm


@pytest.fixture(autouse=True)
def leaves_nothing(llm):
    yield
    assert num_held(llm._engine.opened()) == NOTHING
    assert llm._engine._handles == {}


def say(text):
    return [{"role": "user", "content": text}]


def test_a_chat_goes_through_the_template_of_the_checkpoint(llm):
    prompt = llm.encode_chat(say("hé"))
    assert prompt == [*"[hé]x".encode()]
    (result,) = llm.chat(say("hé"))
    assert (result.prompt_token_ids, result.text) == (prompt, STORY)


def test_several_conversations_are_answered_together(llm):
    results = llm.chat([say("a"), [*say("b"), *say("c")]], SamplingParams(n=2, max_tokens=3))
    assert [bytes(each.prompt_token_ids).decode() for each in results] == [
        "[a]x",
        "[a]x",
        "[b][c]x",
        "[b][c]x",
    ]
    assert [each.token_ids for each in results] == [OUTPUT[:3]] * 4
    assert llm.chat([]) == []


def test_the_template_is_read_once(folder, monkeypatch):
    loaded = []
    load = transformers.PreTrainedTokenizerFast.from_pretrained
    monkeypatch.setattr(
        transformers.PreTrainedTokenizerFast,
        "from_pretrained",
        lambda *args, **options: loaded.append(args) or load(*args, **options),
    )
    with LLM(folder, num_threads=1) as llm:
        llm.chat([say("a")] * 9, SamplingParams(max_tokens=1))
    assert len(loaded) == 1


def test_messages_that_the_template_cannot_read_are_refused(llm):
    with pytest.raises(CheckpointError, match="chat template"):
        llm.chat([{"role": "user"}, {"content": {}}.items()])


def test_each_prompt_may_have_its_own_parameters(llm):
    params = [SamplingParams(max_tokens=2), SamplingParams(max_tokens=4, n=2), SamplingParams(max_tokens=0)]
    results = llm.generate([START] * 3, params)
    assert [each.token_ids for each in results] == [OUTPUT[:2], OUTPUT[:4], OUTPUT[:4], []]
    with pytest.raises(ConfigError, match="params: got 2 for 3 prompts, need one for all, or one for each"):
        llm.generate([START] * 3, params[:2])


def test_progress_counts_the_samples_that_have_ended(llm):
    steps = []
    params = [SamplingParams(max_tokens=count) for count in (5, 0, 1, 9)]
    llm.generate([START] * 4, params, use_progress=lambda *step: steps.append(step))
    assert steps[0] == ("generate", 1, 4)
    assert steps[-1] == ("generate", 4, 4)
    assert [step[1] for step in steps] == sorted({step[1] for step in steps})


def test_a_bar_is_drawn_on_request_where_there_is_a_terminal(llm, capsys, monkeypatch):
    llm.generate([START] * 4, use_progress=True)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # which rich takes for a terminal
    llm.generate([START] * 4, use_progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "generate" in err and "4/4" in err


def test_the_library_loads_no_bars():
    code = "import sys, tspec.llm, tspec.async_llm; print('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_what_a_progress_function_raises_ends_the_requests(llm):
    def stop(what, done, total):
        if done > 0:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        llm.generate([START] * 6, use_progress=stop)
    assert not llm.has_work


def test_requests_may_be_stepped_by_hand(llm):
    handles = [llm.add_request(START, SamplingParams(max_tokens=count)) for count in (3, 1, 20, 0)]
    assert [handle.is_finished for handle in handles] == [False, False, False, True]
    assert handles[3].take().result.finish_reason == "length"
    pieces = {handle: [] for handle in handles[:3]}
    while llm.has_work:
        advanced = llm.step()
        assert len(set(advanced)) == len(advanced)
        for handle in advanced:
            pieces[handle].append(handle.take())
            assert (pieces[handle][-1].result is not None) == handle.is_finished
    # Two tokens with the step of the first one's prompt; the third one's went along with a round.
    assert [len(chunks) for chunks in pieces.values()] == [2, 1, 12]
    for handle, chunks in pieces.items():
        assert [token for chunk in chunks for token in chunk.token_ids] == handle.result.token_ids
        assert "".join(chunk.text for chunk in chunks) == handle.result.text
    assert handles[2].result.text == STORY
    assert llm.step() == []


def test_a_handle_that_nobody_asked_has_the_whole_result(llm):
    handle = llm.add_request(START)
    assert handle.result is None
    while not handle.is_finished:
        llm.step()
    assert handle.result.text == STORY
    assert handle.result is handle.result
    chunk = handle.take()
    assert (chunk.text, chunk.token_ids, chunk.result) == (STORY, OUTPUT, handle.result)
    again = handle.take()
    assert (again.text, again.token_ids, again.result) == ("", [], handle.result)


def test_a_request_may_be_dropped_wherever_it_is(llm):
    running, other, waiting, kept = [llm.add_request(START) for _ in range(4)]
    llm.step()
    llm.step()
    for handle in (running, waiting, running):
        llm.abort(handle)
    assert (running.result.finish_reason, running.result.text) == ("abort", "aé")
    assert (waiting.result.finish_reason, waiting.result.token_ids) == ("abort", [])
    while llm.has_work:
        assert not {running, waiting} & set(llm.step())
    assert (other.result.text, kept.result.text) == (STORY, STORY)
    llm.abort(kept)
    assert kept.result.finish_reason == "stop"


def test_lower_priorities_come_first(llm):
    handles = [llm.add_request(START, priority=priority) for priority in (3, 2, 1, -1)]
    ended = []
    while llm.has_work:
        ended += [handle for handle in llm.step() if handle.is_finished]
    assert ended == [handles[3], handles[2], handles[1], handles[0]]


def test_generate_and_streams_carry_requests_along(llm):
    handle = llm.add_request(START)
    assert "".join(chunk.text for chunk in llm.stream(START)) == STORY
    assert handle.take().text == STORY
    handle = llm.add_request(START, SamplingParams(max_tokens=3))
    llm.generate(START)
    assert handle.result.token_ids == OUTPUT[:3]


def test_a_request_of_several_samples_is_refused(llm):
    for use in (llm.add_request, lambda *args: next(llm.stream(*args))):
        with pytest.raises(ConfigError, match="n: got 2, need 1 in a stream or a single request"):
            use(START, SamplingParams(n=2))


def test_a_request_that_fails_says_so_in_its_result(llm):
    broken, good = llm.add_request(BROKEN), llm.add_request(START)
    while llm.has_work:
        llm.step()
    assert (broken.result.finish_reason, good.result.text) == ("error", STORY)
    assert "got none above minus infinity" in broken.take().result.error


class Calling:
    """A constraint that allows all, and calls something once it is asked, within a step."""

    def __init__(self, call):
        self.call = call

    def start(self, vocab_size, stop_ids):
        self.whole = np.full(mask_words(vocab_size), -1, dtype=np.int32)
        return self

    def fill_mask(self, mask):
        mask[:] = self.whole
        self.call()

    def advance(self, token):
        return True

    def take_back(self, count):
        pass


def test_a_constraint_may_drop_requests(llm):
    """Its own, too. They leave at the end of the step."""
    handles = []
    calling = Calling(lambda: [llm.abort(each) for each in handles[:2]])
    handles += [llm.add_request(START), llm.add_request(START, SamplingParams(constraint=calling))]
    kept = llm.add_request(START)
    llm.step()
    assert [each.result.finish_reason for each in handles] == ["abort"] * 2
    assert not set(handles) & set(llm.step())
    while llm.has_work:
        llm.step()
    assert kept.result.text == STORY


@pytest.mark.parametrize("use", ["step", "generate"])
def test_a_constraint_cannot_run_requests(llm, use):
    calling = Calling(llm.step if use == "step" else lambda: llm.generate(START))
    calls, other = llm.add_request(START, SamplingParams(constraint=calling)), llm.add_request(START)
    while llm.has_work:
        llm.step()
    assert (calls.result.finish_reason, other.result.text) == ("error", STORY)
    assert calls.result.error.startswith("step: got one within a step, need one after it")
