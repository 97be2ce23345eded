"""One engine for many tasks: what each gets, what it leaves behind when it is cancelled, and how it all ends.

Run: pytest tests/test_async_llm.py
"""

import asyncio
import contextlib
import gc
import random
import threading

import pytest
from support.engines import num_held
from support.story import BROKEN, OUTPUT, START, STORY, story_folder

from tspec import LLM, AsyncLLM, CapacityError, ConfigError, SamplingParams

NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 5}
NOTHING = {"blocks": 0, "running": 0, "waiting": 0}
LONG = SamplingParams(max_tokens=4000, ignore_eos=True)
"""Runs until it is cancelled: some seconds."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return story_folder(tmp_path_factory.mktemp("story"), is_broken=True, max_position=8192)


@pytest.fixture(scope="module", params=[None, NGRAM], ids=["plain", "ngram"])
def llm(request, folder):
    llm = AsyncLLM(folder, speculative_config=request.param, num_threads=2, max_num_seqs=4, kv_cache_mib=16)
    yield llm
    llm.close()


def engine_of(llm):
    return llm._engine.opened()


async def wait_for_rest(llm):
    """Until nothing runs; what is asked for meanwhile is waited for, too."""
    while engine_of(llm).has_work or llm._thread._open or not llm._thread._asked.empty():
        await asyncio.sleep(0.001)
    # The thread may still be in the step after which it waits: one more call goes through it.
    await llm.generate(START, SamplingParams(max_tokens=0))
    while llm._thread._calls:
        await asyncio.sleep(0.001)


def assert_nothing_is_left(llm):
    """After a test: no blocks, no slots, no calls, no memory of the proposer's."""
    asyncio.run(wait_for_rest(llm))
    engine = engine_of(llm)
    assert num_held(engine) == NOTHING
    assert (llm._engine._handles, llm._thread._calls) == ({}, {})
    regions = getattr(engine.proposer, "_regions", None)
    assert regions is None or regions._num_taken == 0


@pytest.fixture(autouse=True)
def leaves_nothing(request):
    yield
    if "llm" in request.fixturenames:
        assert_nothing_is_left(request.getfixturevalue("llm"))


async def pieces_of(stream):
    return [chunk async for chunk in stream]


def test_a_prompt_gives_a_result_a_sample(llm):
    async def main():
        assert [each.text for each in await llm.generate(START)] == [STORY]
        three = await llm.generate(
            [*START.encode()], SamplingParams(n=3, seed=5, temperature=8, max_tokens=9)
        )
        ones = [
            await llm.generate(START, SamplingParams(seed=5 + sample, temperature=8, max_tokens=9))
            for sample in range(3)
        ]
        assert [each.token_ids for each in three] == [each.token_ids for (each,) in ones]
        assert len({tuple(each.token_ids) for each in three}) == 3

    asyncio.run(main())


@pytest.mark.parametrize("max_tokens", [0, 1, 3, 5, 100])
def test_a_stream_gives_the_text_of_generate(llm, max_tokens):
    async def main():
        params = SamplingParams(max_tokens=max_tokens)
        chunks = await pieces_of(llm.stream(f"{STORY}{START}", params))
        (result,) = await llm.generate(f"{STORY}{START}", params)
        assert [chunk.result is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
        assert "".join(chunk.text for chunk in chunks) == chunks[-1].result.text == result.text
        assert [token for chunk in chunks for token in chunk.token_ids] == result.token_ids

    asyncio.run(main())


def test_what_comes_while_nobody_asks_is_one_piece(llm):
    async def main():
        stream = llm.stream(START)
        first = await anext(stream)
        await wait_for_rest(llm)
        pieces = [first, *await pieces_of(stream)]
        assert len(pieces) <= 2  # one, where all had come before the first was looked at
        assert "".join(piece.text for piece in pieces) == pieces[-1].result.text == STORY
        assert [token for piece in pieces for token in piece.token_ids] == OUTPUT

    asyncio.run(main())


def test_many_tasks_get_what_each_would_get_alone(folder, llm):
    random.seed(4)
    cases = [
        (START * random.randint(1, 90), SamplingParams(max_tokens=random.randint(0, 30), **more))
        for more in [
            {},
            {"seed": 3, "temperature": 8},
            {"seed": 4, "temperature": 5, "top_p": 0.8},
            {"repetition_penalty": 1.4},
        ]
        * 16
    ]

    async def ask(prompt, params, number):
        await asyncio.sleep(random.random() * 0.1)
        if number % 2:
            return (await pieces_of(llm.stream(prompt, params)))[-1].result
        return (await llm.generate(prompt, params))[0]

    async def main():
        return await asyncio.gather(*[ask(*case, number) for number, case in enumerate(cases)])

    results = asyncio.run(main())
    with LLM(folder, num_threads=1, max_num_seqs=1) as alone:
        expected = [alone.generate(*case)[0] for case in cases]
    assert [(each.text, each.token_ids) for each in results] == [
        (each.text, each.token_ids) for each in expected
    ]


def test_tasks_of_several_event_loops_share_an_engine(llm):
    texts = []

    async def main():
        texts.extend([(await llm.generate(START))[0].text for _ in range(5)])

    threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [STORY] * 20


class StepCounter:
    """Counts the steps that an engine begins."""

    def __init__(self, engine):
        self.count, self._step = 0, engine.step
        engine.step = self.step

    def step(self):
        self.count += 1
        return self._step()


@pytest.mark.parametrize("ends", ["cancelled", "closed"])
def test_what_a_request_held_is_free_within_a_step(llm, ends):
    """Whether it waits, is new or runs: eight requests, of which four have a slot."""

    async def read(stream):
        async with contextlib.aclosing(stream):
            async for chunk in stream:
                assert chunk.result is None
                if ends == "closed" and wants_end.is_set():
                    return

    async def main():
        tasks = [
            asyncio.create_task(read(llm.stream(START, LONG)))
            if ends == "closed" or number % 2
            else asyncio.create_task(llm.generate(START, LONG))
            for number in range(4 if ends == "closed" else 8)
        ]
        while len(engine_of(llm).scheduler.running) < 4:
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        wants_end.set()
        if ends == "cancelled":
            for task in tasks:
                task.cancel()
        await asyncio.wait(tasks)
        begun = steps.count
        while engine_of(llm).has_work:
            await asyncio.sleep(0)
        assert steps.count - begun <= 1
        return [task.cancelled() for task in tasks]

    wants_end = asyncio.Event()
    steps = StepCounter(engine_of(llm))
    try:
        assert asyncio.run(main()) == [ends == "cancelled"] * (4 if ends == "closed" else 8)
    finally:
        del engine_of(llm).step


def test_a_request_may_be_cancelled_at_any_time(llm):
    """Before it is handed over, while it waits, in its prefill, while it decodes, at its end."""

    async def main():
        for number in range(120):
            text = START * 300 if number % 3 else [ord(START)] * 300
            params = SamplingParams(max_tokens=5, n=1 + number % 4 // 2)
            task = asyncio.create_task(
                llm.generate(text, params) if number % 2 else pieces_of(llm.stream(text))
            )
            for _ in range(number % 20):
                await asyncio.sleep(0)
            await asyncio.sleep(random.random() * 0.01 * (number % 4))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert (await llm.generate(START))[0].text == STORY

    asyncio.run(main())


def test_a_stream_that_is_left_or_never_begun_holds_nothing(llm):
    async def main():
        llm.stream(START, LONG)
        async for _ in llm.stream(START, LONG):
            break
        gc.collect()
        await asyncio.sleep(0)
        await wait_for_rest(llm)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        ([5, 999], None, ConfigError, "prompt tokens: got ids 5 to 999"),
        ("", None, ConfigError, "prompt: got no tokens"),
        ([1] * 9000, None, CapacityError, "prompt length: got 9000 tokens"),
        (START, SamplingParams(logit_bias={999: 1.0}), ConfigError, "logit_bias token id: got 999"),
    ],
)
def test_a_request_that_cannot_be_is_refused_alone(llm, prompt, params, error, message):
    async def main():
        others = [asyncio.create_task(llm.generate(f"{STORY}{START}")) for _ in range(6)]
        with pytest.raises(error, match=message):
            await llm.generate(prompt, params)
        with pytest.raises(error, match=message):
            await pieces_of(llm.stream(prompt, params))
        assert [(await each)[0].text for each in others] == [STORY] * 6

    asyncio.run(main())


def test_a_stream_is_of_one_sample(llm):
    async def main():
        with pytest.raises(ConfigError, match="n: got 2, need 1 in a stream"):
            await anext(llm.stream(START, SamplingParams(n=2)))

    asyncio.run(main())


class Unruly:
    """A constraint whose code fails."""

    def start(self, vocab_size, stop_ids):
        raise ZeroDivisionError("a constraint of the caller's")


def test_what_a_constraint_raises_reaches_its_own_task(llm):
    async def main():
        other = asyncio.create_task(llm.generate(START))
        with pytest.raises(ZeroDivisionError, match="a constraint of the caller's"):
            await llm.generate(START, SamplingParams(constraint=Unruly()))
        assert (await other)[0].text == STORY

    asyncio.run(main())


def test_a_sequence_that_fails_says_so_in_its_result_and_fails_alone(llm):
    async def main():
        good, bad = await asyncio.gather(llm.generate(START), llm.generate(BROKEN))
        (last,) = (await pieces_of(llm.stream(BROKEN)))[-1:]
        assert good[0].text == STORY
        for result in (bad[0], last.result):
            assert (result.finish_reason, result.text) == ("error", "")
            assert "got none above minus infinity" in result.error

    asyncio.run(main())


def test_a_text_that_cannot_be_made_fails_alone(llm, monkeypatch):
    """The tokenizer's decode runs in the engine's thread, where an exception would end all."""

    async def main():
        waiting = asyncio.create_task(llm.generate(f"{STORY}{START}"))
        codec, decode, second = llm.tokenizer, llm.tokenizer.decode, "日".encode()[0]
        monkeypatch.setattr(codec, "decode", lambda ids: 1 // (ids[0] != second) and decode(ids))
        for ask in (llm.generate("é"), pieces_of(llm.stream("é")), llm.generate("é", SamplingParams(n=3))):
            with pytest.raises(ZeroDivisionError):
                await ask
        assert (await waiting)[0].text == STORY

    asyncio.run(main())


def test_lower_priorities_come_first(folder):
    order = []

    async def ask(llm, number):
        await llm.generate(START, SamplingParams(max_tokens=3), priority=number)
        order.append(number)

    async def main():
        async with AsyncLLM(folder, num_threads=1, max_num_seqs=1) as llm:
            first = asyncio.create_task(
                pieces_of(llm.stream(START, SamplingParams(max_tokens=60, ignore_eos=True)))
            )
            while not engine_of(llm).scheduler.running:
                await asyncio.sleep(0)
            await asyncio.gather(first, *[ask(llm, number) for number in (3, 1, 2, 0)])

    asyncio.run(main())
    assert order == [0, 1, 2, 3]
