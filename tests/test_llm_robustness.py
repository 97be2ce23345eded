"""Ctrl-C, closed and forked: an LLM that was interrupted goes on, one that cannot says so.

Run: pytest tests/test_llm_robustness.py
"""

import os
import signal
import subprocess
import sys
import threading

import pytest
from support.engines import TestProposer, num_held
from support.forking import in_forked_process
from support.sources import ROOT
from support.story import START, STORY, story_folder

from tspec import LLM, ConfigError, SamplingParams
from tspec.runtime.interrupts import HeldInterrupts

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
    engine._proposer = Interrupted(where, count)
    bystander = llm.add_request(START)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([START] * 6)
    assert bystander.is_finished or num_held(engine)["waiting"] == 1
    while llm.has_work:
        llm.step()
    assert bystander.result.finish_reason == "error" or bystander.result.text == STORY
    assert (num_held(engine), engine._proposer.texts, llm._engine._handles) == (NOTHING, {}, {})
    assert [each.text for each in llm.generate([START] * 6)] == [STORY] * 6


@pytest.mark.parametrize("use", ["stream", "step"])
def test_an_interrupt_in_other_calls_leaves_the_llm_usable(llm, use):
    llm._engine.opened()._proposer = Interrupted("observe", 2)
    handle = llm.add_request(START)
    with pytest.raises(KeyboardInterrupt):
        if use == "stream":
            list(llm.stream(START))
        while True:
            llm.step()
    assert handle.result.finish_reason == "error"
    assert num_held(llm._engine.opened()) == NOTHING
    assert llm.generate(START)[0].text == STORY


PRESSES = """
import os, random, signal, sys, threading
from support.engines import NGRAM, num_held
from support.story import START, STORY
from tspec import LLM, SamplingParams

llm = LLM(sys.argv[1], speculative_config=NGRAM, num_threads=2, max_num_seqs=3)
random.seed(7)
caught = 0
for turn in range(150):
    delay = random.random() * 0.02
    press = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    try:
        press.start()
        while True:
            if turn % 3:
                llm.generate([START, "yx"] * 2, SamplingParams(max_tokens=40, ignore_eos=True))
            else:
                list(llm.stream(START))
    except KeyboardInterrupt:
        caught += 1
    press.join()
    engine = llm._engine.opened()
    assert num_held(engine) == {"blocks": 0, "running": 0, "waiting": 0}, turn
    assert llm._engine._handles == {} and engine._proposer._regions._num_taken == 0, turn
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert [each.text for each in llm.generate([START] * 5)] == [STORY] * 5
print(caught)
"""


def test_ctrl_c_at_any_time_leaves_the_llm_usable(folder):
    """Real signals, at random moments of generate and stream."""
    program = [sys.executable, "-c", PRESSES, str(folder)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    result = subprocess.run(program, capture_output=True, text=True, env=environment, timeout=280)
    assert (result.returncode, result.stdout) == (0, "150\n"), result.stderr


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
        llm._engine._engine.executor._threads._finalizer()
        llm.close()

    assert in_forked_process(exit_properly) == "None"
    assert [each.text for each in llm.generate([START] * 3)] == [STORY] * 3
