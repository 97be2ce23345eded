"""The user's door: prompts in, texts out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

from tspec.build import BuildOptions, Progress, build_engine, load_config
from tspec.core.errors import ConfigError
from tspec.core.sampling import TokenLogprobs
from tspec.core.sampling_params import SamplingParams, split_samples
from tspec.core.speculative_config import SpeculativeConfig
from tspec.runtime.loop import Engine
from tspec.runtime.metrics import EngineMetrics
from tspec.runtime.sequence import FinishReason, SequenceStats
from tspec.runtime.sequence import Sequence as RunningSequence
from tspec.runtime.text import TextStream
from tspec.tokenizer import Message, TextCodec, load_codec

Prompt = str | Sequence[int]
"""A text, or token ids."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one sample of a prompt gave. `token_ids` has the stop token, `text` not.

    finish_reason    "stop", "length" or "error"
    error            what went wrong, where that is the reason: this sample alone is affected
    seed             makes the same text again, as SamplingParams.seed; None where decoding was greedy
    logprobs         one entry a token where SamplingParams.logprobs asks for them
    prompt_logprobs  one entry a token of the prompt, None for the first
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str
    stats: SequenceStats
    error: str | None = None
    seed: int | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed text. The last one has the whole `result`."""

    text: str
    token_ids: list[int]
    result: Result | None = None


class LLM:
    """A model ready to decode.

        llm = LLM("path/to/checkpoint", speculative_config={"method": "ngram"})
        for result in llm.generate(["Once upon a time"], SamplingParams(max_tokens=64)):
            print(result.text)

    model               folder of a Hugging Face style safetensors checkpoint
    speculative_config  keys of `SpeculativeConfig`; None for plain decoding
    dtype               of weights and KV: "auto" (the checkpoint's), "float32", "bfloat16", "float16"
    device              "auto" or "cpu"
    max_model_len       most tokens of prompt and output together; the model's context if None
    max_num_seqs        most sequences decoded at a time
    kv_cache_mib        memory of KV blocks; half of the machine's if None
    num_threads         threads of a pass; one a usable CPU if None
    on_metrics          called with `metrics()` while requests run, at most every metrics_interval_s seconds (10),
                        and at the end; must be quick, as decoding waits for it

    Not to be shared between threads. Errors: CheckpointError, ConfigError, CapacityError.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        speculative_config: Mapping[str, Any] | SpeculativeConfig | None = None,
        on_progress: Progress = lambda what, done, total: None,
        **options: Any,
    ) -> None:
        folder, asked = Path(model), _build_options(options)
        speculative = SpeculativeConfig.of(speculative_config)
        self._codec: TextCodec | None = None
        if (folder / "tokenizer.json").exists():  # first: what is wrong with it shows before weights are read
            self._codec = load_codec(folder, load_config(folder, asked.dtype).vocab_size)
        self._engine: Engine | None = build_engine(folder, speculative, asked, on_progress)
        self.config = self._engine.config

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | None = None
    ) -> list[Result]:
        """Decode all prompts; results are in their order, `params.n` a prompt. A single prompt may be given bare."""
        engine = self._open_engine()
        several, samples = _as_list(prompts), self._samples(params)
        sequences: list[RunningSequence] = []
        try:
            for prompt in several:
                ids = self._ids(prompt)
                sequences += [engine.add(ids, each) for each in samples]
            while any(each.finish_reason is None for each in sequences):
                engine.step()
        finally:
            for each in sequences:
                engine.abort(each)
        return [self._result(each) for each in sequences]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Chunk]:
        """Decode one prompt, and yield its text as it comes; nothing runs between two pieces.

        Errors   ConfigError for more than one sample
        """
        engine = self._open_engine()
        samples = self._samples(params)
        if len(samples) > 1:
            raise ConfigError(
                "n", got=len(samples), need="1 in a stream", fix="Use generate, or one stream a sample."
            )
        sequence = engine.add(self._ids(prompt), samples[0])
        text = TextStream(self._decode)
        given = 0
        try:
            while True:
                # Between two pieces the caller may have run other prompts, and this one along with them.
                if sequence.finish_reason is None:
                    self._open_engine().step()
                fresh = sequence.output_from(given)
                given += len(fresh)
                if sequence.finish_reason is not None:
                    break
                if fresh:
                    yield Chunk(text.push(fresh), fresh)
        finally:
            engine.abort(sequence)
        piece = text.push(_without_stop(sequence, fresh)) + text.finish()
        yield Chunk(piece, fresh, self._result(sequence))

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a chat, by the checkpoint's template: a prompt for `generate` or `stream`."""
        return self._need_codec().encode_chat(messages)

    @property
    def tokenizer(self) -> TextCodec:
        """The checkpoint's tokenizer; grammars are made with it. Errors: ConfigError where there is none."""
        return self._need_codec()

    def metrics(self) -> EngineMetrics:
        """What the engine has done since it was made. May be called from any thread."""
        return self._open_engine().metrics()

    def close(self) -> None:
        """End the threads and free the memory. The LLM cannot be used afterwards."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_engine(self) -> Engine:
        if self._engine is None:
            raise ConfigError("LLM", got="closed", need="an open one", fix="Make a new LLM.")
        return self._engine

    def _need_codec(self) -> TextCodec:
        if self._codec is None:
            raise ConfigError(
                "tokenizer",
                got="no tokenizer.json beside the weights",
                need="one, to read text",
                fix="Copy it from the model's repository, or pass token ids.",
            )
        return self._codec

    def _ids(self, prompt: Prompt) -> list[int]:
        return self._need_codec().encode(prompt) if isinstance(prompt, str) else list(prompt)

    def _samples(self, params: SamplingParams | None) -> list[SamplingParams]:
        """The parameters of each sample of a prompt, with texts turned into token ids."""
        params = params or SamplingParams()
        words: list[Sequence[int]] = []
        for word in params.bad_words:
            words += self._need_codec().forbidden_sequences(word) if isinstance(word, str) else [word]
        return split_samples(replace(params, bad_words=tuple(words)))

    def _decode(self, token_ids: Sequence[int]) -> str:
        return "" if self._codec is None else self._codec.decode(token_ids)

    def _result(self, sequence: RunningSequence) -> Result:
        assert sequence.finish_reason is not None
        ids = sequence.output_ids
        return Result(
            prompt_token_ids=sequence.prompt.tolist(),
            token_ids=ids,
            text=self._decode(_without_stop(sequence, ids)),
            finish_reason=sequence.finish_reason.value,
            stats=sequence.stats,
            error=sequence.error,
            seed=sequence.tables.seed if sequence.tables.temperature > 0 else None,
            logprobs=None if sequence.params.logprobs is None else sequence.logprobs,
            prompt_logprobs=None
            if sequence.params.prompt_logprobs is None
            else [None, *sequence.prompt_logprobs],
        )


def _without_stop(sequence: RunningSequence, ids: list[int]) -> list[int]:
    """The last ids of a sequence that has ended, as far as they are text: a token that stopped it is not."""
    return ids[:-1] if sequence.finish_reason is FinishReason.STOP else ids


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _build_options(options: Mapping[str, Any]) -> BuildOptions:
    known = BuildOptions.__dataclass_fields__
    for name in options:
        if name not in known:
            raise ConfigError(
                "LLM option", got=repr(name), need=f"one of {', '.join(known)}", fix="Correct the name."
            )
    return BuildOptions(**options)
