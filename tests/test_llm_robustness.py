"""Ctrl-C, closed and forked: an LLM that was interrupted goes on, one that cannot says so.

Run: pytest tests/test_llm_robustness.py
"""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from support.engines import NGRAM, TestProposer, num_held
from support.forking import in_forked_process
from support.story import START, STORY, story_folder

import tspec
from tspec import LLM, ConfigError, SamplingParams
from tspec.runtime.interrupts import HeldInterrupts

PACKAGE = str(Path(tspec.__file__).parent)
NOTHING = {"blocks": 0, "running": 0, "waiting": 0}
FORKED = "ConfigError: {}: got a process forked from the one that made it, need that one"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return story_folder(tmp_path_factory.mktemp("story"))


@pytest.fixture
def llm(folder):
    with LLM(folder, num_threads=2, max_num_seqs=4) as llm:
        yield llm


class Interrupted(TestProposer):
    """A proposer during which somebody presses Ctrl-C, in its `count`th call of `where`."""

    def __init__(self, where, count):
        super().__init__()
        self.where, self.count = where, count

    def meet(self, where):
        self.count -= where == self.where
        if where == self.where and self.count == 0:
            raise KeyboardInterrupt

    def admit(self, slot, prompt):
        self.meet("admit")
        super().admit(slot, prompt)

    def propose(self, batch):
        self.meet("propose")
        return super().propose(batch)

    def observe(self, committed):
        self.meet("observe")
        super().observe(committed)

    def release(self, slot):
        self.texts.pop(slot, None)


@pytest.mark.parametrize("where", ["admit", "propose", "observe"])
@pytest.mark.parametrize("count", [1, 3])
def test_an_interrupt_in_the_proposer_ends_generate_and_leaves_the_llm_usable(llm, where, count):
    engine = llm._engine.opened()
    engine.proposer = Interrupted(where, count)
    bystander = llm.add_request(START)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([START] * 6)
    assert bystander.is_finished or num_held(engine)["waiting"] == 1
    while llm.has_work:
        llm.step()
    assert bystander.result.finish_reason == "error" or bystander.result.text == STORY
    assert (num_held(engine), engine.proposer.texts, llm._engine._handles) == (NOTHING, {}, {})
    assert [each.text for each in llm.generate([START] * 6)] == [STORY] * 6


@pytest.mark.parametrize("use", ["stream", "step"])
def test_an_interrupt_in_other_calls_leaves_the_llm_usable(llm, use):
    llm._engine.opened().proposer = Interrupted("observe", 2)
    handle = llm.add_request(START)
    with pytest.raises(KeyboardInterrupt):
        if use == "stream":
            list(llm.stream(START))
        while True:
            llm.step()
    assert handle.result.finish_reason == "error"
    assert num_held(llm._engine.opened()) == NOTHING
    assert llm.generate(START)[0].text == STORY


class Press:
    """A trace function that presses Ctrl-C before the `number`th line of tspec's own code."""

    def __init__(self, number):
        self.number, self.count = number, 0

    def __call__(self, frame, event, _):
        if PACKAGE not in frame.f_code.co_filename:
            return None
        self.count += event == "line"
        if self.count == self.number and event == "line":
            signal.raise_signal(signal.SIGINT)
        return self


def is_interrupted(number, use):
    """Whether a Ctrl-C before line `number` of `use` ended it; nothing else may come of it. And the lines there are."""
    press = Press(number)
    sys.settrace(press)
    try:
        use()
    except KeyboardInterrupt:
        return True, press.count
    finally:
        sys.settrace(None)
    return False, press.count


@pytest.mark.parametrize("use", ["generate", "stream", "step"])
def test_ctrl_c_before_any_line_of_the_library_leaves_the_llm_usable(folder, use):
    """Two requests, and another one beside them; every seventeenth line of what they need."""

    def run():
        if use == "generate":
            llm.generate([START, f"{STORY}{START}"])
        elif use == "stream":
            list(llm.stream(START))
        else:
            while llm.has_work:
                llm.step()

    with LLM(folder, speculative_config=NGRAM, num_threads=1, max_num_seqs=3) as llm:
        engine = llm._engine.opened()
        number, num_interrupted, is_over = 1, 0, False
        while not is_over:
            bystander = llm.add_request(START)
            is_ended, num_lines = is_interrupted(number, run)
            num_interrupted += is_ended
            is_over = num_lines < number
            while llm.has_work:
                llm.step()
            assert bystander.result.text == STORY
            assert (num_held(engine), llm._engine._handles) == (NOTHING, {}), number
            assert engine.proposer._regions._num_taken == 0, number
            number += 17
        assert num_interrupted == number // 17 - 1 > 40


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass  # signals are handled between two instructions


def test_a_held_interrupt_comes_at_the_end_or_where_it_is_let_through():
    reached = []
    with pytest.raises(KeyboardInterrupt), HeldInterrupts():
        press_ctrl_c()
        reached.append("end of the block")
    with pytest.raises(KeyboardInterrupt), HeldInterrupts() as interrupts:
        interrupts.let_through()
        press_ctrl_c()
        reached.append("let through")
        interrupts.let_through()
        reached.append("never")
    with HeldInterrupts():
        reached.append("the next block")
    assert reached == ["end of the block", "let through", "the next block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_does_not_wait():
    with pytest.raises(KeyboardInterrupt), HeldInterrupts():
        press_ctrl_c()
        press_ctrl_c()
        pytest.fail("the second one was held, too")


def test_interrupts_are_held_within_each_other():
    reached = []
    with pytest.raises(KeyboardInterrupt), HeldInterrupts():
        with HeldInterrupts():
            press_ctrl_c()
        reached.append("between the ends")
    assert reached == ["between the ends"]


def test_other_threads_and_other_handlers_hold_nothing():
    outcomes = []

    def hold():
        with HeldInterrupts():
            outcomes.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        hold()
        press_ctrl_c()
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcomes == [signal.default_int_handler, signal.SIG_IGN]


def test_a_closed_llm_says_so(folder):
    llm = LLM(folder, num_threads=2)
    stream, handle = llm.stream(START), llm.add_request(START)
    next(stream)
    llm.close()
    llm.close()
    assert handle.result.finish_reason == "abort"
    llm.abort(handle)
    for use in (
        lambda: llm.generate(START),
        lambda: llm.generate([]),
        lambda: next(llm.stream(START)),
        lambda: next(stream),
        lambda: llm.add_request(START),
        llm.step,
        llm.metrics,
        lambda: llm.has_work,
    ):
        with pytest.raises(ConfigError, match="LLM: got closed, need an open one"):
            use()


def test_a_forked_process_says_so_and_harms_nothing(llm):
    handle = llm.add_request(START)
    stream = llm.stream(START)
    next(stream)
    for use in (
        lambda: llm.generate(START),
        lambda: next(llm.stream(START)),
        lambda: next(stream),
        lambda: llm.add_request(START),
        llm.step,
        lambda: llm.has_work,
    ):
        assert in_forked_process(use).startswith(FORKED.format("LLM"))
    for use in (lambda: llm.abort(handle), llm.close, stream.close):
        assert in_forked_process(use) == "None"
    assert "".join(chunk.text for chunk in stream) == STORY[1:]
    assert llm.generate(START)[0].text == STORY


def test_an_engine_says_that_it_was_forked_or_closed(folder):
    llm = LLM(folder, num_threads=2)
    engine = llm._engine.opened()

    def step():
        sequence = engine.add([5], SamplingParams())
        engine.step()
        return sequence.error

    assert in_forked_process(step).startswith(FORKED.format("engine").removeprefix("ConfigError: "))
    engine.close()
    engine.close()
    assert step() == "threads: got closed ones, need open ones. Build a new engine."
    llm.close()


def test_a_forked_process_that_ends_leaves_the_threads_of_its_parent(llm):
    """At its exit Python would end them, as if they were its own."""

    def exit_properly():
        llm._engine._engine.executor.threads._finalizer()
        llm.close()

    assert in_forked_process(exit_properly) == "None"
    assert [each.text for each in llm.generate([START] * 3)] == [STORY] * 3
