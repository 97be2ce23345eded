"""How an AsyncLLM ends: closed, forgotten, forked, left at exit, its event loop gone, its thread dead.

Run: pytest tests/test_async_llm_ends.py
"""

import asyncio
import dataclasses
import gc
import subprocess
import sys
import threading
import time

import pytest
from support.engines import num_held
from support.forking import in_forked_process
from support.story import START, STORY, story_folder

from tspec import AsyncLLM, ConfigError, SamplingParams, TspecError

LONG = SamplingParams(max_tokens=8000, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return story_folder(tmp_path_factory.mktemp("story"), max_position=16384)


def opened(folder, **options):
    return AsyncLLM(folder, **{"num_threads": 2, "max_num_seqs": 4, "kv_cache_mib": 16} | options)


async def read(stream):
    return [chunk async for chunk in stream]


async def started(llm, count):
    """Tasks of both kinds, of which some run."""
    tasks = [
        asyncio.create_task(read(llm.stream(START, LONG)) if number % 2 else llm.generate(START, LONG))
        for number in range(count)
    ]
    while not llm._engine.opened().scheduler.running:
        await asyncio.sleep(0)
    return tasks


CLOSED = "AsyncLLM: got closed, need an open one"


def test_closing_ends_the_tasks_that_wait_and_later_calls_say_so(folder):
    async def main():
        llm = opened(folder)
        tasks = await started(llm, 6)
        late = llm.stream(START)
        llm.close()
        llm.close()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, ConfigError) and CLOSED in str(result)
        for ask in (llm.generate(START), llm.generate([5]), read(late), read(llm.stream(START))):
            with pytest.raises(ConfigError, match=CLOSED):
                await ask
        with pytest.raises(ConfigError, match=CLOSED):
            llm.metrics()

    before = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() <= before + 1  # asyncio's own for texts


def test_async_with_closes_it(folder):
    async def main():
        async with opened(folder) as llm:
            assert (await llm.generate(START))[0].text == STORY
            tasks = await started(llm, 2)
        assert not llm._thread._thread.is_alive()
        assert all(
            isinstance(each, ConfigError) for each in await asyncio.gather(*tasks, return_exceptions=True)
        )

    asyncio.run(main())


@pytest.mark.parametrize("where", ["step", "add"])
def test_a_thread_that_dies_tells_all_who_wait(folder, where):
    async def main():
        llm = opened(folder)
        tasks = await started(llm, 6)

        def die(*_, **__):
            raise SystemExit("of a proposer")

        setattr(llm._engine.opened(), where, die)
        if where == "add":
            tasks.append(asyncio.create_task(llm.generate(START)))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [(type(each), str(each)) for each in results]
        (error,) = set(errors)
        assert error[0] is TspecError
        assert error[1].startswith("AsyncLLM's thread: got SystemExit: of a proposer, need ")
        assert all(isinstance(each.__cause__, SystemExit) for each in results)
        for ask in (llm.generate(START), read(llm.stream(START))):
            with pytest.raises(TspecError, match="AsyncLLM's thread: got SystemExit"):
                await ask
        llm.close()
        llm.close()

    asyncio.run(main())


class FailsOnce:
    """In place of a proposer's `propose`."""

    def __init__(self, llm):
        self.propose, self.has_failed = llm._engine.opened().proposer.propose, False

    def __call__(self, batch):
        if not self.has_failed:
            self.has_failed = True
            raise ZeroDivisionError("a proposer's")
        return self.propose(batch)


def test_an_exception_of_a_step_ends_its_requests_and_nothing_else(folder, monkeypatch):
    """The engine's own rule, seen from tasks: who ran gets an error, who waited goes on."""

    async def main():
        async with opened(folder, max_num_seqs=2) as llm:
            running = await started(llm, 2)
            waiting = [asyncio.create_task(llm.generate(START)) for _ in range(3)]
            while llm._engine.opened().scheduler.num_waiting < 3:
                await asyncio.sleep(0)
            monkeypatch.setattr(llm._engine.opened().proposer, "propose", FailsOnce(llm))
            (one,), chunks = await asyncio.gather(*running)
            for result in (one, chunks[-1].result):
                assert (result.finish_reason, result.error) == ("error", "a proposer's")
            assert [(await each)[0].text for each in waiting] == [STORY] * 3

    asyncio.run(main())


def test_one_that_is_forgotten_ends_its_threads(folder):
    gc.collect()
    before = threading.active_count()
    llm = opened(folder, num_threads=3)
    assert asyncio.run(llm.generate([ord(START)]))[0].text == STORY
    assert threading.active_count() == before + 3
    del llm
    gc.collect()
    assert threading.active_count() == before


def test_a_forked_process_says_so(folder):
    async def main():
        async with opened(folder) as llm:
            tasks = await started(llm, 2)
            for use in (
                lambda: asyncio.new_event_loop().run_until_complete(llm.generate([5])),
                lambda: llm._engine.opened(),
            ):
                assert in_forked_process(use).startswith(
                    "ConfigError: AsyncLLM: got a process forked from the one that made it, need that one"
                )
            assert in_forked_process(llm.close) == "None"
            assert [task.done() for task in tasks] == [False, False]
            assert (await llm.generate(START))[0].text == STORY
            for task in tasks:
                task.cancel()

    asyncio.run(main())


def test_requests_of_an_event_loop_that_is_gone_are_dropped(folder):
    llm = opened(folder)
    loop = asyncio.new_event_loop()
    samples = llm.generate(START, dataclasses.replace(LONG, n=2))
    tasks = [loop.create_task(samples), loop.create_task(read(llm.stream([5], LONG)))]
    loop.run_until_complete(asyncio.sleep(0.1))
    engine = llm._engine.opened()
    assert len(engine.scheduler.running) == 3
    for task in tasks:
        task._log_destroy_pending = False
    loop.close()
    assert asyncio.run(llm.generate(START))[0].text == STORY
    while engine.has_work:
        time.sleep(0.01)
    assert num_held(engine) == {"blocks": 0, "running": 0, "waiting": 0}
    assert engine.metrics().num_emitted < 8000
    llm.close()


SCRIPT = """
import asyncio, sys
from tspec import AsyncLLM, SamplingParams

llm = AsyncLLM(sys.argv[1], num_threads=2, kv_cache_mib=16)

async def main():
    asyncio.create_task(llm.generate("x", SamplingParams(max_tokens=15000, ignore_eos=True)))
    async for chunk in llm.stream("x"):
        print(chunk.text, end="")

asyncio.run(main())
{end}
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "loop = asyncio.new_event_loop(); task = loop.create_task(main()); loop.run_until_complete(asyncio.sleep(0.1))",
    ],
)
def test_a_program_that_closes_nothing_ends(folder, end):
    program = [sys.executable, "-c", SCRIPT.replace("{end}", end), str(folder)]
    result = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout[: len(STORY)]) == (0, STORY), result.stderr
