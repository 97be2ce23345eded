"""The engine for prompts and texts: what `LLM` and `AsyncLLM` have in common."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tspec.build import BuildOptions, Progress, build_engine, load_config
from tspec.core.checks import need_process
from tspec.core.errors import ConfigError
from tspec.core.sampling_params import SamplingParams, split_samples
from tspec.core.speculative_config import SpeculativeConfig
from tspec.core.text_files import read_json_lines
from tspec.requests.handle import Prompt, RequestHandle
from tspec.runtime.loop import Engine
from tspec.runtime.sequence import Sequence as RunningSequence
from tspec.runtime.text import OutputText
from tspec.tokenizer import TextCodec, load_codec


class TextEngine:
    """An engine, its tokenizer if the checkpoint has one, and the handles of all requests that run.

    name   what its owner is called in errors

    Use in any thread: `encode`, `samples`, `tokenizer`. All else in one thread at a time.
    """

    def __init__(self, name: str, engine: Engine, codec: TextCodec | None) -> None:
        self.config = engine.config
        self._name = name
        self._engine: Engine | None = engine
        self._codec = codec
        self._pid = os.getpid()
        self._handles: dict[RunningSequence, RequestHandle] = {}

    def opened(self) -> Engine:
        """Return the engine. Errors: ConfigError after `close`, and in a forked process."""
        need_process(self._name, self._pid)
        if self._engine is None:
            raise ConfigError(self._name, got="closed", need="an open one", fix=f"Make a new {self._name}.")
        return self._engine

    @property
    def has_work(self) -> bool:
        """Whether a request waits or runs."""
        return self.opened().has_work

    @property
    def tokenizer(self) -> TextCodec:
        """The checkpoint's tokenizer. Errors: ConfigError where there is none."""
        if self._codec is None:
            raise ConfigError(
                "tokenizer",
                got="no tokenizer.json beside the weights",
                need="one, to read text",
                fix="Copy it from the model's repository, or pass token ids.",
            )
        return self._codec

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt."""
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def samples(self, params: SamplingParams | None, *, most: int | None = None) -> list[SamplingParams]:
        """The parameters of each sample of a prompt, with texts turned into token ids.

        Errors   ConfigError for more than `most` samples
        """
        params = params or SamplingParams()
        if most is not None and params.n > most:
            raise ConfigError(
                "n",
                got=params.n,
                need=f"{most} in a stream or a single request",
                fix="Use generate, or one request a sample.",
            )
        words: list[Sequence[int]] = []
        for word in params.bad_words:
            words += self.tokenizer.forbidden_sequences(word) if isinstance(word, str) else [word]
        return split_samples(replace(params, bad_words=tuple(words)))

    def add(
        self, token_ids: Sequence[int], samples: Sequence[SamplingParams], priority: int = 0
    ) -> list[RequestHandle]:
        """Queue a request a sample: all, or none where one is refused. Errors: those of `Engine.add`."""
        engine = self.opened()
        handles: list[RequestHandle] = []
        try:
            for params in samples:
                text = self._output_text(params)
                # Only stop strings need the text while the tokens come.
                sequence = engine.add(
                    token_ids, params, priority=priority, text=text if params.stop else None
                )
                handles.append(RequestHandle(sequence, text))
                if not handles[-1].is_finished:
                    self._handles[sequence] = handles[-1]
        except BaseException:
            self.abort(handles)
            raise
        return handles

    def step(self) -> list[RequestHandle]:
        """Run one step of the engine; returns the requests that gained tokens or ended."""
        engine = self.opened()
        try:
            # Those that were dropped within the step have no handle any more.
            advanced = [self._handles[each] for each in engine.step() if each in self._handles]
        except BaseException:
            self._handles = {key: handle for key, handle in self._handles.items() if not handle.is_finished}
            raise
        for handle in advanced:
            if handle.is_finished:
                del self._handles[handle.sequence]
        return advanced

    def abort(self, handles: Sequence[RequestHandle]) -> None:
        """Drop requests and free what they hold. Harmless for those that have ended, and in a forked process."""
        for handle in handles:
            if not handle.is_finished and self._engine is not None and os.getpid() == self._pid:
                self._handles.pop(handle.sequence, None)
                self._engine.abort(handle.sequence)

    def close(self) -> None:
        """Drop all requests, end the threads and free the memory. Harmless when called twice."""
        engine, self._engine = self._engine, None
        self._handles.clear()
        if engine is not None and os.getpid() == self._pid:
            engine.close()

    def _output_text(self, params: SamplingParams) -> OutputText:
        codec = self.tokenizer if params.stop else self._codec
        if codec is None:
            return OutputText(lambda token_ids: "")
        return OutputText(
            codec.decode,
            codec.decode_rules,
            stops=params.stop,
            includes_stop=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        )


def open_text_engine(
    name: str,
    model: str | Path,
    speculative_config: Mapping[str, Any] | SpeculativeConfig | None,
    on_progress: Progress,
    options: Mapping[str, Any],
) -> TextEngine:
    """Load a checkpoint. `options` are the fields of BuildOptions; they and the errors are explained at `LLM`."""
    folder, asked = Path(model), _build_options(options)
    speculative = SpeculativeConfig.of(speculative_config)
    codec = None
    if (folder / "tokenizer.json").exists():  # first: what is wrong with it shows before weights are read
        codec = load_codec(folder, load_config(folder, asked.dtype).vocab_size)
    corpus = _read_corpus(speculative, codec)
    engine = build_engine(folder, speculative, asked, on_progress)
    for token_ids in corpus:
        engine.learn(np.array(token_ids, dtype=np.int32))
    return TextEngine(name, engine, codec)


def _read_corpus(speculative: SpeculativeConfig, codec: TextCodec | None) -> list[list[int]]:
    if speculative.suffix_corpus is None:
        return []
    if codec is None:
        raise ConfigError(
            "suffix_corpus",
            got="a checkpoint without a tokenizer",
            need="one with tokenizer.json",
            fix="Add it, or leave suffix_corpus out.",
        )
    return [codec.encode_piece(text) for text in read_json_lines(Path(speculative.suffix_corpus), "text")]


def _build_options(options: Mapping[str, Any]) -> BuildOptions:
    known = BuildOptions.__dataclass_fields__
    for name in options:
        if name not in known:
            raise ConfigError(
                "LLM option", got=repr(name), need=f"one of {', '.join(known)}", fix="Correct the name."
            )
    return BuildOptions(**options)
