"""The user's door for asyncio: one engine in a thread of its own, and any number of tasks that wait for it."""

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tspec.build import Progress
from tspec.core.sampling_params import SamplingParams
from tspec.core.speculative_config import SpeculativeConfig
from tspec.requests.engine_thread import Call, EngineThread, Inbox, News
from tspec.requests.handle import Chunk, Prompt, Result
from tspec.requests.text_engine import open_text_engine
from tspec.runtime.metrics import EngineMetrics
from tspec.tokenizer import Message, TextCodec


class AsyncLLM:
    """A model that decodes for many tasks at once. Options are those of `LLM`; it is loaded when the call returns.

        async with AsyncLLM("path/to/checkpoint") as llm:
            async for chunk in llm.stream("Once upon a time", SamplingParams(max_tokens=64)):
                print(chunk.text, end="")

    A request ends when its task is cancelled, or its stream closed: within a step, all that it held is free. What is
    wrong with a request is raised where it was made, or stands in its result; other requests go on.

    May be shared between tasks, event loops and threads. Errors: those of `LLM`; TspecError in all tasks that wait, if
    the engine itself ends.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        speculative_config: Mapping[str, Any] | SpeculativeConfig | None = None,
        on_progress: Progress = lambda what, done, total: None,
        **options: Any,
    ) -> None:
        self._engine = open_text_engine("AsyncLLM", model, speculative_config, on_progress, options)
        self.config = self._engine.config
        self._thread = EngineThread("AsyncLLM", self._engine, _wake)
        self._finalizer = weakref.finalize(self, self._thread.stop)

    async def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, priority: int = 0
    ) -> list[Result]:
        """Decode one prompt; returns its `params.n` results. Lower numbers of `priority` come first."""
        call, inbox = await self._submit(prompt, params, priority, is_streamed=False)
        try:
            return (await inbox.results())[0]
        finally:
            self._thread.drop(call)

    async def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, priority: int = 0
    ) -> AsyncIterator[Chunk]:
        """Decode one prompt, and yield its text as it comes; what came while nobody asked is one chunk.

        Errors   ConfigError for more than one sample
        """
        call, inbox = await self._submit(prompt, params, priority, is_streamed=True)
        try:
            is_open = True
            while is_open:
                chunk = _joined(await inbox.chunks())
                is_open = chunk.result is None
                yield chunk
        finally:
            self._thread.drop(call)

    async def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, priority: int = 0
    ) -> list[Result]:
        """Answer a conversation by the checkpoint's template; else as `generate`."""
        return await self.generate(await self.encode_chat(messages), params, priority=priority)

    async def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a chat, by the checkpoint's template: a prompt for `generate` or `stream`."""
        return await asyncio.to_thread(self.tokenizer.encode_chat, messages)

    @property
    def tokenizer(self) -> TextCodec:
        """The checkpoint's tokenizer; grammars are made with it. Errors: ConfigError where there is none."""
        return self._engine.tokenizer

    def metrics(self) -> EngineMetrics:
        """What the engine has done since it was made. May be called from any thread."""
        return self._engine.opened().metrics()

    def close(self) -> None:
        """End the engine after the step in which it is; tasks that wait get a ConfigError. Harmless when called twice.

        Waits for that step: `async with` does so without holding up the event loop.
        """
        self._finalizer()

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    async def _submit(
        self, prompt: Prompt, params: SamplingParams | None, priority: int, *, is_streamed: bool
    ) -> tuple[Call, "_Inbox"]:
        """Hand a prompt to the engine's thread. Nothing is awaited once it is there, so that it is always dropped."""
        self._thread.check()
        samples = self._engine.samples(params, most=1 if is_streamed else None)
        if isinstance(prompt, str):  # long texts take their time, which other tasks can use
            token_ids = await asyncio.to_thread(self._engine.encode, prompt)
        else:
            token_ids = self._engine.encode(prompt)
        inbox = _Inbox()
        call = Call(token_ids, samples, priority, is_streamed, inbox)
        self._thread.submit(call)
        return call, inbox


class _Inbox:
    """News for one task, from the engine's thread."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.has_news = asyncio.Event()
        self._news: deque[News] = deque()

    def put(self, news: News) -> None:
        """Keep news. Called in the engine's thread."""
        self._news.append(news)

    def is_open(self) -> bool:
        """Whether the event loop is there. One that was closed without cancelling its tasks never says so."""
        return not self.loop.is_closed()

    async def chunks(self) -> list[Chunk]:
        """Wait for chunks; all that have come."""
        return [each for each in await self._take() if isinstance(each, Chunk)]

    async def results(self) -> list[list[Result]]:
        """Wait for the results."""
        return [each for each in await self._take() if isinstance(each, list)]

    async def _take(self) -> list[News]:
        """Wait until there is something; raise it if it is an error."""
        while not self._news:
            await self.has_news.wait()
            self.has_news.clear()
        taken = [self._news.popleft() for _ in range(len(self._news))]
        for news in taken:
            if isinstance(news, Exception):
                raise news
        return taken


def _wake(inboxes: Sequence[Inbox]) -> None:
    """Let the tasks of these inboxes look into them: one message for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Inbox]] = {}
    for inbox in inboxes:
        assert isinstance(inbox, _Inbox)
        by_loop.setdefault(inbox.loop, []).append(inbox)
    for loop, those in by_loop.items():
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            loop.call_soon_threadsafe(_announce, those)


def _announce(inboxes: Sequence[_Inbox]) -> None:
    for inbox in inboxes:
        inbox.has_news.set()


def _joined(chunks: Sequence[Chunk]) -> Chunk:
    token_ids = [token for chunk in chunks for token in chunk.token_ids]
    return Chunk("".join(chunk.text for chunk in chunks), token_ids, chunks[-1].result)
