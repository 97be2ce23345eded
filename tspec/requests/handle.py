"""One sample of a prompt on its way, and what comes of it: pieces of text, then a result. Runs nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from tspec.core.sampling import TokenLogprobs
from tspec.runtime.sequence import FinishReason, SequenceStats
from tspec.runtime.sequence import Sequence as RunningSequence
from tspec.runtime.text import OutputText

Prompt = str | Sequence[int]
"""A text, or token ids."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one sample of a prompt gave. `token_ids` has what stopped it, `text` not (unless it is asked for).

    finish_reason    "stop", "length", "error", or "abort" for a request that was dropped
    stop_reason      the stop string, or the id of stop_token_ids, that ended the text
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
    stop_reason: int | str | None = None
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


class RequestHandle:
    """A request of one sample in the engine. Its owner steps the engine, and takes here what came of it."""

    def __init__(self, sequence: RunningSequence, text: OutputText) -> None:
        self.sequence = sequence
        self._text = text
        self._is_whole = False  # nothing more comes to the text
        self._num_read = 0  # tokens
        self._num_taken = 0  # tokens
        self._result: Result | None = None

    @property
    def is_finished(self) -> bool:
        """Whether nothing more comes: the text has ended, failed, or was dropped."""
        return self.sequence.finish_reason is not None

    @property
    def result(self) -> Result | None:
        """The whole result, None before the end."""
        return self.finished_result() if self.is_finished else None

    def finished_result(self) -> Result:
        """The whole result of a request that has ended."""
        if self._result is None:
            self._read()
            self._result = self._make_result()
        return self._result

    def take(self) -> Chunk:
        """Return what came since the last call, which may be nothing. After the end the chunk has the result."""
        self._read()
        token_ids = self.sequence.output_from(self._num_taken)
        self._num_taken += len(token_ids)
        return Chunk(self._text.take(), token_ids, self.result)

    def _read(self) -> None:
        """Turn the tokens that have come into text: the one place where a request's text is made."""
        if self._is_whole:
            return
        sequence = self.sequence
        if sequence.text is None:  # else the engine does this, since a stop string may end the request
            fresh = sequence.output_from(self._num_read)
            self._num_read += len(fresh)
            for place, token in enumerate(fresh, start=1):
                is_last = place == len(fresh) and sequence.finish_reason is FinishReason.STOP
                self._text.push(token, is_stop=is_last)
        if self.is_finished:
            self._text.finish()
            self._is_whole = True

    def _make_result(self) -> Result:
        sequence = self.sequence
        assert sequence.finish_reason is not None, "the request has not ended"
        params = sequence.params
        return Result(
            prompt_token_ids=sequence.prompt.tolist(),
            token_ids=sequence.output_ids,
            text=self._text.text,
            finish_reason=sequence.finish_reason.value,
            stats=sequence.stats,
            stop_reason=sequence.stop_reason,
            error=sequence.error,
            seed=sequence.tables.seed if sequence.tables.temperature > 0 else None,
            logprobs=None if params.logprobs is None else sequence.logprobs,
            prompt_logprobs=None if params.prompt_logprobs is None else [None, *sequence.prompt_logprobs],
        )
