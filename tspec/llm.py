"""The user's door: prompts in, texts out."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from pathlib import Path
from typing import Any

from tspec.build import Progress
from tspec.core.errors import ConfigError
from tspec.core.sampling_params import SamplingParams
from tspec.core.speculative_config import SpeculativeConfig
from tspec.requests.handle import Chunk, Prompt, RequestHandle, Result
from tspec.requests.text_engine import open_text_engine
from tspec.runtime.interrupts import HeldInterrupts
from tspec.runtime.metrics import EngineMetrics
from tspec.tokenizer import Message, TextCodec

__all__ = ["LLM", "Chunk", "Prompt", "RequestHandle", "Result"]


class LLM:
    """A model ready to decode.

        llm = LLM("path/to/checkpoint")
        for result in llm.generate(["Once upon a time"], SamplingParams(max_tokens=64)):
            print(result.text)

    model               folder of a Hugging Face style safetensors checkpoint
    speculative_config  keys of `SpeculativeConfig`; None for method "auto". Plain decoding is {"method": "none"}
    dtype               of weights and KV: "auto" (the checkpoint's), "float32", "bfloat16", "float16"
    device              "auto" or "cpu"
    max_model_len       most tokens of prompt and output together; the model's context if None
    max_num_seqs        most sequences decoded at a time
    kv_cache_mib        memory of KV blocks; half of the machine's if None
    num_threads         threads of a pass; one a usable CPU if None
    on_metrics          called with `metrics()` while requests run, at most every metrics_interval_s seconds (10),
                        and at the end; must be quick, as decoding waits for it
    policy              file of `tspec autotune policy`: nothing is measured at the start, and a method whose number of
                        candidates is not given has the one that was found best
    trace               file that gets a JSON line a round: what was proposed, and what came

    Not to be shared between threads: see AsyncLLM. A Ctrl-C takes effect between two steps, and leaves the LLM usable.
    Errors: CheckpointError, ConfigError, CapacityError; ConfigError after `close` and in a forked process.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        speculative_config: Mapping[str, Any] | SpeculativeConfig | None = None,
        on_progress: Progress = lambda what, done, total: None,
        **options: Any,
    ) -> None:
        self._engine = open_text_engine("LLM", model, speculative_config, on_progress, options)
        self.config = self._engine.config

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_progress: bool | Progress = False,
    ) -> list[Result]:
        """Decode all prompts; results are in their order, `n` a prompt. A single prompt may be given bare.

        params        of all prompts, or one for each
        use_progress  True draws a bar on standard error. Or a function like the constructor's `on_progress`
        """
        several = _as_list(prompts)
        each_params = _one_each(params, len(several))
        self._engine.opened()
        handles: list[RequestHandle] = []
        with _progress(use_progress) as on_progress, HeldInterrupts() as interrupts:
            try:
                for prompt, asked in zip(several, each_params, strict=True):
                    handles += self._engine.add(self._engine.encode(prompt), self._engine.samples(asked))
                    interrupts.let_through()
                self._finish(handles, on_progress, interrupts)
                return [each.finished_result() for each in handles]
            finally:
                self._engine.abort(handles)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Chunk]:
        """Decode one prompt, and yield its text as it comes; nothing runs between two pieces.

        Errors   ConfigError for more than one sample
        """
        self._engine.opened()
        token_ids, samples = self._engine.encode(prompt), self._engine.samples(params, most=1)
        handles: list[RequestHandle] = []
        try:
            with HeldInterrupts():
                handles += self._engine.add(token_ids, samples)
            chunk = Chunk("", [])
            while chunk.result is None:
                self._engine.opened()
                # Between two pieces the caller may have run other prompts, and this one along with them.
                if not handles[0].is_finished:
                    self.step()
                chunk = handles[0].take()
                if chunk.token_ids or chunk.result is not None:
                    yield chunk
        finally:
            self._abort(handles)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_progress: bool | Progress = False,
    ) -> list[Result]:
        """Answer a conversation, or several, by the checkpoint's template; else as `generate`."""
        is_single = len(messages) > 0 and isinstance(messages[0], Mapping)
        conversations: Any = [messages] if is_single else messages
        prompts = [self.encode_chat(each) for each in conversations]
        return self.generate(prompts, params, use_progress=use_progress)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a chat, by the checkpoint's template: a prompt for `generate` or `stream`."""
        return self.tokenizer.encode_chat(messages)

    def add_request(
        self, prompt: Prompt, params: SamplingParams | None = None, priority: int = 0
    ) -> RequestHandle:
        """Queue a request of one sample, for those who call `step` themselves.

            handle = llm.add_request("Once upon a time")
            while not handle.is_finished:
                llm.step()
                print(handle.take().text, end="")

        priority   lower numbers come first, then those that came first
        Errors     ConfigError for more than one sample
        """
        self._engine.opened()
        token_ids, samples = self._engine.encode(prompt), self._engine.samples(params, most=1)
        handles: list[RequestHandle] = []
        try:
            with HeldInterrupts():
                handles += self._engine.add(token_ids, samples, priority)
        except BaseException:
            self._abort(handles)
            raise
        return handles[0]

    def step(self) -> list[RequestHandle]:
        """Run one step for all requests; returns those that gained tokens or ended. Does nothing without requests.

        Requests may also be carried along by `generate` and `stream`, and are not named here then.
        """
        with HeldInterrupts():
            return self._engine.step()

    def abort(self, handle: RequestHandle) -> None:
        """Drop a request: it ends here, and what it held is free. Harmless for one that has ended."""
        self._abort([handle])

    @property
    def has_work(self) -> bool:
        """Whether requests wait or run."""
        return self._engine.has_work

    @property
    def tokenizer(self) -> TextCodec:
        """The checkpoint's tokenizer; grammars are made with it. Errors: ConfigError where there is none."""
        return self._engine.tokenizer

    def metrics(self) -> EngineMetrics:
        """What the engine has done since it was made. May be called from any thread."""
        return self._engine.opened().metrics()

    def close(self) -> None:
        """Drop all requests, end the threads and free the memory. The LLM cannot be used afterwards."""
        with HeldInterrupts():
            self._engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _finish(
        self, handles: Sequence[RequestHandle], on_progress: Progress, interrupts: HeldInterrupts
    ) -> None:
        """Step until all have ended; others may be carried along."""
        running = {handle for handle in handles if not handle.is_finished}
        on_progress("generate", len(handles) - len(running), len(handles))
        while running and self._engine.has_work:  # on_progress may step, too
            ended = [each for each in self._engine.step() if each.is_finished and each in running]
            running.difference_update(ended)
            if ended:
                on_progress("generate", len(handles) - len(running), len(handles))
            interrupts.let_through()

    def _abort(self, handles: Sequence[RequestHandle]) -> None:
        with HeldInterrupts():
            self._engine.abort(handles)


def _progress(wanted: bool | Progress) -> AbstractContextManager[Progress]:
    if wanted is True:
        from tspec.progress import progress_bar  # rich is for those who want to see a bar

        return progress_bar()
    return nullcontext(wanted or (lambda what, done, total: None))


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> Sequence[SamplingParams | None]:
    """The parameters of each prompt. Errors: ConfigError for another number of them than of prompts."""
    if params is None or isinstance(params, SamplingParams):
        return [params] * num_prompts
    if len(params) != num_prompts:
        raise ConfigError(
            "params",
            got=f"{len(params)} for {num_prompts} prompts",
            need="one for all, or one for each",
            fix="Give as many as there are prompts.",
        )
    return params
